"""Reads words: those of a line are a sentence, and long lines are cut.

A word is what ``\\w+`` matches of the lower-cased text. A folder may have word pairs and analogies beside the
text.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from adabench.usecases.common.text_columns import open_bytes
from adabench.usecases.interface import DataError

__all__ = ["LONGEST", "Files", "find", "sentences"]

LONGEST = 1000
"""Words of a sentence."""
FORMAT = "a text in UTF-8"
CHARACTERS = 1 << 20
"""Of a line that are looked at together, and more than any word has."""
WORD = re.compile(r"\w+")


class Files(NamedTuple):
    """A text, files of word pairs, and files of analogies."""

    text: Path
    pairs: tuple[Path, ...]
    analogies: tuple[Path, ...]


def find(path: Path) -> Files:
    """The files at `path`.

    Raises
    ------
    DataError
        If it is neither a file nor a folder with one text.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist: data must be a text, or a folder with one")
    if not path.is_dir():
        return Files(path, (), ())
    files = sorted(file for file in path.iterdir() if file.is_file())
    texts = [file for file in files if file.name.endswith((".txt", ".txt.gz"))]
    if len(texts) != 1:
        has = " and ".join(file.name for file in texts) or "none"
        raise DataError(f"{path} must have one file that ends in .txt or .txt.gz: it has {has}")
    pairs, analogies = (
        tuple(file for file in files if file.suffix == ending) for ending in (".tsv", ".analogies")
    )
    return Files(texts[0], pairs, analogies)


def sentences(path: Path) -> Iterator[list[str]]:
    """The words of each sentence, at most `LONGEST` and at least one.

    Raises
    ------
    DataError
        If the file cannot be read as text.
    """
    words: list[str] = []
    carried = ""
    try:
        with open_bytes(path) as file, io.TextIOWrapper(file, "utf-8-sig") as text:
            while part := text.readline(CHARACTERS):
                ended = part.endswith("\n")
                part = carried + part
                whole_words = len(part) if ended else _unfinished(part)
                carried = part[whole_words:]
                if len(carried) > CHARACTERS:
                    raise DataError(f"{path} has a word of {CHARACTERS} letters: it must be {FORMAT}")
                words += WORD.findall(part[:whole_words].lower())
                whole = len(words) if ended else len(words) // LONGEST * LONGEST
                for start in range(0, whole, LONGEST):
                    yield words[start : min(whole, start + LONGEST)]
                del words[:whole]
    except (OSError, EOFError, zlib.error, ValueError) as error:
        if isinstance(error, DataError):
            raise
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{path} cannot be read ({reason}): it must be {FORMAT}") from error
    words += WORD.findall(carried.lower())
    if words:
        yield words


def _unfinished(part: str) -> int:
    """Where the last word begins, if the part ends in one; else where the part ends."""
    place = len(part)
    while place and WORD.match(part, place - 1):
        place -= 1
    return place
