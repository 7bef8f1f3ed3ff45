"""Samples that the server draws: calls, arguments, and counters."""

import pickle
from typing import Any, cast

import numpy as np
import pytest
import torch

import adaps
from adaps._typing import SamplingScheme

ROWS = 50
loose = cast("Any", adaps)


def table(scheme: SamplingScheme = "local", **options: Any) -> adaps.Table:
    sampling = adaps.Sampling(adaps.LogUniform(), scheme, **options)
    return adaps.Table("rows", rows=ROWS, length=3, init=adaps.Uniform(-1, 1, seed=1), sampling=sampling)


@pytest.mark.parametrize("scheme", adaps.SAMPLING_SCHEMES)
def test_a_sample_has_rows_and_their_values(scheme: SamplingScheme) -> None:
    first = adaps.Table("first", rows=7, length=2)  # so that keys are no rows
    with adaps.Node([first, table(scheme)]) as node:
        kv, rows = node.worker(0), node.table("rows")
        sample = kv.prepare_sample(rows, 20, kv.current_clock)
        drawn, values = np.full(20, -1), np.empty((20, 3), dtype=np.float32)
        assert kv.pull_sample(sample, drawn, values) is None
        assert ((drawn >= 0) & (drawn < ROWS)).all()
        expected = np.empty_like(values)
        kv.pull(rows.keys(drawn), expected)
        np.testing.assert_array_equal(values, expected)
        counted = rows.stats()
        assert counted["sampled_local"] == 20
        assert counted["pulled_local"] == 40
        assert counted["sampled_replica"] == counted["sampled_remote"] == counted["sampled_fallback"] == 0
        assert node.table("first").stats()["sampled_local"] == 0


def test_rows_alone_are_drawn_without_reading() -> None:
    with adaps.Node([table("naive")]) as node:
        kv, rows = node.worker(0), node.table("rows")
        samples = [kv.prepare_sample(rows, 5, 0, 3) for _ in range(2)]
        drawn = torch.empty(5, dtype=torch.int64)
        kv.pull_sample(samples[1], drawn)
        values = torch.empty(5, 3)
        ticket = kv.pull_sample(samples[0], torch.empty_like(drawn), values, asynchronous=True)
        assert ticket is not None
        kv.wait(ticket)
        assert rows.stats()["pulled_local"] == 5


def test_the_same_seed_draws_the_same_rows() -> None:
    def drawn(seed: int, scheme: SamplingScheme = "local") -> list[int]:
        with adaps.Node([table(scheme, seed=seed)]) as node:
            kv, out = node.worker(0), np.empty(30, dtype=np.int64)
            kv.pull_sample(kv.prepare_sample(node.table("rows"), 30, 0), out)
            return out.tolist()

    assert drawn(4) == drawn(4) == drawn(4, "naive") == drawn(4, "preloc")
    assert drawn(4) != drawn(5)


def test_a_distribution_alone_is_drawn_from_by_the_scheme_local() -> None:
    assert adaps.Table("rows", rows=3, length=1, sampling=adaps.Uniform()) == adaps.Table(
        "rows", rows=3, length=1, sampling=adaps.Sampling(adaps.Uniform(), "local")
    )
    weights = adaps.Weighted(torch.tensor([0.0, 2.0, 0.0]))
    with adaps.Node([adaps.Table("rows", rows=3, length=1, sampling=weights)]) as node:
        kv, out = node.worker(0), np.empty(9, dtype=np.int64)
        kv.pull_sample(kv.prepare_sample(node.table("rows"), 9, 0), out)
        assert out.tolist() == [1] * 9


def test_weights_are_equal_by_their_values_and_stay_as_they_are() -> None:
    given = np.array([1.0, 2.0])
    weights = adaps.Weighted(given)
    given[0] = 5.0
    assert weights == adaps.Weighted([1, 2])
    assert hash(weights) == hash(adaps.Weighted([1, 2]))
    assert weights != adaps.Weighted([1, 3])
    assert pickle.loads(pickle.dumps(weights)) == weights
    with pytest.raises(ValueError, match="read-only"):
        weights.weights[0] = 3.0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: loose.Table("t", 3, 1, sampling=4), TypeError, "sampling of table 't' is 4; it must be"),
        (lambda: loose.Sampling(4), TypeError, "distribution is 4; it must be an adaps.Uniform"),
        (lambda: loose.Sampling(adaps.Uniform(0, 2)), ValueError, r"drawn by Uniform\(\) without bounds"),
        (
            lambda: loose.Sampling(scheme="locals"),
            ValueError,
            "'locals' does not exist .did you mean 'local'",
        ),
        (lambda: loose.Sampling(replacement=2), TypeError, "replacement is 2; it must be True or False"),
        (lambda: loose.Sampling(seed=-1), ValueError, "seed is -1"),
        (lambda: loose.Sampling(pool_size=0), ValueError, "pool_size is 0; it must be a positive integer"),
        (lambda: loose.Sampling(reuse=1.5), TypeError, "reuse is 1.5; it must be a positive integer"),
        (lambda: loose.Weighted([[1.0]]), ValueError, r"weights has the shape \(1, 1\)"),
        (lambda: loose.Weighted([]), ValueError, r"weights has the shape \(0,\)"),
        (lambda: loose.Weighted([1, -2]), ValueError, "the weight of row 1 is -2"),
        (lambda: loose.Weighted([0, 0]), ValueError, "no row has a weight above 0"),
        (
            lambda: loose.Table("t", 4, 1, sampling=adaps.Weighted([1, 2])),
            ValueError,
            "2 weights for a table of 4 rows",
        ),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_samples_that_cannot_be_are_refused() -> None:
    plain = adaps.Table("plain", rows=3, length=1)
    with adaps.Node([table(replacement=False), plain]) as node, adaps.Node([table()]) as other:
        kv, rows = node.worker(0), node.table("rows")
        with pytest.raises(ValueError, match="n is -3; a sample needs at least 1 row"):
            kv.prepare_sample(rows, -3, 0)
        with pytest.raises(ValueError, match="51 rows of table 'rows'; at most 50 are possible without"):
            kv.prepare_sample(rows, ROWS + 1, 0)
        with pytest.raises(ValueError, match=r"clocks \[2, 2\) is empty"):
            kv.prepare_sample(rows, 1, 2, 2)
        with pytest.raises(ValueError, match="table 'plain' has no sampling"):
            kv.prepare_sample(node.table("plain"), 1, 0)
        with pytest.raises(ValueError, match="table 'rows' belongs to another node"):
            kv.prepare_sample(other.table("rows"), 1, 0)
        sample = kv.prepare_sample(rows, ROWS, 0)
        out, values = np.empty(ROWS, dtype=np.int64), np.empty((ROWS, 3), dtype=np.float32)
        with pytest.raises(ValueError, match="room for 2 rows, but the sample has 50"):
            kv.pull_sample(sample, out[:2])
        with pytest.raises(ValueError, match="holds 6 values, but 50 rows need 150"):
            kv.pull_sample(sample, out, values[:2])
        with pytest.raises(TypeError, match="rows_out has dtype int32"):
            kv.pull_sample(sample, cast("Any", out.astype(np.int32)))
        kv.pull_sample(sample, out, values)
        assert sorted(out) == list(range(ROWS))
        with pytest.raises(ValueError, match="sample 0 was read already"):
            kv.pull_sample(sample, out, values)
        with pytest.raises(ValueError, match="sample 9 was never prepared"):
            kv.pull_sample(9, out, values)
