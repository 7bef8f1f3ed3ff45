"""Dealing samples by the rows that they read."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adabench.usecases.common._partition import Greedy, Readers
from adabench.usecases.common.placement import Placement, greedy_parts, most_reading
from adabench.usecases.ctr import CtrParams, CtrUseCase
from adabench.usecases.interface import DataError
from adabench.usecases.kge import KgeParams, KgeUseCase
from adabench.usecases.mf import MfParams, MfUseCase

Ids = NDArray[np.int64]


def grouped(seed: int, groups: int, samples: int = 3000, rows: int = 600, noise: float = 0.1) -> Ids:
    """Samples that read four rows each, of one group except for some random rows."""
    rng = np.random.default_rng(seed)
    own = rng.integers(groups, size=(samples, 1))
    ids = own + groups * rng.integers(rows // groups, size=(samples, 4))
    stray = rng.random(ids.shape) < noise
    return np.where(stray, rng.integers(rows, size=ids.shape), ids)


def local_share(ids: Ids, parts: NDArray[Any], rows: int) -> float:
    """The share of local reads if each row is placed with its most frequent reader, counted naively."""
    counts = np.zeros((rows, int(parts.max()) + 1), dtype=np.int64)
    np.add.at(counts, (ids, parts[:, None]), 1)
    return float(counts.max(axis=1).sum() / ids.size)


@pytest.mark.parametrize("parts", [2, 3, 8])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_samples_that_read_the_same_rows_go_to_the_same_part(parts: int, dtype: Any) -> None:
    ids = grouped(seed=parts, groups=parts).astype(dtype)
    dealt = greedy_parts(ids.__getitem__, len(ids), 600, parts, seed=1)
    sizes = np.bincount(dealt, minlength=parts)
    assert sizes.max() <= -(-len(ids) // parts)
    in_turn = np.arange(len(ids)) % parts
    assert local_share(ids, dealt, 600) > 1.3 * local_share(ids, in_turn, 600)
    assert local_share(ids, dealt, 600) > 0.65


def test_further_passes_do_better_than_one() -> None:
    ids = grouped(seed=4, groups=8)
    once, thrice = (
        local_share(ids, greedy_parts(ids.__getitem__, len(ids), 600, 8, 1, passes), 600) for passes in (1, 3)
    )
    assert thrice > once


def test_equal_seeds_deal_alike_whatever_the_blocks_and_others_otherwise() -> None:
    ids = grouped(seed=5, groups=4)
    first, again, other = (greedy_parts(ids.__getitem__, len(ids), 600, 4, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    whole, pieces = Greedy(600, 4, 3000, 1), Greedy(600, 4, 3000, 1)
    cut = [pieces.deal(np.ascontiguousarray(part)) for part in np.array_split(ids, 7)]
    assert np.array_equal(whole.deal(ids), np.concatenate(cut))


def test_who_reads_a_row_most() -> None:
    ids = np.array([[0, 1], [0, 2], [1, 2], [1, 2], [3, 3]])
    shares = [np.array([0, 1]), np.array([2, 3]), np.array([], dtype=np.int64), np.array([4])]
    assert most_reading(ids.__getitem__, shares, 5).tolist() == [0, 1, 1, 3, -1]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Greedy(0, 2, 4, 1), "rows is 0: it must be 1 or more"),
        (lambda: Greedy(5, 2, 0, 1), "samples is 0: it must be 1 or more"),
        (lambda: Greedy(5, 0, 4, 1), "parts is 0: it must be from 1 to 4096"),
        (lambda: Greedy(5, 5000, 4, 1), "parts is 5000: it must be from 1 to 4096"),
        (lambda: Greedy(5, 2, 4, 1).deal(np.array([1, 2])), "rows must have two dimensions"),
        (lambda: Greedy(5, 2, 1, 1).deal(np.array([[1], [2]])), "2 more samples after 0 of 1"),
        (lambda: Greedy(5, 2, 4, 1).deal(np.array([[0, 5]])), "row 5 does not exist: rows are from 0 to 4"),
        (lambda: Greedy(5, 2, 4, 1).deal(np.array([[-1, 0]])), "row -1 does not exist"),
        (lambda: Greedy(5, 2, 4, 1).again(np.zeros(4, np.int32)), "homes of 4 rows: there are 5"),
        (lambda: Greedy(5, 2, 4, 1).again(np.full(5, 2, np.int32)), "home 2: it must be from 0 to 1, or -1"),
        (lambda: Readers(5).add(0, np.array([5])), "row 5 does not exist"),
        (lambda: Readers(5).add(-1, np.array([0])), "parts must ascend"),
    ],
)
def test_what_cannot_be_dealt(call: Callable[[], Any], said: str) -> None:
    with pytest.raises((ValueError, IndexError), match=said):
        call()


def test_a_sample_that_cannot_be_dealt_leaves_the_others_as_they_are() -> None:
    ids = grouped(seed=6, groups=4)
    with_error, without = Greedy(600, 4, 3000, 1), Greedy(600, 4, 3000, 1)
    with pytest.raises(IndexError, match="row 600"):
        with_error.deal(np.array([[0, 1, 2, 3], [0, 1, 2, 600]]))
    assert np.array_equal(with_error.deal(ids), without.deal(ids))


def test_the_labels_and_clusters_of_each_use_case() -> None:
    names: tuple[Placement, Placement] = ("label", "cluster")
    for name in names:
        ctr = CtrUseCase(CtrParams(rows=2000, placement=name), None, 1)
        first, second = (ctr._placement.share(rank, (64, 64)) for rank in (0, 1))
        samples = ctr._data.train.samples
        sizes = np.diff(ctr._data.first_rows.numpy(), append=ctr._data.rows)
        of = samples.label.numpy() if name == "label" else samples.ids[:, int(sizes.argmax())].numpy()
        assert of[first].max() <= of[second].min()
    for name, column in zip(names, (1, 0), strict=True):
        kge = KgeUseCase(KgeParams(triples=3000, placement=name), None, 1)
        first, second = (kge._placement.share(rank, (64, 64)) for rank in (0, 1))
        assert kge._graph.train[first, column].max() <= kge._graph.train[second, column].min()
    mf = MfUseCase(MfParams(ratings=3000, batch=64, placement="label"), None, 1)
    low, high = (
        mf._ratings.block.ratings[mf._split.train[mf._placement.share(rank, (64, 64))]] for rank in (0, 1)
    )
    assert low.max() <= high.min()


def test_a_placement_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="placement is 'metis': it must be one of random, greedy, label, cl"):
        KgeParams(placement="metis")  # type: ignore[arg-type]
    usecase = KgeUseCase(KgeParams(triples=3000, placement="greedy"), None, 1)
    with pytest.raises(ValueError, match="worker 2 of 2"):
        usecase.home_rows(2, 2)
    with pytest.raises(DataError, match="workers with batches of 256 need at least"):
        usecase.loaders(0, 100)
