"""Texts and word pairs: reading, splitting, and refusals in one sentence."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from adabench.usecases.common.batches import scattered
from adabench.usecases.common.rank_statistics import mean_ranks
from adabench.usecases.interface import DataError
from adabench.usecases.word2vec import read
from adabench.usecases.word2vec.data import Sentences, load
from adabench.usecases.word2vec.generate import generate
from adabench.usecases.word2vec.read import LONGEST, sentences

PAIRS = "# two words\tand a score\nred\tGreen\t3\nred\tblue\t1.5\nred\tpurple\t9\n\ngreen\tblue\t2\n"


def text_of(path: Path, content: str, pairs: dict[str, str] | None = None) -> Path:
    path.mkdir()
    (path / "some.txt").write_text(content)
    for name, text in (pairs or {}).items():
        (path / name).write_text(text)
    return path


def lists(split: Sentences) -> list[list[int]]:
    return [
        split.words[start:end].tolist() for start, end in zip(split.starts, split.starts[1:], strict=False)
    ]


@pytest.mark.parametrize("characters", [3, 7, 1 << 20])
def test_lines_are_sentences(tmp_path: Path, characters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "CHARACTERS", characters + 9)
    path = tmp_path / "text"
    path.write_text("\ufeffThe cat's\tBLUE hat,\r\n\n --- \nÜber 42  straße_1\nno end")
    assert list(sentences(path)) == [
        ["the", "cat's", "blue", "hat"],
        ["über", "42", "straße_1"],
        ["no", "end"],
    ]
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(sentences(packed)) == list(sentences(path))


def test_words_are_those_of_unicode(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("नमस्ते दुनिया, தமிழ் மொழி\ncafe\u0301 CAFÉ 你好 can't 3.14\n", "utf-8")
    assert list(sentences(path)) == [
        ["नमस्ते", "दुनिया", "தமிழ்", "மொழி"],
        ["café", "café", "你", "好", "can't", "3.14"],
    ]
    folder = text_of(tmp_path / "data", "नमस्ते दुनिया cafe\u0301 good\n" * 100)
    (folder / "p.tsv").write_text("नमस्ते\tदुनिया\t1\ncafé\tGOOD\t2\ncafe\u0301\tनमस्ते\t3\n", "utf-8")
    assert load(folder, 0, 1).pairs["p"].scores.tolist() == [1, 2, 3]


@pytest.mark.parametrize("end", ["", "\n"])
def test_long_lines_are_cut(tmp_path: Path, end: str) -> None:
    path = tmp_path / "text"
    path.write_text(" ".join(map(str, range(2 * LONGEST + 1))) + end)
    found = list(sentences(path))
    assert [len(one) for one in found] == [LONGEST, LONGEST, 1]
    assert [int(word) for one in found for word in one] == list(range(2 * LONGEST + 1))


def test_seldom_words_and_what_is_too_short_are_left_out(tmp_path: Path) -> None:
    lines = [f"red green blue green once{number}" if number % 2 else "green" for number in range(400)]
    path = text_of(tmp_path / "data", "\n".join(lines), {"colours.tsv": PAIRS})
    text = load(path, 0, 5)
    splits = [text.train, text.valid, text.test]
    assert sum(split.size for split in splits) == 200  # a sentence of one word has no pairs
    # Green is the most frequent, and has number 0.
    red, blue = text.train.words[0], text.train.words[2]
    assert {tuple(one) for split in splits for one in lists(split)} == {(red, 0, blue, 0)}
    assert text.counts.tolist() == np.bincount(text.train.words).tolist()
    assert text.pairs["colours"].words.tolist() == [[red, red, 0], [0, blue, blue]]
    assert text.pairs["colours"].scores.tolist() == [3, 1.5, 2]
    every = load(path, 0, 1)
    trained = np.flatnonzero(scattered(0, 400) % np.uint64(20) > 1)
    assert len(every.counts) == 3 + (trained % 2).sum()


def test_what_is_in_the_cache_is_the_same(tmp_path: Path) -> None:
    path = text_of(tmp_path / "data", "a b c d\n" * 100)
    first, second = load(path, 0, 1), load(path, 0, 1)
    assert first.fingerprint == second.fingerprint
    assert lists(first.train) == lists(second.train)
    (path / "pairs.tsv").write_text("a\tb\t1\na\tc\t2\nb\tc\t3\n")
    with_pairs = load(path, 0, 1).fingerprint
    assert with_pairs != first.fingerprint
    (path / "questions.analogies").write_text(": letters\nA b C a\na b c q\n")
    asked = load(path, 0, 1)
    assert asked.analogies["questions"].words.tolist() == [[0], [1], [2], [0]]
    assert asked.fingerprint not in (first.fingerprint, with_pairs)
    (path / "questions.analogies").unlink()
    (path / "some.txt").write_text("a b c d\n" * 99 + "a a a a\n")
    (path / "pairs.tsv").unlink()
    assert load(path, 0, 1).fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("content", "pairs", "said"),
    [
        ("", {}, "has no words: it must be a text"),
        ("a b\n" * 3, {}, "has no word 5 times in its training split: min_count must be lower"),
        ("a b c d e f\n" * 6, {}, "split has none of its 6 sentences: more sentences are needed"),
        ("a b\n" * 200, {"p.tsv": "a\tb\n"}, r"p.tsv, line 1: 'a\\tb' must be one of lines of two words"),
        ("a b\n" * 200, {"p.tsv": "a\tb\tnan\n"}, "must have a finite number"),
        (
            "a b\n" * 200,
            {"p.tsv": "a\tb\t1\na\tq\t2\n"},
            "both words are frequent enough in the text for 1 of 2 pairs",
        ),
        (
            "a b\n" * 200,
            {"q.analogies": ": x\na b a\n"},
            r"q.analogies, line 2: 'a b a' must be one of lines of four",
        ),
        ("a b\n" * 200, {"q.analogies": "a b a q\n"}, "each of the 1 questions has a word that is too rare"),
        (
            "a b c\n" * 200,
            {"q.analogies": "a b c a\n", "q.tsv": "a\tb\t1\na\tc\t2\nb\tc\t3\n"},
            "but another metric has this name",
        ),
        ("a b\n" * 200, {"loss.tsv": "a\tb\t1\n" * 3}, "has loss.tsv, but another metric has this name"),
        ("a b\n" * 200, {"more.txt": ""}, "it has more.txt and some.txt"),
    ],
)
def test_what_cannot_be_used_is_told(tmp_path: Path, content: str, pairs: dict[str, str], said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        load(text_of(tmp_path / "data", content, pairs), 0, 5)
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_no_text_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="does not exist: data must be a text"):
        load(tmp_path / "none", 0, 1)
    (tmp_path / "binary").write_bytes(bytes(range(1, 256)))
    with pytest.raises(DataError, match="it must be a text in UTF-8"):
        load(tmp_path / "binary", 0, 1)
    (tmp_path / "long").write_text("x" * 50)
    monkeypatch.setattr(read, "CHARACTERS", 10)
    with pytest.raises(DataError, match="has a word of 10 letters"):
        load(tmp_path / "long", 0, 1)


def test_generated_words_have_topics() -> None:
    drawn, pairs, alike, words = generate(50_000)
    assert np.array_equal(drawn, generate(50_000)[0])
    assert drawn.size == 50_000
    assert 0 <= drawn.min() <= max(drawn.max(), pairs.max()) < words
    assert 400 < alike.sum() < len(alike) - 400
    together = np.zeros((words, words), dtype=bool)
    for one in drawn:
        together[np.ix_(one, one)] = True
    met = together[pairs[0], pairs[1]]
    assert met[alike == 1].mean() > 0.5
    assert not met[alike == 0].any()
    with pytest.raises(DataError, match="no more than"):
        generate(10**15)


def test_ranks_are_scipys() -> None:
    rng = np.random.default_rng(5)
    one, other = rng.integers(20, size=100).astype(float), rng.random(100)
    ours = np.corrcoef(mean_ranks(one), mean_ranks(other))[0, 1]
    assert ours == pytest.approx(spearmanr(one, other).statistic)


def test_real_text(shared_data: Path) -> None:
    text = load(shared_data / "text8_head" / "text8.split.head", 0, 5)
    assert [text.train.size, text.valid.size, text.test.size] == [8969, 505, 526]
    assert len(text.counts) == 8735
    assert int(text.counts.sum()) == len(text.train.words)
