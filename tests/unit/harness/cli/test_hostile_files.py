"""Study files and data with any content give a valid plan or valid data, or one sentence."""

import contextlib
import gzip
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adabench.harness.errors import UsageError
from adabench.harness.study.plan import cells_of, planned_runs
from adabench.harness.study.study import load_study
from adabench.usecases.ctr.data import load as load_ctr
from adabench.usecases.ctr.generate import generate
from adabench.usecases.ctr.read_npy import DENSE, SPARSE
from adabench.usecases.ctr.read_npy import LABELS as LABELS_FILE
from adabench.usecases.gcn.load import load as load_gcn
from adabench.usecases.interface import DataError
from adabench.usecases.kge.data import load as load_triples
from adabench.usecases.mf.data import load as load_ratings
from adabench.usecases.word2vec.data import load as load_text
from tests.graph_files import EDGES, LABELS, write_musae, write_npz, write_ogb, write_planetoid

one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


# Study files

STUDY: dict[str, Any] = {
    "usecases": ["ctr[dim=8]", "gcn"],
    "backends": ["single", "prefetch[lookahead=10,50]"],
    "nodes": [1, 2],
    "repeats": 2,
    "timeout": "5m",
    "seed": 1,
    "network": "lan",
    "params": {"ctr": {"dim": 16, "epochs": [1, 2]}},
    "options": {"prefetch": {"lookahead": 10}},
    "targets": {"ctr": {"auc": 0.74}},
}
NAMES = st.sampled_from(
    [
        "ctr",
        "gcn",
        "single",
        "prefetch",
        "dim",
        "epochs",
        "lookahead",
        "auc",
        "ctr[dim=8]",
        "ctr[",
        "[a=]",
        "",
    ]
)
SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(-1, 3)
    | st.floats()
    | NAMES
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
    | st.sampled_from(["5m", "0s", "1e9h", "lan", "0.5ms,2gbit", "nan", "1,2", "\n", "\t"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(
    changes=st.dictionaries(
        st.sampled_from([*STUDY, "data", "workers", "warmup", "nides"]), VALUES, max_size=4
    )
)
@one_folder
def test_a_study_of_any_content_is_planned_or_refused_in_one_sentence(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    file = tmp_path / "study.toml"
    file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in {**STUDY, **changes}.items()))
    with one_sentence(UsageError):
        study = load_study(file, "study", {})
        cells = cells_of(study)
        assert cells
        if study.repeats * len(cells) < 1000:
            assert len(planned_runs(cells, study)) >= len(cells)


@given(content=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode(errors="replace")))
@one_folder
def test_a_study_file_of_any_bytes_is_planned_or_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "study.toml"
    file.write_bytes(content)
    with one_sentence(UsageError):
        cells_of(load_study(file, "study", {}))


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(c):08x}" if c in '"\\' or ord(c) < 32 else c for c in value) + '"'
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{toml(key)} = {toml(inner)}' for key, inner in value.items())}}}"
    return repr(value)


@contextlib.contextmanager
def one_sentence(refusal: type[Exception], naming: str = "") -> Iterator[None]:
    """Check that no other exception is raised, and that the message is one line and contains `naming`."""
    said = None
    try:
        yield
    except refusal as error:
        said = str(error)
    if said is not None:
        assert len(said.splitlines()) == 1
        assert naming in said


# Data


def write_raw(folder: Path) -> Path:
    cells = ["1", *map(str, range(13)), *(f"{number:08x}" for number in range(26))]
    rows = ["\t".join([str(row % 2), *cells[1:]]) for row in range(14)]
    (folder / "train.txt").write_text("\n".join([*rows, ""]))
    return folder / "train.txt"


def write_npy(folder: Path) -> Path:
    table = generate(70)
    for name, array in ((LABELS_FILE, table.labels), (DENSE, table.dense), (SPARSE, table.ids)):
        np.save(folder / name, array)
    return folder


def write_ratings(folder: Path) -> Path:
    lines = [f"{row % 4},item{row % 3},{1 + row % 5},x" for row in range(12)]
    (folder / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *lines, ""]))
    return folder


def write_openke(folder: Path) -> Path:
    for name in ("train", "valid", "test"):
        (folder / f"{name}2id.txt").write_text("2\n0 1 0\n2 1 1\n")
    for name in ("entity", "relation"):
        (folder / f"{name}2id.txt").write_text("3\n")
    return folder


def write_triples(folder: Path) -> Path:
    for name in ("train.txt", "dev.tsv", "test.del"):
        (folder / name).write_text("a\tr\tb\nb\ts\tc\n")
    return folder


def write_text(folder: Path) -> Path:
    (folder / "text.txt").write_text("one two three four\n" * 40)
    (folder / "pairs.tsv").write_text("one\ttwo\t1\none\tthree\t2\ntwo\tfour\t0.5\n")
    return folder


LAYOUTS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any]]] = {
    "criteo text": (write_raw, lambda path: load_ctr(path, 0)),
    "criteo arrays": (write_npy, lambda path: load_ctr(path, 0)),
    "ratings": (write_ratings, lambda path: load_ratings(path, 0)),
    "openke": (write_openke, lambda path: load_triples(path, 0)),
    "triples": (write_triples, lambda path: load_triples(path, 0)),
    "text": (write_text, lambda path: load_text(path, 0, 1)),
    "musae": (write_musae, lambda path: load_gcn("github", path)),
    "ogb": (write_ogb, lambda path: load_gcn("ogbn-mine", path)),
    "planetoid": (write_planetoid, lambda path: load_gcn("cora", path)),
    "npz": (lambda folder: write_npz(folder, edges=EDGES, y=LABELS), lambda path: load_gcn("mine", path)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data())
@one_folder
def test_damaged_data_is_read_or_refused_in_one_sentence(
    tmp_path: Path, layout: str, data: st.DataObject
) -> None:
    write, read = LAYOUTS[layout]
    folder = tmp_path / "data"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = write(folder)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    file = data.draw(st.sampled_from(files))
    content = file.read_bytes()
    packed = file.suffix == ".gz" and data.draw(st.booleans())
    content = mutated(gzip.decompress(content) if packed else content, data)
    file.write_bytes(gzip.compress(content) if packed else content)
    with one_sentence(DataError, naming=str(tmp_path)):
        read(path)


def mutated(content: bytes, data: st.DataObject) -> bytes:
    """One to three changes: bytes, cuts, and what readers stumble over."""
    result = bytearray(content)
    telling = [b"", b"\0", b"\xff", b"\n", b",", b"-1", b"nan", b"1e400", b"9" * 25, b"\t", b'"', b"0x"]
    for _ in range(data.draw(st.integers(1, 3))):
        first = data.draw(st.integers(0, len(result)))
        end = data.draw(st.integers(first, min(first + 20, len(result))) | st.just(len(result)))
        result[first:end] = data.draw(st.sampled_from(telling) | st.binary(max_size=4))
    return bytes(result)
