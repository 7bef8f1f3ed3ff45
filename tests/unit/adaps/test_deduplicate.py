"""Distinct ids of a batch."""

import sys
import threading
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
    ids = np.arange(1_000_000)
    go, ran = threading.Lock(), threading.Event()

    def run() -> None:
        with go:
            ran.set()

    go.acquire()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    # From here on, the interpreter's lock is only let go of by who does so on purpose.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    try:
        go.release()
        for _ in range(1000):  # how soon the thread is let run is up to a busy system
            adaps.deduplicate(ids)
            if ran.is_set():
                break
        went_on = ran.is_set()
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert went_on
