"""Files as people bring them: each outcome is the one that the table of docs/guides/data.md promises."""

import bz2
import csv
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from adabench.usecases.ctr.data import load as load_ctr
from adabench.usecases.gcn.load import load as load_gcn
from adabench.usecases.interface import DataError
from adabench.usecases.kge.data import load as load_triples
from adabench.usecases.mf.data import load as load_ratings
from adabench.usecases.word2vec.data import load as load_text

Rows = list[list[str]]
Files = dict[str, Rows]
Write = Callable[[Rows], bytes]

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "data.md"
HEADING = "### Files as people bring them"
NAMES = [f"n{number}" for number in range(6)]


def plain_files() -> dict[str, Files]:
    """Small files of each use case. Entities, users and the names of nodes can be any text."""
    ctr = [[str(row % 2), *(str(row + i) for i in range(13)), *(f"{row % 5 + i:x}" for i in range(26))]
           for row in range(21)]  # fmt: skip
    triples = [[NAMES[i], f"r{i % 2}", NAMES[(i + step) % 6]] for step in (1, 2) for i in range(6)]
    targets = [[str(node), name, str(node % 2)] for node, name in enumerate(NAMES)]
    edges = [[str(node), str((node + 1) % 5)] for node in range(5)]
    text = [["the quick brown fox jumps over the lazy dog"] for _ in range(60)]
    return {
        "ctr": {"rows.csv": ctr},
        "gcn": {
            "git_edges.csv": [["id_1", "id_2"], *edges, ["5", "0"]],
            "git_target.csv": [["id", "name", "ml_target"], *targets],
        },
        "kge": {"train.txt": triples, "valid.txt": triples[:2], "test.txt": triples[2:4]},
        "mf": {"ratings.csv": [[name, f"i{i % 3}", str(i % 5 + 1)] for i, name in enumerate(NAMES * 2)]},
        "word2vec": {"words.txt": text},
    }


LOADERS: dict[str, Callable[[Path], Any]] = {
    "ctr": lambda folder: load_ctr(folder / "rows.csv", 0),
    "gcn": lambda folder: load_gcn("github", folder),
    "kge": lambda folder: load_triples(folder, 0),
    "mf": lambda folder: load_ratings(folder / "ratings.csv", 0),
    "word2vec": lambda folder: load_text(folder / "words.txt", 0, 1),
}


def text_of(rows: Rows, **dialect: Any) -> str:
    file = io.StringIO()
    csv.writer(file, **{"lineterminator": "\n", **dialect}).writerows(rows)
    return file.getvalue()


def plain(rows: Rows) -> bytes:
    return text_of(rows).encode()


def zipped(rows: Rows) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("data.csv", plain(rows))
    return packed.getvalue()


def zstandard(rows: Rows) -> bytes:
    packed: bytes = pa.compress(plain(rows), codec="zstd", asbytes=True)
    return packed


WRITERS: dict[str, Write] = {
    "CRLF line ends": lambda rows: text_of(rows, lineterminator="\r\n").encode(),
    "every cell in double quotes": lambda rows: text_of(rows, quoting=csv.QUOTE_ALL).encode(),
    "Excel's semicolons": lambda rows: text_of(rows, delimiter=";").encode(),
    "tabs": lambda rows: text_of(rows, delimiter="\t").encode(),
    "UTF-8 with a byte order mark": lambda rows: text_of(rows).encode("utf-8-sig"),
    "spaces after separators": lambda rows: text_of(rows).replace(",", ", ").encode(),
    "UTF-16": lambda rows: text_of(rows).encode("utf-16"),
    "UTF-16 without a byte order mark": lambda rows: text_of(rows).encode("utf-16-le"),
    "gzip": lambda rows: gzip.compress(plain(rows)),
    "bzip2": lambda rows: bz2.compress(plain(rows)),
    "xz": lambda rows: lzma.compress(plain(rows)),
    "zstandard": zstandard,
    "zip": zipped,
    "empty lines at the end": lambda rows: plain(rows) + b"\n\n",
    "no line end after the last line": lambda rows: plain(rows).rstrip(b"\n"),
    "the file ends in the middle of a line": lambda rows: plain(rows)[: -len(plain(rows[-1:])) + 3],
    "an archive that is cut off": lambda rows: gzip.compress(plain(rows))[:-12],
    "an empty file": lambda rows: b"",
}
"""Row of the table -> function that writes the same rows in another way."""


def renamed(name: Callable[[int], str]) -> Callable[[Files], Files]:
    """Give entities, users, categoricals and ids of nodes other names."""
    known = {text: name(number) for number, text in enumerate(NAMES)}

    def change(files: Files) -> Files:
        for file, rows in files.items():
            for row in rows[file.startswith("git") :]:
                first = {"git_edges.csv": 2, "git_target.csv": 1}.get(file)
                if first is not None:
                    row[:first] = [name(int(cell)) for cell in row[:first]]
                elif file == "rows.csv":
                    row[14] = name(int(row[14], 16))
                else:
                    row[:] = [known.get(cell, cell) for cell in row]
        return files

    return change


def quoted_names(files: Files) -> Files:
    """Put separators and double quotes into names."""
    names = {name: f'the "{name}", or\t5"; {name}' for name in NAMES}
    return {file: [[names.get(cell, cell) for cell in row] for row in rows] for file, rows in files.items()}


def with_rows(*more: tuple[str, list[str]]) -> Callable[[Files], Files]:
    def change(files: Files) -> Files:
        for file, row in more:
            if file in files:
                files[file].append(row)
        return files

    return change


def repeated(files: Files) -> Files:
    """Repeat the last row of each file that is not a table of nodes."""
    return {file: rows if file == "git_target.csv" else [*rows, rows[-1]] for file, rows in files.items()}


def one_class(files: Files) -> Files:
    for row in files.get("rows.csv", []):
        row[0] = "1"
    for row in files.get("git_target.csv", [])[1:]:
        row[2] = "0"
    return files


def without_a_cell(files: Files) -> Files:
    """Leave a name, a categorical or a label empty."""
    for file, column in (("rows.csv", 20), ("git_target.csv", 2), ("train.txt", 1), ("ratings.csv", 0)):
        for row in files.get(file, [])[3:4]:
            row[column] = ""
    return files


CHANGES: dict[str, Callable[[Files], Files]] = {
    "separators and quotes inside quoted names": quoted_names,
    "ids of 64 bits": renamed(lambda number: str(2**63 - 1 - number)),
    "ids with gaps": renamed(lambda number: str(10 * number)),
    "negative ids": renamed(lambda number: str(-number - 1)),
    "repeated rows or edges": repeated,
    "self loops": with_rows(("git_edges.csv", ["3", "3"]), ("train.txt", ["n3", "r0", "n3"])),
    "isolated nodes": with_rows(("git_target.csv", ["6", "alone", "1"])),
    "entities that only the test split has": with_rows(("test.txt", ["n0", "r0", "new"])),
    "an empty cell": without_a_cell,
    "one class only": one_class,
}
"""Row of the table -> function that changes the plain files."""


def outcomes() -> list[tuple[str, str, str]]:
    """Row, use case and outcome of each cell of the page's table."""
    lines = PAGE.read_text(encoding="utf-8").partition(HEADING)[2].splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    table = table[: 2 + len(WRITERS) + len(CHANGES)]
    usecases = [cell.strip("`") for cell in table[0][1:]]
    return [
        (row[0], usecase, outcome)
        for row in table[2:]
        for usecase, outcome in zip(usecases, row[1:], strict=True)
        if outcome != "–"
    ]


def test_the_page_has_every_row() -> None:
    assert {row for row, _, _ in outcomes()} == {*WRITERS, *CHANGES}
    assert {usecase for _, usecase, _ in outcomes()} == {*LOADERS}


@pytest.mark.parametrize(("row", "usecase", "outcome"), outcomes())
def test_a_file_has_the_outcome_that_the_page_promises(
    tmp_path: Path, row: str, usecase: str, outcome: str
) -> None:
    def loaded(name: str, files: Files, write: Write) -> Any:
        folder = tmp_path / name
        folder.mkdir()
        for file, rows in files.items():
            (folder / file).write_bytes(write(rows))
        return LOADERS[usecase](folder)

    reference = loaded("plain", plain_files()[usecase], plain)
    files = plain_files()[usecase]
    if row in CHANGES:
        files = CHANGES[row](files)
    write = WRITERS.get(row, plain)
    if outcome == "error":
        with pytest.raises(DataError) as caught:
            loaded("brought", files, write)
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)
    else:
        found = loaded("brought", files, write)
        assert (found.fingerprint == reference.fingerprint) == (outcome in ("read", "ignored"))
