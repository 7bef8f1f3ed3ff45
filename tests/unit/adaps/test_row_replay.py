"""Replays of ids: hit ratios of a recommender's requests, and admission in a workload."""

import lzma
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import adaps
from adaps.policy import Admission, Eviction

Ids = npt.NDArray[np.int64]


def skewed(requests: int, distinct: int) -> Ids:
    """Return ids with frequencies in proportion to 1 / rank."""
    random = np.random.default_rng(3)
    return np.exp(random.uniform(0, np.log(distinct), requests)).astype(np.int64) * 2**40 - 2**62


def exact_lru_hits(ids: Ids, capacity: int) -> int:
    rows: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for each in ids.tolist():
        if each in rows:
            hits += 1
            rows.move_to_end(each)
        else:
            rows[each] = None
            if len(rows) > capacity:
                rows.popitem(last=False)
    return hits


def test_lru_is_exact_if_all_rows_are_examined_and_nearly_exact_otherwise() -> None:
    ids = skewed(20_000, 3_000)
    assert adaps.replay_rows(ids, 50, evict="lru").hits == exact_lru_hits(ids, 50)
    found, exact = adaps.replay_rows(ids, 600, evict="lru").hits, exact_lru_hits(ids, 600)
    assert found == pytest.approx(exact, rel=0.02)


def test_rows_for_all_ids_leave_only_first_requests_without_a_hit() -> None:
    ids = skewed(5_000, 1_000)
    found = adaps.replay_rows(ids, 1_000)
    assert (found.created, found.full) == (len(np.unique(ids)), 0)
    assert found.hits == len(ids) - found.created
    assert adaps.replay_rows([], 3).hit_ratio == 0


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"capacity": 0}, "capacity is 0; it must be a positive integer"),
        ({"evict": "mru"}, "evict 'mru' does not exist.*valid are intent, lru, lfu, { ttl = … }"),
        ({"evict": {"ttl": 0}}, "evict ttl is 0; it must be an integer from 1 to 262144"),
        ({"evict": {"tll": 3}}, r"evict has no field 'tll' \(did you mean 'ttl'\?\)"),
        ({"admit": {"seen": 9}}, "admit seen is 9; it must be an integer from 1 to 8"),
        ({"admit": 3}, re.escape("admit is 3; it must be { seen = … }")),
        ({"lookahead": -1}, "lookahead is -1; it must be 0 or more batches"),
        ({"batch": 0}, "batch is 0; it must be a positive integer"),
    ],
)
def test_wrong_arguments_are_refused(changed: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        adaps.replay_rows([1, 2], **{"capacity": 5, **changed})


def test_ids_are_integers() -> None:
    with pytest.raises(TypeError, match="ids is an array of float64; it must be of integers"):
        adaps.replay_rows([1.5, 1.0], 5)
    with pytest.raises(TypeError, match="'emb' in the stream of worker 0 is an array of float64"):
        adaps.simulate([adaps.Stream([{"emb": [0.5]}])] * 2, tables=[adaps.Table("emb", 9, 1)])
    assert adaps.replay_rows([], 5).requests == 0


@pytest.fixture(scope="module")
def trace(shared_data: Path) -> Ids:
    """Return the requests of a recommender's cache."""
    with lzma.open(shared_data / "access_traces" / "scarab-recs.trace.xz") as file:
        return np.frombuffer(file.read(), dtype=">i8").astype(np.int64)


DISTINCT = 258_368
LRU = {1: 0.347, 5: 0.517, 10: 0.606, 25: 0.721}
BELADY = {1: 0.534, 5: 0.690, 10: 0.750, 25: 0.793}
W_TINYLFU = {1: 0.419, 5: 0.542, 10: 0.593, 25: 0.663}
"""Hit ratios of the trace, by percent of the distinct ids that have rows; W-TinyLFU is the library theine."""


@pytest.mark.parametrize("percent", LRU)
def test_intent_has_more_hits_than_lru_and_w_tinylfu_on_a_trace(percent: int, trace: Ids) -> None:
    rows = DISTINCT * percent // 100
    found = adaps.replay_rows(trace, rows, evict="intent").hit_ratio
    assert found >= max(LRU[percent], W_TINYLFU[percent])


@pytest.mark.parametrize("percent", [1, 5])
def test_announced_ids_save_half_of_the_misses_that_can_be_saved(percent: int, trace: Ids) -> None:
    rows = DISTINCT * percent // 100
    found = adaps.replay_rows(trace, rows, evict="intent", lookahead=20, batch=1024)
    assert found.hit_ratio >= (LRU[percent] + BELADY[percent]) / 2


def test_lru_and_the_optimum_have_the_known_hit_ratios_on_a_trace(trace: Ids) -> None:
    rows = DISTINCT // 10
    assert adaps.replay_rows(trace, rows, evict="lru").hit_ratio == pytest.approx(LRU[10], abs=0.002)
    known = adaps.replay_rows(trace, rows, evict="intent", lookahead=len(trace), batch=1)
    assert known.hit_ratio == pytest.approx(BELADY[10], abs=0.0005)


def requests_of_workload(file: Path, rows: int) -> Ids:
    """Return requests in random order with the mean frequencies of the tables of a workload."""
    shares = re.findall(r"\((\d+), (\d+)\]: ([\d.]+)", file.read_text().split("Ratio of index")[0])
    random = np.random.default_rng(1)
    counts = np.concatenate(
        [
            random.integers(int(low) + 1, int(high) + 1, round(float(share) * rows))
            for low, high, share in shares
        ]
    )
    ids = random.integers(-(2**62), 2**62, len(counts))
    return random.permutation(np.repeat(ids, counts))


def test_rare_ids_of_a_workload_get_no_row_with_admission(shared_data: Path) -> None:
    ids = requests_of_workload(shared_data / "access_traces" / "dlrm_locality_2022.txt", 100_000)
    distinct = len(np.unique(ids))
    assert adaps.replay_rows(ids, distinct).created == distinct
    assert adaps.replay_rows(ids, distinct, admit={"seen": 3}).created <= 0.55 * distinct


def test_settings_can_be_given_as_objects() -> None:
    ids = skewed(2_000, 500)
    assert adaps.replay_rows(ids, 20, evict=Eviction("lru"), admit=Admission(2)) == adaps.replay_rows(
        ids, 20, evict="lru", admit={"seen": 2}
    )
