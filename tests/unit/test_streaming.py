"""Files are read in blocks, into the cache: memory does not grow with them as they do."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from adabench.usecases import text_columns
from adabench.usecases.ctr import cache as ctr_cache
from adabench.usecases.ctr import data as ctr
from adabench.usecases.ctr import parse_raw
from adabench.usecases.kge import data as kge
from adabench.usecases.mf import data as mf
from adabench.usecases.word2vec import data as word2vec

FEW, MANY = 20, 40
"""How often the lines below are repeated."""


def clicks() -> str:
    return "".join(
        "\t".join(
            [str(row % 2), *map(str, range(13)), *(f"{row % 7 * 1001 + field:08x}" for field in range(26))]
        )
        + "\n"
        for row in range(100)
    )


def triples() -> str:
    return "".join(f"entity{row % 31}\trelation{row % 3}\tentity{row % 37}\n" for row in range(1000))


def ratings() -> str:
    return "".join(f"user{row % 31}\titem{row % 37}\t{row % 5 + 1}\n" for row in range(1000))


def sentences() -> str:
    return "".join(" ".join(f"word{(row * step) % 41}" for step in range(1, 21)) + "\n" for row in range(200))


def peak(load: Callable[[], object]) -> int:
    """Bytes that Python, numpy and pyarrow had at the same time, at most."""
    gc.collect()
    tracemalloc.start()
    try:
        load()
        most: int = tracemalloc.get_traced_memory()[1]
        return most + int(pa.default_memory_pool().bytes_allocated())
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (clicks, lambda path: ctr.load(path, 0)),
        (triples, lambda path: kge.load(path, 0)),
        (ratings, lambda path: mf.load(path, 0)),
        (sentences, lambda path: word2vec.load(path, 0, 1)),
    ],
    ids=["ctr", "kge", "mf", "word2vec"],
)
def test_a_file_is_not_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: Callable[[], str], load: Callable[[Path], object]
) -> None:
    monkeypatch.setenv("ADABENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(parse_raw, "_BLOCK_BYTES", 1 << 13)
    monkeypatch.setattr(text_columns, "_BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr(ctr_cache, "_BLOCK", 1 << 9)
    monkeypatch.setattr(ctr_cache, "_READ_BYTES", 1 << 12)
    monkeypatch.setattr(word2vec, "_BLOCK", 1 << 7)
    lines, peaks, sizes = text(), [], []
    for repeats in (1, FEW, MANY):  # the first loads what is only imported when it is needed
        path = tmp_path / f"{repeats}.txt"
        path.write_text(lines * repeats)
        sizes.append(path.stat().st_size)
        peaks.append(peak(lambda path=path: load(path)))  # type: ignore[misc]
    # A file that was read as a whole, or its columns, would have as many bytes as the file, or more.
    grown = (peaks[2] - peaks[1]) / (sizes[2] - sizes[1])
    assert grown < 0.3, f"{peaks} bytes for files of {sizes}"
