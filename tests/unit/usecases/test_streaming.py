"""Files are read in blocks, into the cache: memory does not grow with them as they do."""

import gc
import gzip
import os
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest

from adabench.usecases.common import text_columns
from adabench.usecases.common.cache import map_arrays
from adabench.usecases.ctr import CtrParams, CtrUseCase, read_npy
from adabench.usecases.ctr import cache as ctr_cache
from adabench.usecases.ctr import data as ctr
from adabench.usecases.ctr.fields import zipf_fields
from adabench.usecases.ctr.generate import generate
from adabench.usecases.ctr.read_npy import DENSE, LABELS, SPARSE
from adabench.usecases.gcn import GcnUseCase, mapped, read_npz
from adabench.usecases.gcn.load import load as load_graph
from adabench.usecases.gcn.task import GcnParams
from adabench.usecases.kge import data as kge
from adabench.usecases.mf import data as mf
from adabench.usecases.word2vec import data as word2vec
from tests.graph_files import write_npz, write_ogb

FEW, MANY = 20, 40
"""Numbers of repetitions of the lines below."""
NODES = 1000
ROOT = Path(__file__).resolve().parents[3]


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


Write = Callable[[Path, int], tuple[Path, int]]
"""Writes some blocks of data into a folder; returns the path to load, and its unpacked bytes."""


def written(text: Callable[[], str]) -> Write:
    def write(folder: Path, blocks: int) -> tuple[Path, int]:
        path = folder / "data.txt"
        return path, path.write_text(text() * blocks)

    return write


def arrays_of_clicks(folder: Path, blocks: int) -> tuple[Path, int]:
    table = generate(blocks * 100, zipf_fields(50))
    np.save(folder / LABELS, table.labels)
    np.save(folder / DENSE, table.dense)
    np.save(folder / SPARSE, table.ids)
    return folder, sum((folder / name).stat().st_size for name in (LABELS, DENSE, SPARSE))


def edges(blocks: int) -> list[list[int]]:
    """Edges that fill more blocks of a text than pyarrow reads ahead."""
    pairs: list[list[int]] = np.random.default_rng(blocks).integers(NODES, size=(blocks * 2000, 2)).tolist()
    return pairs


def ogb_graph(folder: Path, blocks: int) -> tuple[Path, int]:
    splits = {"train": range(0, 600), "valid": range(600, 800), "test": range(800, NODES)}
    write_ogb(folder, edges(blocks), list(range(NODES)), **{name: [*nodes] for name, nodes in splits.items()})
    return folder, len(gzip.decompress((folder / "raw" / "edge.csv.gz").read_bytes()))


def npz_graph(folder: Path, blocks: int) -> tuple[Path, int]:
    write_npz(folder, edges=edges(blocks), y=np.arange(NODES))
    return folder, (folder / "mine.npz").stat().st_size


def npz_rows(folder: Path, blocks: int) -> tuple[Path, int]:
    ends = np.sort(np.random.default_rng(blocks).integers(NODES, size=(2, blocks * 500)))
    indptr = np.searchsorted(ends[0], np.arange(NODES + 1))
    write_npz(folder, indptr=indptr, indices=ends[1], y=np.arange(NODES))
    return folder, (folder / "mine.npz").stat().st_size


Load = Callable[[Path], object]


def small_blocks_and_traces() -> None:
    for module, name, size in (
        (read_npy, "ROWS_AT_ONCE", 1 << 6),
        (text_columns, "_BLOCK_BYTES", 1 << 12),
        (ctr_cache, "_BLOCK", 1 << 9),
        (ctr_cache, "_READ_BYTES", 1 << 12),
        (word2vec, "_BLOCK", 1 << 7),
        (mapped, "_ARCS", 1 << 12),
        *((module, "EDGES_AT_ONCE", 1 << 8) for module in (mapped, read_npz)),
    ):
        assert hasattr(module, name)
        setattr(module, name, size)
    tracemalloc.start()


def peak(load: Load, path: Path, cache: Path) -> int:
    """Bytes that Python, numpy and pyarrow had more than before at the same time, at most."""
    os.environ["ADABENCH_CACHE"] = str(cache)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    load(path)
    return tracemalloc.get_traced_memory()[1] - before + int(pa.default_memory_pool().bytes_allocated())


@pytest.fixture(scope="module")
def tracing() -> Iterator[Executor]:
    """A process that traces its memory until it ends.

    Threads of pyarrow give memory back after a file was read, and CPython before 3.12 dies if tracing
    stops while another thread does (python/cpython#128679).
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        ProcessPoolExecutor(1, get_context("spawn"), small_blocks_and_traces) as process,
    ):
        patch.syspath_prepend(
            ROOT
        )  # for the started process, because other packages have a folder of tests, too
        yield process


def grown(tracing: Executor, tmp_path: Path, write: Write, load: Load) -> float:
    """Bytes of memory for each byte of more data."""
    peaks, sizes = [], []
    for blocks in (1, FEW, MANY):  # the first run includes the late imports
        folder = tmp_path / str(blocks)
        folder.mkdir()
        path, size = write(folder, blocks)
        sizes.append(size)
        peaks.append(tracing.submit(peak, load, path, tmp_path / "cache").result())
    return (peaks[2] - peaks[1]) / (sizes[2] - sizes[1])


@pytest.mark.parametrize(
    ("write", "load"),
    [
        (written(clicks), partial(ctr.load, generated_rows=0)),
        (arrays_of_clicks, partial(ctr.load, generated_rows=0)),
        (written(triples), partial(kge.load, generated=0)),
        (written(ratings), partial(mf.load, generated=0)),
        (written(sentences), partial(word2vec.load, generated=0, least=1)),
        (ogb_graph, partial(load_graph, "ogbn-mine")),
        (npz_graph, partial(load_graph, "mine")),
        (npz_rows, partial(load_graph, "mine")),
    ],
    ids=["ctr", "ctr arrays", "kge", "mf", "word2vec", "ogb", "npz edges", "npz rows"],
)
def test_a_file_is_not_in_memory(tracing: Executor, tmp_path: Path, write: Write, load: Load) -> None:
    # A file that was read as a whole, or its columns, would have as many bytes as the file, or more.
    assert grown(tracing, tmp_path, write, load) < 0.3


def all_clicks(path: Path) -> int:
    return sum(len(batch.label) for batch in CtrUseCase(CtrParams(batch=16), path, 1).loaders(0, 1).train)


def all_neighbourhoods(path: Path) -> int:
    params = GcnParams(graph="ogbn-mine", batch=50, fanout=2, partition="random")
    return sum(batch.batch_size for batch in GcnUseCase(params, path, 1).loaders(0, 2).train)


@pytest.mark.parametrize(
    ("write", "train"), [(written(clicks), all_clicks), (ogb_graph, all_neighbourhoods)], ids=["ctr", "gcn"]
)
def test_batches_of_an_epoch_are_not_in_memory(
    tracing: Executor, tmp_path: Path, write: Write, train: Load
) -> None:
    """Only the order of the rows is, and what belongs to nodes."""
    assert grown(tracing, tmp_path, write, train) < 0.3


def test_more_than_there_is_memory_can_be_mapped(tmp_path: Path) -> None:
    if Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        pytest.skip("this machine's kernel promises no more memory than there is")
    numbers = (psutil.virtual_memory().total + psutil.swap_memory().total) // 8 * 2
    with (tmp_path / "numbers.bin").open("wb") as file:
        file.truncate(8 * numbers)  # a file without blocks
    arrays = map_arrays(tmp_path, {"numbers": ("<i8", (numbers // 2, 2))})
    assert arrays is not None
    assert arrays["numbers"][-1].tolist() == [0, 0]
    arrays["numbers"][-1] = 7
    again = map_arrays(tmp_path, {"numbers": ("<i8", (numbers // 2, 2))})
    assert again is not None
    assert again["numbers"][-1].tolist() == [0, 0], "what is written stays with who wrote it"
