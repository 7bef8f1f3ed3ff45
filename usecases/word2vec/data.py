"""The text of a run: read or generated, and split.

A hash of a sentence's number determines its split, independent of the seed of a run. First, words that are
rare in the training split are removed from all splits, and then sentences with fewer than two remaining
words.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.batches import split_masks
from adabench.usecases.common.cache import (
    ArrayWriter,
    describe_arrays,
    digest_of,
    kept_arrays,
    read_once,
)
from adabench.usecases.interface import DataError
from adabench.usecases.word2vec.analogies import Analogies, read_analogies
from adabench.usecases.word2vec.generate import LENGTH, generate
from adabench.usecases.word2vec.pairs import Pairs, read_pairs
from adabench.usecases.word2vec.read import find, sentences

FORMAT = 3
SPLITS = ("train", "valid", "test")
GENERATED_PAIRS = "topics"
_BLOCK = 1 << 14  # number of sentences that are processed together


class Sentences(NamedTuple):
    """Concatenated sentences.

    Attributes
    ----------
    words : array
        Words of all sentences, int32.
    starts : array
        Start of each sentence, and end of the last one, int64 (sentences + 1,).
    """

    words: NDArray[np.int32]
    starts: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Number of sentences."""
        return len(self.starts) - 1


class Text(NamedTuple):
    """A text as numbers.

    Attributes
    ----------
    train, valid, test : Sentences
        Sentences of each split. They can be mapped from files.
    counts : array
        Number of occurrences of each word in the training split, int64 (words,).
    pairs : dict of str to Pairs
        Word pairs with known similarity, by name.
    analogies : dict of str to Analogies
        Analogy questions, by name.
    fingerprint : str
        Digest of the text.
    """

    train: Sentences
    valid: Sentences
    test: Sentences
    counts: NDArray[np.int64]
    pairs: dict[str, Pairs]
    analogies: dict[str, Analogies]
    fingerprint: str


class _Read(NamedTuple):
    splits: dict[str, Sentences]
    counts: NDArray[np.int64]
    names: list[str]
    fingerprint: str


def load(path: Path | None, generated: int, least: int) -> Text:
    """Read the text at `path`, or generate about `generated` words if it is None.

    Words with fewer than `least` occurrences in the training split are removed from texts that are read.

    Raises
    ------
    DataError
        If the data cannot be read or used.
    """
    if path is None:
        return _generated(generated)
    try:
        files = find(path)
        read = read_once("text", [files.text], partial(_build, files.text, least), _open, settings=least)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): data must be a readable folder or file") from error
    compared = [*files.pairs, *files.analogies]
    numbers = {name: number for number, name in enumerate(read.names)} if compared else {}
    pairs = {file.stem: read_pairs(file, numbers) for file in files.pairs}
    analogies = {file.stem: read_analogies(file, numbers) for file in files.analogies}
    for file in compared:
        if file.stem == "loss" or (file.stem in pairs and file.stem in analogies):
            raise DataError(f"{path} has {file.name}, but another metric has this name: rename the file")
    fingerprint = read.fingerprint
    if compared:
        arrays = [array for one in pairs.values() for array in one]
        arrays += [one.words for one in analogies.values()]
        fingerprint = digest_of(repr([fingerprint, *pairs, *analogies]), arrays)
    text = Text(**read.splits, counts=read.counts, pairs=pairs, analogies=analogies, fingerprint=fingerprint)
    return _whole(text, str(path))


def _generated(count: int) -> Text:
    drawn, pairs, alike, words = generate(count)
    train, valid, test = (
        Sentences(drawn[chosen].reshape(-1), np.arange(0, chosen.sum() * LENGTH + 1, LENGTH))
        for chosen in split_masks(0, len(drawn))
    )
    counts = np.bincount(train.words, minlength=words)
    fingerprint = digest_of("text", [train.words, valid.words, test.words, pairs, alike])
    text = Text(train, valid, test, counts, {GENERATED_PAIRS: Pairs(pairs, alike)}, {}, fingerprint)
    return _whole(text, f"generated data of {count} words")


def _whole(text: Text, what: str) -> Text:
    counts = {name: getattr(text, name).size for name in SPLITS}
    for name, count in counts.items():
        if count == 0:
            raise DataError(
                f"{what}: the {name} split has none of its {sum(counts.values())} sentences: more "
                f"sentences are needed"
            )
    return text


def _build(path: Path, least: int, folder: Path) -> None:
    """Number all words first. The words to remove are only known after all words were counted."""
    names, counts, lengths = _number(path, folder)
    kept = np.flatnonzero(counts >= least)
    if len(kept) == 0:
        raise DataError(
            f"{path} has no word {least} times in its training split: min_count must be lower, or the text "
            "longer"
        )
    kept = kept[np.argsort(-counts[kept], kind="stable")]
    renumbered = np.full(len(counts), -1, dtype=np.int32)
    renumbered[kept] = np.arange(len(kept), dtype=np.int32)
    (folder / "names.txt").write_text("\n".join(names[number] for number in kept.tolist()), "utf-8")
    words, trained = dict.fromkeys(SPLITS, 0), np.zeros(len(kept), dtype=np.int64)
    with ArrayWriter(folder) as output:
        output.append(counts=trained[:0])
        for split in SPLITS:
            output.append(**{f"{split}_words": np.zeros(0, np.int32)})
            output.append(**{f"{split}_starts": np.zeros(1, np.int64)})
        for split, block in _blocks(folder / "all.bin", folder / "lengths.bin", lengths, renumbered):
            output.append(**{f"{split}_words": block.words})
            output.append(**{f"{split}_starts": block.starts[1:] + words[split]})
            words[split] += len(block.words)
            if split == "train":
                trained += np.bincount(block.words, minlength=len(kept))
        output.append(counts=trained)
    (folder / "all.bin").unlink()
    (folder / "lengths.bin").unlink()
    describe_arrays(folder, FORMAT, output.shapes, what="text")


def _number(path: Path, folder: Path) -> tuple[list[str], NDArray[np.int64], int]:
    """Write the numbers of words and the lengths of sentences. Returns names, training counts, sentences."""
    numbers: dict[str, int] = {}
    counts, seen = np.zeros(0, dtype=np.int64), 0
    text = sentences(path)
    with ArrayWriter(folder) as output:
        while block := list(islice(text, _BLOCK)):
            found = np.array(
                [numbers.setdefault(word, len(numbers)) for one in block for word in one], np.int32
            )
            length = np.array([len(one) for one in block], np.int64)
            output.append(all=found, lengths=length)
            trained = np.repeat(split_masks(seen, len(block))[0], length)
            more = np.bincount(found[trained], minlength=len(numbers))
            more[: len(counts)] += counts
            counts = more
            seen += len(block)
    if seen == 0:
        raise DataError(f"{path} has no words: it must be a text")
    return list(numbers), counts, seen


def _blocks(
    words: Path, lengths: Path, count: int, renumbered: NDArray[np.int32]
) -> Iterator[tuple[str, Sentences]]:
    """Yield the sentences of each split in blocks, with the words that are kept."""
    all_lengths = np.memmap(lengths, np.int64, "r", shape=(count,))
    all_words = np.memmap(words, np.int32, "r")
    done = 0
    for first in range(0, count, _BLOCK):
        length = all_lengths[first : first + _BLOCK]
        block = renumbered[all_words[done : done + int(length.sum())]]
        done += len(block)
        sentence = np.repeat(np.arange(len(length)), length)
        left = np.bincount(sentence[block >= 0], minlength=len(length))
        for split, chosen in zip(SPLITS, split_masks(first, len(length)), strict=True):
            chosen &= left > 1
            starts = np.concatenate([[0], np.cumsum(left[chosen])])
            yield split, Sentences(block[chosen[sentence] & (block >= 0)], starts)


def _open(folder: Path) -> _Read | None:
    kept = kept_arrays(folder, FORMAT)
    if kept is None:
        return None
    try:
        names = (folder / "names.txt").read_text("utf-8").split("\n")
    except (FileNotFoundError, ValueError):
        return None
    if len(names) != len(kept.arrays["counts"]):
        return None
    splits = {
        split: Sentences(*(kept.arrays[f"{split}_{what}"] for what in Sentences._fields)) for split in SPLITS
    }
    return _Read(splits, kept.arrays["counts"], names, kept.fingerprint)
