"""The corpus of the fuzz target for checkpoints and exports, to which findings are added."""

from tests.scripts import ROOT, load_script

FUZZ = ROOT / "csrc" / "tests" / "fuzz"
checkpoint = load_script("tests/fuzz/checkpoint.py")


def test_each_input_of_the_corpus_is_restored_or_refused_in_one_sentence() -> None:
    corpus = sorted((FUZZ / "corpus" / "checkpoint").iterdir())
    with checkpoint.target() as target:
        examples = target.examples()
        assert [target.run(example) for example in examples] == [None] * 4
        said = [target.run(path.read_bytes()) for path in corpus]
        assert [target.run(example) for example in examples] == [None] * 4  # the node works on
    assert sum(sentence is not None for sentence in said) > len(said) / 2


def test_what_a_search_found_stays_refused_for_what_it_is() -> None:
    sentences = {
        "surrogate-in-manifest": "is damaged, or not the manifest of a checkpoint",
        "newline-in-tensor-name": r"holds 'rows', 'values', '\nstate'; the manifest lists",
    }
    with checkpoint.target() as target:
        for name, sentence in sentences.items():
            assert sentence in target.run((FUZZ / "corpus" / "checkpoint" / name).read_bytes())
