"""Distinct ids of a batch."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import adaps

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.one_of(st.integers(-5, 5), INT64), max_size=300))
def test_ids_come_once_in_the_order_of_their_first_occurrence(ids: list[int]) -> None:
    unique, inverse = adaps.deduplicate(np.array(ids, dtype=np.int64))
    assert unique.tolist() == list(dict.fromkeys(ids))
    assert unique[inverse].tolist() == ids


@pytest.mark.parametrize("stride", [1, 2, 64, 4096, 2**20, 2**40])
def test_strided_ids_beyond_the_first_table_size(stride: int) -> None:
    ids = np.concatenate([np.arange(5000) * stride, np.arange(5000)[::-1] * stride])
    unique, inverse = adaps.deduplicate(ids)
    np.testing.assert_array_equal(unique, np.arange(5000) * stride)
    np.testing.assert_array_equal(unique[inverse], ids)


def test_the_kind_and_shape_of_the_input_are_kept() -> None:
    unique, inverse = adaps.deduplicate(torch.tensor([[5, 7], [5, 1]]))
    assert isinstance(unique, torch.Tensor)
    assert unique.tolist() == [5, 7, 1]
    assert inverse.tolist() == [[0, 1], [0, 2]]
    unique_array, inverse_array = adaps.deduplicate(np.array([[5, 7], [5, 1]]))
    assert isinstance(unique_array, np.ndarray)
    assert inverse_array.tolist() == [[0, 1], [0, 2]]
    assert adaps.deduplicate([2, 2])[0].tolist() == [2]
    assert [x.shape for x in adaps.deduplicate(torch.empty(0, 3, dtype=torch.int64))] == [(0,), (0, 3)]


def test_the_first_key_is_added_to_the_distinct_ids_only() -> None:
    unique, inverse = adaps.deduplicate(torch.tensor([3, 1, 3]), first_key=100)
    assert unique.tolist() == [103, 101]
    assert inverse.tolist() == [0, 1, 0]


@pytest.mark.parametrize("ids", [np.array([1.0]), torch.tensor([1], dtype=torch.int32)])
def test_other_types_are_refused(ids: Any) -> None:
    with pytest.raises(TypeError, match=r"ids has dtype .* where int64 is needed"):
        adaps.deduplicate(ids)


def test_other_threads_go_on_meanwhile() -> None:
    ids = np.arange(3_000_000)
    ticks = 0
    ended = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not ended.is_set():
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    adaps.deduplicate(ids)
    during = ticks - before
    ended.set()
    thread.join()
    # With the GIL held there would be none; switching threads alone takes 5 ms a turn.
    assert during > 1000


def test_a_batch_is_deduplicated_quicker_than_torch_does() -> None:
    ids = torch.from_numpy(np.random.default_rng(0).zipf(1.3, 26 * 4096) % 1_000_000)

    def seconds(function: Any) -> float:
        times = []
        for _ in range(9):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
        return min(times)

    ours = seconds(lambda: adaps.deduplicate(ids))
    theirs = seconds(lambda: torch.unique(ids, return_inverse=True))
    assert ours < theirs / 1.5
