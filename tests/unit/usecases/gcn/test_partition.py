"""How training nodes are shared among workers."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from adabench.usecases.gcn import partition as module
from adabench.usecases.gcn.generate import generate
from adabench.usecases.gcn.graph import Graph, build_graph, random_split
from adabench.usecases.gcn.partition import METHODS, Method, partition
from adabench.usecases.interface import DataError

GRAPH = generate(nodes=3000, classes=4, mean_degree=8, homophily=0.9, seed=2)
TRAINING = random_split(GRAPH.labels, 1).train


def local_arcs(graph: Graph, part: NDArray[np.int64]) -> float:
    source, target = graph.edge_index
    return float((part[source] == part[target]).mean())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_shares_are_disjoint_and_of_equal_length(tmp_path: Path, method: Method, workers: int) -> None:
    found = partition(GRAPH, TRAINING, [64] * workers, method, 1, tmp_path)
    assert [len(nodes) for nodes in found.training] == [len(TRAINING) // workers] * workers
    together = np.concatenate(found.training)
    assert len(np.unique(together)) == len(together)
    assert np.isin(together, TRAINING).all()
    for worker, nodes in enumerate(found.training):
        assert (np.diff(nodes) > 0).all()
        assert (found.part[nodes] == worker).all()
    assert found.part.shape == (GRAPH.num_nodes,)
    assert set(found.part.tolist()) == set(range(workers))


def test_metis_keeps_neighbours_together(tmp_path: Path) -> None:
    parts = {method: partition(GRAPH, TRAINING, [64] * 4, method, 1, tmp_path).part for method in METHODS}
    shares = {method: local_arcs(GRAPH, part) for method, part in parts.items()}
    assert shares["metis"] > 0.6
    assert shares["random"] == pytest.approx(0.25, abs=0.02)
    assert shares["contiguous"] == pytest.approx(0.25, abs=0.02)


def test_training_nodes_move_from_full_parts_to_where_their_neighbours_are() -> None:
    # Two stars around nodes 0 and 4; only the centre of the second is in part 1.
    labels = np.zeros(7, dtype=np.int64)
    graph = build_graph(np.array([0, 0, 4, 4]), np.array([1, 2, 5, 6]), labels, where="stars")
    part = np.array([0, 0, 0, 0, 1, 0, 0])
    found = module._balance(graph, np.array([1, 2, 5, 6]), [2, 2], part)
    assert [nodes.tolist() for nodes in found.training] == [[1, 2], [5, 6]]
    assert found.part.tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_a_seed_repeats_and_random_shares_follow_it(tmp_path: Path) -> None:
    for method in METHODS:
        first, again = (
            partition(GRAPH, TRAINING, [64] * 3, method, 1, tmp_path / str(i)).part for i in range(2)
        )
        np.testing.assert_array_equal(first, again)
    first, other = (partition(GRAPH, TRAINING, [64] * 3, "random", seed, tmp_path).part for seed in (1, 2))
    assert (first != other).any()


def test_metis_runs_once_for_the_same_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[int]] = []
    metis = module._metis

    def counted(
        graph: Graph, training: NDArray[np.int64], sizes: Sequence[int], seed: int
    ) -> NDArray[np.int64]:
        asked.append(sizes)
        return metis(graph, training, sizes, seed)

    monkeypatch.setattr(module, "_metis", counted)
    first, again = (partition(GRAPH, TRAINING, [64] * 2, "metis", 1, tmp_path) for _ in range(2))
    np.testing.assert_array_equal(first.part, again.part)
    assert len(asked) == 1
    other_graph = generate(nodes=3000, classes=4, mean_degree=8, homophily=0.9, seed=3)
    for graph, training, sizes, seed in (
        (GRAPH, TRAINING, [64] * 3, 1),
        (GRAPH, TRAINING, [64] * 2, 2),
        (GRAPH, TRAINING, [96, 32], 1),
        (GRAPH, TRAINING[1:], [64] * 2, 1),
        (other_graph, TRAINING, [64] * 2, 1),
    ):
        partition(graph, training, sizes, "metis", seed, tmp_path)
    assert len(asked) == 6
    assert not list(tmp_path.glob("*.part"))


def test_the_cache_is_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    partition(GRAPH, TRAINING, [64] * 2, "metis", 1)
    assert len(list((tmp_path / "adabench" / "partitions").glob("metis-2-*.npz"))) == 1


def test_a_damaged_cache_is_reported_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = partition(GRAPH, TRAINING, [64] * 2, "metis", 1, tmp_path).part
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:50], b"nonsense"):
        file.write_bytes(damaged)
        with caplog.at_level(logging.WARNING):
            np.testing.assert_array_equal(
                partition(GRAPH, TRAINING, [64] * 2, "metis", 1, tmp_path).part, expected
            )
        assert f"{file}: not a readable partition" in caplog.text
        assert file.read_bytes() == whole
        caplog.clear()


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with caplog.at_level(logging.WARNING):
        partition(GRAPH, TRAINING, [64] * 2, "metis", 1, blocked / "below")
    assert "could not be kept for later runs" in caplog.text


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_without_training_nodes_is_refused(tmp_path: Path, method: Method) -> None:
    with pytest.raises(DataError, match="2 training nodes cannot be shared among 3 workers"):
        partition(GRAPH, TRAINING[:2], [64] * 3, method, 1, tmp_path)
    found = partition(GRAPH, TRAINING[:3], [64] * 3, method, 1, tmp_path)
    assert [len(nodes) for nodes in found.training] == [1, 1, 1]
