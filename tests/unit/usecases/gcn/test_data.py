"""Graphs of the use case gcn: all readable layouts, the resulting graphs, and errors for bad files."""

import gzip
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adabench.usecases.common import text_columns
from adabench.usecases.gcn import mapped, read_npz
from adabench.usecases.gcn.generate import generate
from adabench.usecases.gcn.graph import UNLABELLED, Graph, Split, build_graph, random_split
from adabench.usecases.gcn.load import load
from adabench.usecases.interface import DataError
from tests.graph_files import EDGES, LABELS, write_musae, write_npz, write_ogb, write_planetoid


def neighbours(graph: Graph) -> list[list[int]]:
    lists: list[NDArray[np.int32]] = np.split(graph.indices, graph.indptr[1:-1])
    return [one.tolist() for one in lists]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("github", write_musae),
        ("ogbn-mine", write_ogb),
        ("cora", write_planetoid),
        ("mine", lambda folder: write_npz(folder, edges=EDGES, y=LABELS)),
        ("mine", lambda folder: write_npz(folder, edges=EDGES, node_labels=LABELS, node_features=[[1.0]])),
        ("mine", lambda folder: write_npz(folder, edge_index=np.array(EDGES).T, y=LABELS)),
        ("mine", lambda folder: write_npz(folder, edge_index=np.array(EDGES).T.copy(), y=LABELS)),
        ("mine", lambda folder: write_npz(folder, edges=EDGES, y=np.array([3, 7, 10**12])[LABELS])),
        (
            "mine",
            lambda folder: write_npz(folder, indptr=[0, 1, 3, 4, 5], indices=[1, 0, 2, 0, 3], lab=LABELS),
        ),
    ],
)
def test_every_layout_gives_the_same_graph(tmp_path: Path, name: str, write: Any) -> None:
    graph = load(name, write(tmp_path))
    assert neighbours(graph) == [[1, 2], [0, 2], [0, 1], []]
    assert graph.labels.tolist() == LABELS
    assert (graph.num_nodes, graph.num_classes) == (4, 3)
    assert [array.dtype.name for array in (graph.indptr, graph.indices)] == ["int64", "int32"]
    assert graph.edge_index.tolist() == [[1, 2, 0, 2, 0, 1], [0, 0, 1, 1, 2, 2]]


@pytest.mark.parametrize("name", ["features", "node_features", "x"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_features_are_read_if_they_are_wanted(tmp_path: Path, name: str, order: Any) -> None:
    features = np.arange(8, dtype=np.float64).reshape(4, 2)
    write_npz(tmp_path, edges=EDGES, y=LABELS, **{name: np.asarray(features, order=order)})
    plain, wanted = load("mine", tmp_path), load("mine", tmp_path, features=True)
    assert plain.features is None
    for graph in (wanted, load("mine", tmp_path, features=True)):  # the second one comes from the cache
        assert graph.features is not None
        assert (graph.features.dtype.name, graph.features.tolist()) == ("float32", features.tolist())
        assert graph.fingerprint == replace(graph, known_fingerprint=None).fingerprint != plain.fingerprint
    assert plain.fingerprint == load("mine", tmp_path).fingerprint


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({}, "there are no node features, an array called features, node_features or x"),
        ({"x": [1.0, 2.0, 3.0, 4.0]}, r"x must be an array of numbers of shape \(4, width\); it is float64"),
        ({"x": np.zeros((3, 2))}, r"shape \(4, width\); it is float64 of shape \(3, 2\)"),
        ({"x": np.zeros((4, 0))}, r"of shape \(4, 0\)"),
        ({"features": [["a"]] * 4}, "features must be an array of numbers"),
        ({"node_features": [[0.0], [1.0], [np.nan], [0.0]]}, "node_features of node 2 must be finite"),
        ({"x": [[0.0], [1e300], [2.0], [0.0]]}, "x of node 1 must be finite numbers of 32 bits"),
        ({"x": np.full((4, 1), None)}, "not a readable npz file"),
    ],
)
def test_features_that_cannot_be_used_are_refused(
    tmp_path: Path, features: dict[str, Any], message: str
) -> None:
    write_npz(tmp_path, edges=EDGES, y=LABELS, **features)
    load("mine", tmp_path)
    with pytest.raises(DataError, match=message):
        load("mine", tmp_path, features=True)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("generated", lambda folder: None),
        ("github", write_musae),
        ("ogbn-mine", write_ogb),
        ("cora", write_planetoid),
    ],
)
def test_features_of_a_graph_without_them_are_refused(tmp_path: Path, name: str, write: Any) -> None:
    with pytest.raises(DataError, match=f"graph={name} has no node features here, only npz files do"):
        load(name, write(tmp_path), features=True)


def random_edges(seed: int, nodes: int, count: int) -> NDArray[np.int64]:
    """With hubs, loops, edges that come several times, and nodes that have none."""
    generator = np.random.default_rng(seed)
    return (generator.random((count, 2)) ** 3 * (nodes - 5)).astype(np.int64)


@pytest.mark.parametrize("at_once", [7, 100, 1 << 22])
@pytest.mark.parametrize("files", [1, 3, 256])
def test_a_graph_that_is_sorted_in_parts_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, files: int
) -> None:
    monkeypatch.setattr(mapped, "_ARCS", at_once)
    monkeypatch.setattr(mapped, "_FILES", files)
    monkeypatch.setattr(text_columns, "_BLOCK_BYTES", 10 * at_once)
    for module in (mapped, read_npz):
        monkeypatch.setattr(module, "EDGES_AT_ONCE", at_once)
    edges, labels = random_edges(1, 80, 600), np.arange(80) % 3
    split = Split(np.arange(60), np.arange(60, 70), np.arange(70, 80))
    expected = build_graph(edges[:, 0], edges[:, 1], labels, where="edges", split=split)
    parts = {name: part.tolist() for name, part in vars(split).items()}
    found = load("ogbn-mine", write_ogb(tmp_path, edges.tolist(), labels.tolist(), **parts))
    require_same(found, expected)
    expected = build_graph(edges[:, 0], edges[:, 1], labels, where="edges")
    rows = edges[np.argsort(edges[:, 0])]
    for arrays in (
        {"edges": edges.astype(np.uint16)},
        {"edges": np.asfortranarray(edges)},
        {"indptr": np.searchsorted(rows[:, 0], np.arange(81)), "indices": rows[:, 1].astype(">i4")},
    ):
        require_same(load("mine", write_npz(tmp_path, y=labels, **arrays)), expected)


def require_same(found: Graph, expected: Graph) -> None:
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    np.testing.assert_array_equal(found.indices, expected.indices)
    assert found.labels.tolist() == expected.labels.tolist()
    assert found.fingerprint == expected.fingerprint
    assert replace(found, known_fingerprint=None).fingerprint == expected.fingerprint


def test_a_graph_is_read_once_and_anew_when_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADABENCH_CACHE", str(tmp_path / "cache"))
    read: list[Path] = []
    own = read_npz._read

    def seen(file: Path) -> mapped.Parts:
        read.append(file)
        return own(file)

    monkeypatch.setattr(read_npz, "_read", seen)
    write_npz(tmp_path, edges=EDGES, y=LABELS)
    first, again = (load("mine", tmp_path) for _ in range(2))
    require_same(again, first)
    assert len(read) == 1
    (folder,) = {file.parent for file in (tmp_path / "cache").rglob("arrays.json")}
    assert sorted(file.name for file in folder.iterdir()) == [
        "arrays.json",
        "indices.bin",
        "indptr.bin",
        "labels.bin",
    ]
    (folder / "indices.bin").unlink()  # mapped files stay readable
    (folder / "indices.bin").write_bytes(b"1234")
    require_same(load("mine", tmp_path), first)
    assert len(read) == 2
    write_npz(tmp_path, edges=EDGES[:2], y=LABELS)
    assert neighbours(load("mine", tmp_path)) == [[1], [0, 2], [1], []]
    assert len(read) == 3


@pytest.mark.parametrize("stored", [True, False])
def test_arrays_whose_bytes_are_damaged_are_refused(tmp_path: Path, stored: bool) -> None:
    save = np.savez if stored else np.savez_compressed
    edges = np.asfortranarray(random_edges(1, 80, 600))
    save(tmp_path / "mine.npz", edges=edges, y=np.arange(80))
    whole = (tmp_path / "mine.npz").read_bytes()
    at = whole.index(b"edges.npy") + 400
    (tmp_path / "mine.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(DataError, match=r"mine\.npz: (not a readable npz file|edge \d+ joins nodes)"):
        load("mine", tmp_path)


def test_a_missing_label_keeps_a_node_out_of_every_split(tmp_path: Path) -> None:
    github = load("github", write_musae(tmp_path, labels=[1, "", 0, 1]))
    assert github.labels.tolist() == [1, UNLABELLED, 0, 1]
    split = random_split(github.labels, 0)
    assert sorted(np.concatenate([split.train, split.valid, split.test]).tolist()) == [0, 2, 3]
    ogbn = load("ogbn-mine", write_ogb(tmp_path, labels=[1, "nan", 2, 1]))
    assert ogbn.split is not None
    assert ogbn.split.train.tolist() == [0]


def test_classes_that_are_names_are_numbered_in_alphabetical_order(tmp_path: Path) -> None:
    graph = load("github", write_musae(tmp_path, labels=["tv", "company", "", "tv"]))
    assert graph.labels.tolist() == [1, 0, UNLABELLED, 1]


def test_ogb_folders_are_found_where_the_archive_or_the_library_puts_them(tmp_path: Path) -> None:
    for below in ("mine", "ogbn_mine"):
        graph = load("ogbn-mine", write_ogb(tmp_path / below).parent)
        assert graph.split is not None
        assert [part.tolist() for part in vars(graph.split).values()] == [[0, 1], [2], [3]]


def test_a_planetoid_row_of_zeros_is_a_missing_label(tmp_path: Path) -> None:
    graph = load("cora", write_planetoid(tmp_path, ally=np.array([[0, 1, 0], [0, 0, 0]])))
    assert graph.labels.tolist() == [0, UNLABELLED, 1, 0]  # no node is of the first class


def test_a_fingerprint_changes_with_structure_labels_and_split(tmp_path: Path) -> None:
    variants = [
        write_ogb(tmp_path / "same"),
        write_ogb(tmp_path / "edges", edges=EDGES[:2]),
        write_ogb(tmp_path / "labels", labels=[0, 0, 2, 1]),
        write_ogb(tmp_path / "split", train=[0]),
    ]
    fingerprints = {load("ogbn-mine", folder).fingerprint for folder in variants}
    assert len(fingerprints) == len(variants)
    again = load("ogbn-mine", write_ogb(tmp_path / "again", edges=EDGES[::-1])).fingerprint
    assert again in fingerprints
    assert again.startswith("sha256:")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.getcwd, ()


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        (
            "github",
            lambda f: write_musae(f, edges=[(0, 1), (2, 4)]),
            r"git_edges.csv: edge 1 joins nodes 2 and 4",
        ),
        ("github", lambda f: write_musae(f, edges=[(-1, 1)]), r"ids must be in \[0, 4\)"),
        (
            "github",
            lambda f: write_musae(f, edges=[(0, "x")]),
            r"git_edges.csv, line 2: 'x' must be an integer",
        ),
        ("github", lambda f: write_musae(f, edges=[(0, "")]), r"line 2: '' must be an integer of 64 bits"),
        (
            "github",
            lambda f: write_musae(f, edges=[(0, 1)], labels=["", ""]),
            r"none of the 2 nodes has a label",
        ),
        ("facebook", write_musae, r"facebook_target.csv: there is no such file"),
        ("ogbn-mine", lambda f: write_ogb(f, train=[9]), r"train.csv.gz: node 9 is outside \[0, 4\)"),
        ("ogbn-mine", lambda f: write_ogb(f, train=[2]), r"time: a node is in two of train, valid and test"),
        (
            "ogbn-mine",
            lambda f: write_ogb(f, labels=["0,1"] * 4),
            r"node-label.csv.gz: a row has 2 values where 1",
        ),
        ("ogbn-other", write_ogb, None),
        ("cora", lambda f: write_planetoid(f, graph=Evil()), r"it refers to posix.getcwd"),
        ("cora", lambda f: write_planetoid(f, graph=[1]), r"must hold a dictionary"),
        ("cora", lambda f: write_planetoid(f, ally=[1]), r"ally: must hold one row of zeros and a one"),
        ("cora", lambda f: write_planetoid(f, ty=np.eye(3)), r"test.index: must give each of 3 test nodes"),
        ("mine", lambda f: write_npz(f, edges=EDGES), r"mine.npz: the labels are missing"),
        ("mine", lambda f: write_npz(f, y=LABELS), r"array indptr is missing"),
        ("mine", lambda f: write_npz(f, edges=[[0, 9]], y=LABELS), r"edge 0 joins nodes 0 and 9"),
        ("mine", lambda f: write_npz(f, edges=[[0.5, 1]], y=LABELS), r"edges must be an array of integers"),
        ("mine", lambda f: write_npz(f, indptr=[0, 1], indices=[0], y=LABELS), r"indptr must have 5 values"),
        (
            "mine",
            lambda f: write_npz(f, indptr=[0, 2, 1, 1, 2], indices=[0, 1], y=LABELS),
            r"indptr must not decrease, but it does at node 1",
        ),
        (
            "absent",
            write_musae,
            r"absent.npz: there is no such file; graph=absent must be one of generated, face",
        ),
    ],
)
def test_bad_data_get_one_sentence(tmp_path: Path, name: str, write: Any, message: str | None) -> None:
    folder = write(tmp_path)
    if message is None:
        assert load(name, folder).num_nodes == 4
        return
    with pytest.raises(DataError, match=message) as error:
        load(name, folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("file", ["git_edges.csv", "git_target.csv"])
def test_columns_of_another_name_are_named(tmp_path: Path, file: str) -> None:
    write_musae(tmp_path)
    (tmp_path / file).write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=f"{file}: not a readable csv file with the expected columns"):
        load("github", tmp_path)


def test_node_ids_with_a_gap_are_refused(tmp_path: Path) -> None:
    write_musae(tmp_path)
    (tmp_path / "git_target.csv").write_text("id,name,ml_target\n0,a,1\n2,b,0\n")
    with pytest.raises(
        DataError, match="column id must hold every node id from 0 to 1 once, but 1 is missing"
    ):
        load("github", tmp_path)


@pytest.mark.parametrize("damage", [slice(0, 20), slice(0, 0)])
def test_damaged_files_are_named(tmp_path: Path, damage: slice) -> None:
    write_ogb(tmp_path)
    file = tmp_path / "raw" / "edge.csv.gz"
    file.write_bytes(file.read_bytes()[damage])
    with pytest.raises(DataError, match=r"edge\.csv\.gz: not a readable csv file"):
        load("ogbn-mine", tmp_path)
    write_npz(tmp_path, edges=EDGES, y=LABELS)
    file = tmp_path / "mine.npz"
    file.write_bytes(file.read_bytes()[damage])
    with pytest.raises(DataError, match=r"mine\.npz: not a readable npz file"):
        load("mine", tmp_path)


def test_a_row_count_other_than_promised_is_refused(tmp_path: Path) -> None:
    write_ogb(tmp_path)
    (tmp_path / "raw" / "num-edge-list.csv.gz").write_bytes(gzip.compress(b"7\n"))
    with pytest.raises(DataError, match=r"has 5 rows where num-edge-list\.csv\.gz promises 7"):
        load("ogbn-mine", tmp_path)


def test_data_that_would_be_ignored_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"graph=generated reads no data, so {tmp_path} would be ignored"):
        load("generated", tmp_path)


def test_files_need_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="graph=github is read from files: name their folder with --data"):
        load("github", None)
    with pytest.raises(DataError, match="nowhere: there is no such folder"):
        load("github", tmp_path / "nowhere")


def test_an_empty_graph_is_refused() -> None:
    nothing = np.empty(0, dtype=np.int64)
    with pytest.raises(DataError, match="none of the 0 nodes has a label"):
        build_graph(nothing, nothing, nothing, where="nothing")


def test_a_random_split_has_the_promised_sizes_and_follows_the_seed() -> None:
    labels = np.zeros(1000, dtype=np.int64)
    split, again, other = (random_split(labels, seed) for seed in (1, 1, 2))
    assert [len(split.train), len(split.valid), len(split.test)] == [540, 180, 280]
    assert len(np.unique(np.concatenate([split.train, split.valid, split.test]))) == 1000
    assert split.train.tolist() == again.train.tolist() != other.train.tolist()


def test_the_generated_graph_has_hubs_and_communities() -> None:
    graph = generate(nodes=5000, classes=5, mean_degree=12, homophily=0.6, seed=1)
    assert (
        graph.fingerprint
        == generate(nodes=5000, classes=5, mean_degree=12, homophily=0.6, seed=1).fingerprint
    )
    degrees = np.diff(graph.indptr)
    assert 10 < degrees.mean() <= 12
    assert degrees.max() > 10 * degrees.mean()
    source, target = graph.edge_index
    assert (graph.labels[source] == graph.labels[target]).mean() == pytest.approx(0.6 + 0.4 / 5, abs=0.02)
    # The sampler and PyG require both directions of every edge, no loops, and ascending order.
    assert {*zip(source, target, strict=True)} == {*zip(target, source, strict=True)}
    assert (source != target).all()
    assert all((np.diff(one) > 0).all() for one in np.split(graph.indices, graph.indptr[1:-1]))


def test_a_generated_graph_has_the_requested_number_of_nodes() -> None:
    assert load("generated", None).num_nodes == 10_000
    assert load("generated", None, vertices=500).num_nodes == 500
    with pytest.raises(DataError, match=r"vertices is 1000000000000: no more than \d+ can be generated"):
        load("generated", None, vertices=10**12)


@pytest.mark.parametrize(
    ("name", "folder", "nodes", "edges", "classes", "unlabelled"),
    [
        ("facebook", "musae_social", 22_470, 170_823, 4, 0),
        ("github", "musae_social", 37_700, 289_003, 2, 0),
        ("twitch_de", "musae_social", 9_498, 153_138, 2, 0),
        ("citeseer", "planetoid", 3_327, 4_552, 6, 15),
        ("pubmed", "planetoid", 19_717, 44_324, 3, 0),
        ("arxiv_like", "arxiv_like", 169_343, 1_187_883, 40, 0),
    ],
)
def test_real_graphs(
    shared_data: Path, name: str, folder: str, nodes: int, edges: int, classes: int, unlabelled: int
) -> None:
    graph = load(name, shared_data / folder)
    assert (graph.num_nodes, len(graph.indices) // 2, graph.num_classes) == (nodes, edges, classes)
    assert (graph.labels == UNLABELLED).sum() == unlabelled


@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed"])
def test_planetoid_pickles_equal_the_npz(shared_data: Path, tmp_path: Path, name: str) -> None:
    for file in (shared_data / "planetoid").glob(f"ind.{name}.*"):
        (tmp_path / file.name).symlink_to(file)
    assert load(name, tmp_path).fingerprint == load(name, shared_data / "planetoid").fingerprint
