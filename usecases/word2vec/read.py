"""Reads words. The words of a line are a sentence, and long lines are divided.

Words are delimited by Unicode's word boundaries (UAX #29) and contain a letter, a digit or an underscore.
They are normalized to NFC and lower case. In addition to the text, a folder can have word pairs and
analogies.
"""

import io
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import regex

from adabench.usecases.common.text_columns import PACKINGS, open_bytes, readable
from adabench.usecases.interface import DataError

LONGEST = 1000
"""Maximum number of words of a sentence."""
FORMAT = "a text in UTF-8"
CHARACTERS = 1 << 20
"""Number of characters of a line that are processed together; longer than any word."""
BOUNDARY = regex.compile(r"(?w)\b")
WORD = regex.compile(r"\w")
SPACE = regex.compile(r"\s\S*\Z")


class Files(NamedTuple):
    """A text, files of word pairs, and files of analogies."""

    text: Path
    pairs: tuple[Path, ...]
    analogies: tuple[Path, ...]


def find(path: Path) -> Files:
    """Return the files at `path`.

    Raises
    ------
    DataError
        If `path` is neither a file nor a folder with one text.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist: data must be a text, or a folder with one")
    if not path.is_dir():
        return Files(path, (), ())
    files = sorted(file for file in path.iterdir() if file.is_file())
    endings = tuple(f".txt{packing}" for packing in PACKINGS)
    texts = [file for file in files if file.name.lower().endswith(endings)]
    if len(texts) != 1:
        has = " and ".join(file.name for file in texts) or "none"
        raise DataError(f"{path} must have one file that ends in .txt or .txt.gz: it has {has}")
    pairs, analogies = (
        tuple(file for file in files if file.suffix == ending) for ending in (".tsv", ".analogies")
    )
    return Files(texts[0], pairs, analogies)


def sentences(path: Path) -> Iterator[list[str]]:
    """Yield the words of each sentence, at least one and at most `LONGEST`.

    Raises
    ------
    DataError
        If the file cannot be read as text.
    """
    words: list[str] = []
    carried = ""
    with (
        readable(path, f"it must be {FORMAT}"),
        open_bytes(path) as file,
        io.TextIOWrapper(file, "utf-8") as text,
    ):
        while part := text.readline(CHARACTERS):
            ended = part.endswith("\n")
            part = carried + part
            whole_words = len(part) if ended else _unfinished(part)
            carried = part[whole_words:]
            if len(carried) > CHARACTERS:
                raise DataError(f"{path} has a word of {CHARACTERS} letters: it must be {FORMAT}")
            words += _words(part[:whole_words])
            whole = len(words) if ended else len(words) // LONGEST * LONGEST
            for start in range(0, whole, LONGEST):
                yield words[start : min(whole, start + LONGEST)]
            del words[:whole]
    words += _words(carried)
    if words:
        yield words


def normal(text: str) -> str:
    """Return a text in the form for comparisons: composed characters, in lower case."""
    return unicodedata.normalize("NFC", text).lower()


def _words(text: str) -> list[str]:
    return [word for word in BOUNDARY.split(normal(text)) if WORD.search(word)]


def _unfinished(part: str) -> int:
    """Return the position after the last white space. It is always a word boundary."""
    found = SPACE.search(part)
    return found.start() + 1 if found else 0
