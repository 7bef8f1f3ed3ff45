"""The corpus of the fuzz target for checkpoints, which grows with what a search finds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FUZZ = Path(__file__).parents[2] / "csrc" / "tests" / "fuzz"


@pytest.fixture(scope="module")
def checkpoint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_checkpoint", FUZZ / "checkpoint.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_each_input_of_the_corpus_is_restored_or_refused_in_one_sentence(checkpoint: ModuleType) -> None:
    corpus = sorted((FUZZ / "corpus" / "checkpoint").iterdir())
    with checkpoint.target() as target:
        examples = target.examples()
        assert [target.run(example) for example in examples] == [None, None]
        said = [target.run(path.read_bytes()) for path in corpus]
        assert [target.run(example) for example in examples] == [None, None]  # the node works on
    assert sum(sentence is not None for sentence in said) > len(said) / 2


def test_what_a_search_found_stays_refused_for_what_it_is(checkpoint: ModuleType) -> None:
    sentences = {
        "surrogate-in-manifest": "is damaged, or not the manifest of a checkpoint",
        "newline-in-tensor-name": r"holds 'rows', 'values', '\nstate'; the checkpoint's manifest tells",
    }
    with checkpoint.target() as target:
        for name, sentence in sentences.items():
            assert sentence in target.run((FUZZ / "corpus" / "checkpoint" / name).read_bytes())
