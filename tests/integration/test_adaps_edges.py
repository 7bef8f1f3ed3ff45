"""Two nodes at the edges: other settings, tensors that let go of their memory, full queues, MACs."""

import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import adaps
from tests.conftest import Launch

from .guarantees.common import RANK


def not_resizable(tensors: list[torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match="not resizable"):
        tensors[0].untyped_storage().resize_(0)


CHANGES: dict[str, Callable[[list[torch.Tensor]], object]] = {
    "other data": lambda tensors: setattr(tensors[0], "data", torch.empty(1)),
    "no storage": lambda tensors: tensors[0].set_(),  # type: ignore[call-overload]
    "deleted": lambda tensors: tensors.clear(),
    "resized": not_resizable,
}


def pulled_into(change: str) -> dict[str, Any]:
    table = adaps.Table("emb", 1000, 16_384)
    with adaps.Node([table], techniques="static", network="30ms,10gbit") as node:
        kv = node.worker(0)
        kv.begin_setup()
        if node.rank == 1:
            kv.set(np.arange(1000), np.ones((1000, 16_384), dtype=np.float32))
        kv.end_setup()
        if node.rank == 0:
            keys = np.arange(1000)
            tensors = [torch.empty(1000, 16_384)]  # memory of its own, which the system takes back at once
            ticket = kv.pull(keys, tensors[0], asynchronous=True)
            assert ticket is not None
            CHANGES[change](tensors)
            kv.wait(ticket)
            kv.pull([3, 4], torch.empty(2, 16_384))
        kv.barrier()
    return {}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tensor_that_lets_go_of_its_memory_does_not_harm_a_pull(launch: Launch, change: str) -> None:
    launch(pulled_into, 2, change=change)


def joined(option: str, values: tuple[Any, Any]) -> dict[str, Any]:
    value = values[RANK]
    tables = [adaps.Table("emb", value if option == "rows" else 10, 4)]
    options: dict[str, Any] = {} if option == "rows" else {option: value}
    with pytest.raises(adaps.AdapsError) as refused:
        adaps.Node(tables, connect_timeout=60, **options)
    return {"refused": str(refused.value)}


@pytest.mark.parametrize(
    ("option", "values", "told"),
    [
        ("workers", (1, 2), ("different numbers of workers", "1", "2")),
        ("techniques", ("adaptive", "static"), ("different techniques", "adaptive", "static")),
        ("nonfinite", ("raise", "skip"), ("policies for gradients that are not finite", "raise", "skip")),
        ("frame_mac", (False, True), ("different kinds of frames", "without one", "with a MAC")),
    ],
)
def test_nodes_with_other_settings_do_not_join(
    launch: Launch, option: str, values: tuple[Any, Any], told: tuple[str, str, str]
) -> None:
    start, first, second = told
    for rank in launch(joined, 2, option=option, values=values):
        # Each names the other's value first.
        expected = {f"{start}, {first} and {second};", f"{start}, {second} and {first};"}
        assert any(text in rank["refused"] for text in expected), rank


def test_nodes_with_different_tables_do_not_join(launch: Launch) -> None:
    for rank in launch(joined, 2, option="rows", values=(10, 11)):
        assert "different tables; every node must be given the same ones" in rank["refused"]


def pushed_without_waiting() -> dict[str, Any]:
    with adaps.Node(
        [adaps.Table("emb", 64, 16_384)],
        techniques="static",
        network="1ms,400mbit",
        max_queued_bytes=2_000_000,
    ) as node:
        kv = node.worker(0)
        keys, ones = np.arange(64), np.ones((64, 16_384), dtype=np.float32)
        kv.push(keys, ones)
        kv.barrier()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(25):  # 50 MB to the other node: a second on the wire
            kv.push(keys, ones, asynchronous=True)
            assert node.stats()["queued_bytes"] < 2_000_000 + 64 * 70_000
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
        assert node.stats()["queue_full_micros"] > 0
        kv.waitall()
        kv.end_setup()
        out = np.empty_like(ones)
        kv.pull(keys, out)
        assert (out == 26 * node.world_size).all()
    return {"grown": grown}


def test_pushes_that_nobody_awaits_wait_for_room_and_nothing_is_lost(launch: Launch) -> None:
    for rank in launch(pushed_without_waiting, 2):
        assert rank["grown"] < 30


def summed() -> dict[str, Any]:
    with adaps.Node([adaps.Table("emb", 1000, 64)], channels=2) as node:
        kv, keys = node.worker(0), np.arange(1000)
        for step in range(10):
            kv.intent(keys, step + 1, step + 3)
            kv.push(keys, np.ones((1000, 64), dtype=np.float32), asynchronous=True)
            kv.advance_clock()
        kv.waitall()
        kv.end_setup()
        out = np.empty((1000, 64), dtype=np.float32)
        kv.pull(keys, out)
        assert (out == 10 * node.world_size).all()
    return {}


def test_nodes_whose_frames_carry_macs_work_as_others(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPS_FRAME_MAC", "1")
    launch(summed, 2)
