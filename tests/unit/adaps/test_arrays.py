"""Arrays from callers: which are used as they are, and which are refused with advice."""

import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import adaps

ROWS, LENGTH = 10, 4


@pytest.fixture
def node() -> Iterator[adaps.Node]:
    tables = [adaps.Table("emb", ROWS, LENGTH), adaps.Table("wide", 5, 1)]
    with adaps.Node(tables) as node:
        yield node


@pytest.fixture
def kv(node: adaps.Node) -> adaps.Worker:
    return node.worker(0)


def ones(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones((count, LENGTH), dtype=np.float32)


@pytest.mark.parametrize(
    "keys",
    [
        np.array([1, 3]),
        np.array([1, 3], dtype=np.longlong),
        np.array([[1, 3]]),
        torch.tensor([1, 3]),
        torch.tensor([0, 1, 3])[1:],
        [1, 3],
        (1, 3),
        range(1, 4, 2),
        array.array("q", [1, 3]),
    ],
    ids=lambda keys: type(keys).__name__,
)
@pytest.mark.parametrize("kind", ["numpy", "torch", "buffer", "flat"])
def test_every_kind_of_array_works_without_a_copy(kv: adaps.Worker, keys: Any, kind: str) -> None:
    kv.push(keys, ones(2))
    out: Any = {
        "numpy": np.zeros((2, LENGTH), dtype=np.float32),
        "torch": torch.zeros(2, LENGTH),
        "buffer": array.array("f", [0.0] * 2 * LENGTH),
        "flat": torch.zeros(2 * LENGTH),
    }[kind]
    kv.pull(keys, out)
    np.testing.assert_array_equal(np.asarray(out).ravel(), np.ones(2 * LENGTH))


class OnlyDLPack:
    """An array of an unknown library."""

    def __init__(self, content: Any) -> None:
        self._content = content

    def __dlpack__(self, **options: Any) -> Any:
        return self._content.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._content.__dlpack_device__()


def test_objects_that_speak_dlpack_work(kv: adaps.Worker) -> None:
    kv.push(OnlyDLPack(np.array([2])), OnlyDLPack(ones(1)))
    out = np.zeros(LENGTH, dtype=np.float32)
    kv.pull([2], OnlyDLPack(out))
    np.testing.assert_array_equal(out, np.ones(LENGTH))


def test_no_keys_are_fine(kv: adaps.Worker) -> None:
    kv.pull([], np.empty(0, dtype=np.float32))
    kv.push(torch.empty(0, dtype=torch.int64), torch.empty(0, LENGTH))


def read_only(content: Any) -> Any:
    content.flags.writeable = False
    return content


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.empty(LENGTH), TypeError, "out has dtype float64 where float32 is needed: allocate"),
        (np.empty(LENGTH, dtype=np.float16), TypeError, "dtype float16"),
        (np.empty(LENGTH, dtype=np.int32), TypeError, "dtype int32"),
        (np.empty(LENGTH, dtype=">f4"), TypeError, "dtype >f4"),
        (torch.empty(LENGTH, dtype=torch.float64), TypeError, r"float64 .* dtype=torch\.float32"),
        (torch.empty(LENGTH, dtype=torch.bfloat16), TypeError, "bfloat16"),
        (torch.empty(2 * LENGTH)[::2], ValueError, "out is not C-contiguous: allocate"),
        (np.empty(2 * LENGTH, dtype=np.float32)[::2], ValueError, "not C-contiguous"),
        (np.empty((2, LENGTH), dtype=np.float32, order="F"), ValueError, "not C-contiguous"),
        (np.frombuffer(bytearray(17), np.float32, 4, 1), ValueError, "not C-contiguous"),
        (np.empty(LENGTH - 1, dtype=np.float32), ValueError, "holds 3 values, but 1 keys need 4"),
        (np.empty(LENGTH + 1, dtype=np.float32), ValueError, "holds 5 values, but 1 keys need 4"),
        (read_only(np.empty(LENGTH, dtype=np.float32)), ValueError, "out is read-only"),
        (bytes(16), TypeError, "dtype uint8"),
        (torch.empty(LENGTH, requires_grad=True), ValueError, r"requires grad.*out\.detach\(\)"),
        (torch.empty(LENGTH, device="meta"), ValueError, "out is not in the memory of the CPU"),
        (torch.zeros(LENGTH).to_sparse(), ValueError, "layout torch.sparse_coo"),
        (torch._neg_view(torch.zeros(LENGTH)), ValueError, "lazily negated"),
        ([0.0] * LENGTH, TypeError, "out is of type list"),
        (None, TypeError, "out is of type NoneType"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(
    kv: adaps.Worker, out: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kv.pull([1], out)


@pytest.mark.parametrize("call", ["push", "push_gradients", "set"])
@pytest.mark.parametrize(
    ("values", "error", "cure"),
    [
        (np.ones(LENGTH), TypeError, r"astype\(numpy.float32\)"),
        (torch.ones(LENGTH, dtype=torch.float16), TypeError, r"to\(torch.float32\)"),
        (torch.ones(2 * LENGTH)[::2], ValueError, r"contiguous\(\)"),
        (np.ones(2 * LENGTH, dtype=np.float32)[::2], ValueError, r"numpy.ascontiguousarray"),
    ],
)
def test_values_that_cannot_be_read_are_refused(
    kv: adaps.Worker, call: str, values: Any, error: type[Exception], cure: str
) -> None:
    with pytest.raises(error, match=cure):
        getattr(kv, call)([1], values)
    out = np.empty(LENGTH, dtype=np.float32)
    kv.pull([1], out)
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (np.array([1, 2], dtype=np.int32), TypeError, r"keys has dtype int32.*astype\(numpy.int64\)"),
        (torch.tensor([1, 2], dtype=torch.int32), TypeError, r"keys has dtype int32.*to\(torch.int64\)"),
        (np.array([1, 2], dtype=np.uint64), TypeError, "uint64"),
        ([1.0, 2.0], TypeError, "keys holds something other than integers"),
        (np.array([1, 9, 2, 9])[::2], ValueError, "keys is not C-contiguous"),
        (torch.tensor([1, 9, 2, 9])[::2], ValueError, "keys is not C-contiguous"),
        ([1, -2], IndexError, r"key -2 is not in \[0, 15\)"),
        (np.array([1, 15]), IndexError, r"key 15 is not in \[0, 15\)"),
        (torch.tensor([2**62, 1]), IndexError, "key 4611686018427387904"),
        ([2**63, 1], TypeError, "keys holds something other than integers"),
        ({1, 2}, TypeError, "keys is of type set"),
    ],
)
@pytest.mark.parametrize("call", ["pull", "push", "set", "push_gradients", "intent", "trace"])
def test_bad_keys_are_refused_by_every_call(
    node: adaps.Node, kv: adaps.Worker, call: str, keys: Any, error: type[Exception], message: str
) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "intent": lambda: kv.intent(keys, 0),
        "trace": lambda: node.trace(keys),
        "push": lambda: kv.push(keys, ones(2)),
        "push_gradients": lambda: kv.push_gradients(keys, ones(2)),
        "set": lambda: kv.set(keys, ones(2)),
        "pull": lambda: kv.pull(keys, ones(2)),
    }
    with pytest.raises(error, match=message):
        calls[call]()


def test_nothing_is_done_when_one_key_is_bad(kv: adaps.Worker) -> None:
    out = np.full((3, LENGTH), 7.0, dtype=np.float32)
    with pytest.raises(IndexError):
        kv.pull([1, 2, 15], out)
    np.testing.assert_array_equal(out, 7)
    with pytest.raises(IndexError):
        kv.push([1, 2, -1], ones(3))
    kv.pull([1, 2, 3], out)
    np.testing.assert_array_equal(out, 0)


def test_read_only_values_may_be_read(kv: adaps.Worker) -> None:
    kv.push([1], read_only(ones(1)))


def test_values_of_tables_of_different_lengths_follow_each_other(node: adaps.Node, kv: adaps.Worker) -> None:
    keys = [*node.table("emb").keys([1]), *node.table("wide").keys([1])]
    kv.push(keys, np.arange(LENGTH + 1, dtype=np.float32))
    out = np.empty(LENGTH + 1, dtype=np.float32)
    kv.pull(keys, out)
    np.testing.assert_array_equal(out, np.arange(LENGTH + 1))
