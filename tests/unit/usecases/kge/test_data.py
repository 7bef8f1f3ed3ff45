"""Files of triples: every format gives the same triples, and unusable files are refused in one sentence."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from adabench.usecases.interface import DataError
from adabench.usecases.kge.data import load
from adabench.usecases.kge.generate import generate
from adabench.usecases.kge.read import Sizes

OPENKE = {
    "train2id.txt": "2\n0 1 0\n2 0 1\n",
    "valid2id.txt": "1\n1 2 1\n",
    "test2id.txt": "1\n0 3 0\n",
    "entity2id.txt": "5\na\t0\n",
    "relation2id.txt": "2\nr\t0\n",
}
NAMED = {"train.txt": "a\tr\tb\nc\ts\ta\n", "valid.txt": "b\ts\tc\n", "test.txt": "a\tr\tnew one\n"}


def folder(path: Path, files: dict[str, str]) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        content = text.encode()
        (path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def test_openke(tmp_path: Path) -> None:
    graph = load(folder(tmp_path / "data", OPENKE), 0)
    assert graph.train.tolist() == [[0, 0, 1], [2, 1, 0]]
    assert graph.valid.tolist() == [[1, 1, 2]]
    assert graph.test.tolist() == [[0, 0, 3]]
    assert graph.sizes == Sizes(5, 2)  # including entities and relations without triples
    assert load(tmp_path / "data", 0).fingerprint == graph.fingerprint


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize(("ending", "valid"), [(".txt", "valid"), (".tsv", "dev"), (".del", "valid")])
def test_names(tmp_path: Path, ending: str, valid: str, packed: str) -> None:
    texts = zip(("train", valid, "test"), NAMED.values(), strict=True)
    graph = load(folder(tmp_path / "data", {f"{name}{ending}{packed}": text for name, text in texts}), 0)
    assert graph.train.tolist() == [[0, 0, 2], [1, 1, 0]]  # heads are numbered first
    assert graph.test.tolist() == [[0, 0, 3]]  # an entity that training never meets
    assert graph.sizes == Sizes(4, 2)


@pytest.mark.parametrize("header", ["", "head,relation,tail\n", "Subject,Predicate,Object\n"])
def test_a_header_is_no_triple(tmp_path: Path, header: str) -> None:
    files = {name: header + text.replace("\t", ",") for name, text in NAMED.items()}
    graph = load(folder(tmp_path / "data", files), 0)
    assert graph.train.tolist() == [[0, 0, 2], [1, 1, 0]]
    assert graph.sizes == Sizes(4, 2)


def test_a_header_may_order_the_columns_differently(tmp_path: Path) -> None:
    files = {
        name: "h,t,r\n"
        + "".join(f"{h},{t},{r}\n" for h, r, t in (line.split("\t") for line in text.splitlines()))
        for name, text in NAMED.items()
    }
    graph = load(folder(tmp_path / "data", files), 0)
    assert graph.train.tolist() == [[0, 0, 2], [1, 1, 0]]


def test_all_files_have_one_dialect(tmp_path: Path) -> None:
    commas = {name: text.replace("\t", ",") for name, text in NAMED.items()}
    with pytest.raises(DataError, match=r"valid\.txt: the first line, 'b,s,c', has 1 columns"):
        load(folder(tmp_path / "data", {**commas, "train.txt": NAMED["train.txt"]}), 0)


def test_names_with_double_colons_are_whole_names(tmp_path: Path) -> None:
    files = {name: text.replace("a", "m::a").replace("b", "m::b") for name, text in NAMED.items()}
    graph = load(folder(tmp_path / "data", files), 0)
    assert graph.train.tolist() == [[0, 0, 2], [1, 1, 0]]


def test_names_are_read_where_there_are_numbers_as_well(tmp_path: Path) -> None:
    numbers = {name.replace(".txt", ".del"): "0\t0\t1\n" for name in NAMED}
    graph = load(folder(tmp_path / "data", {**NAMED, **numbers}), 0)
    assert graph.train.tolist() == [[0, 0, 2], [1, 1, 0]]


def test_one_file_is_split(tmp_path: Path) -> None:
    lines = [f"e{row % 50}\tr{row % 3}\te{row % 47}\n" for row in range(1000)]
    path = tmp_path / "all.tsv"
    path.write_text("".join(lines))
    graph = load(path, 0)
    assert len(graph.train) + len(graph.valid) + len(graph.test) == 1000
    assert 30 < len(graph.valid) < 70
    assert 30 < len(graph.test) < 70


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({**NAMED, "train.txt": "a\tr\tb\n\nc\ts\ta\n"}, "a line before the last one is empty"),
        ({}, "has no train.txt or train.tsv: it must have one file each for train, valid and test"),
        (NAMED | {"train.tsv": "a\tr\tb\n"}, "has train.tsv and train.txt: it must have one file each"),
        (NAMED | {"test.txt": ""}, "the first line, '', has 1 columns"),
        (NAMED | {"test.txt": "a r b\n"}, "the first line, 'a r b', has 1 columns"),
        (NAMED | {"test.txt": "a\tr\tb\na\tr\n"}, "test.txt cannot be read"),
        ({name: OPENKE[name] for name in ("train2id.txt", "test2id.txt")}, "has no valid2id.txt"),
        (OPENKE | {"test2id.txt": "2\n0 3 0\n"}, "counts 2 triples in its first line, and has 1"),
        (OPENKE | {"test2id.txt": "a\tr\tb\n"}, "must be the number of lines that follow"),
        (OPENKE | {"test2id.txt": "1\n0 x 0\n"}, "line 2: 'x' must be a number from 0"),
        (OPENKE | {"test2id.txt": "1\n0 -3 0\n"}, "line 2: '-3' must be a number from 0"),
        (OPENKE | {"test2id.txt": "1\n0 \u0663 0\n"}, "line 2: '\u0663' must be a number from 0"),
        (OPENKE | {"test2id.txt": "0\n"}, "has no triples"),
        (OPENKE | {"entity2id.txt": "3\n"}, "entity2id.txt counts 3, but number 3 occurs in the triples"),
    ],
)
def test_what_cannot_be_used_is_told(tmp_path: Path, files: dict[str, str], said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        load(folder(tmp_path / "data", files), 0)
    assert len(str(caught.value).splitlines()) == 1


def test_generated_triples_are_distinct_and_skewed() -> None:
    triples, sizes = generate(60_000)
    assert np.array_equal(triples, generate(60_000)[0])
    assert len(np.unique(triples, axis=0)) == len(triples) > 40_000
    assert triples.max(axis=0).tolist() <= [sizes.entities - 1, sizes.relations - 1, sizes.entities - 1]
    counts = np.sort(np.bincount(triples[:, 2]))[::-1]
    assert counts[: len(counts) // 10].sum() > 0.2 * counts.sum()
    with pytest.raises(DataError, match="no more than"):
        generate(10**15)


def test_real_triples(shared_data: Path) -> None:
    graph = load(shared_data / "fb15k237", 0)
    assert [len(split) for split in graph[:3]] == [272_115, 17_535, 20_466]
    assert graph.sizes == Sizes(14_541, 237)
