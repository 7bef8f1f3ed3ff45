"""Text files of any packing and encoding give the same columns."""

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from adabench.usecases.common import text_columns
from adabench.usecases.common.text_columns import Dialect, files_called, first_line, text_blocks
from adabench.usecases.interface import DataError

LINES = [("a", "é", "1"), ("b:c", "ü ", "2"), ("d", "", "3")]


def zipped(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/", b"")
        archive.writestr("folder/data.txt", content)
    return packed.getvalue()


def zstandard(content: bytes) -> bytes:
    packed: bytes = pa.compress(content, codec="zstd", asbytes=True)
    return packed


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": zstandard,
    "zip": zipped,
}


def columns(path: Path, separator: str, quoted: bool = False) -> list[tuple[str, ...]]:
    blocks = text_blocks(path, Dialect(separator, quoted), 3, (0, 1, 2), skipped=0)
    return [row for _, texts in blocks for row in zip(*(text.to_pylist() for text in texts), strict=True)]


@pytest.mark.parametrize("separator", ["\t", ",", "::"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n\r\n", "\n\n\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("packing", PACKINGS)
def test_equal_lines_are_equal_columns(
    tmp_path: Path, packing: str, encoding: str, end: str, separator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_columns, "_BLOCK_BYTES", 16)  # several blocks
    text = "\n".join(separator.join(cells) for cells in LINES) + end
    path = tmp_path / "DATA.Any"
    path.write_bytes(PACKINGS[packing](text.encode(encoding)))
    assert first_line(path) == separator.join(LINES[0])
    assert columns(path, separator) == LINES


def test_cells_in_quotes_may_hold_separators(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text('"a, b","c ""d""",1\nx,y,2\n')
    assert columns(path, ",", quoted=True) == [("a, b", 'c "d"', "1"), ("x", "y", "2")]


def test_empty_lines_are_left_out_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("a,b,1\n\nc,d,2\n")
    with pytest.raises(ValueError, match="a line before the last one is empty"):
        columns(path, ",")


def test_an_archive_of_several_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one", b"1")
        archive.writestr("two", b"2")
    with pytest.raises(DataError, match=r"data.zip is an archive of 2 files: it must contain one"):
        first_line(path)


def test_names_are_found_in_capitals_and_packed(tmp_path: Path) -> None:
    for name in ("U.DATA", "ratings.csv.GZ", "other.csv"):
        (tmp_path / name).write_bytes(b"")
    found = files_called(tmp_path, ["u.data", "ratings.csv"])
    assert [file.name for file in found] == ["U.DATA", "ratings.csv.GZ"]
