"""Two nodes at the edges: other settings, tensors that let go of their memory, full queues, MACs."""

import pytest

from tests.conftest import RunRanks
from tests.integration.test_adaps_cluster import output_of_two

NODE = "adaps.Node([adaps.Table('emb', 1000, 16_384)], techniques='static', network='30ms,10gbit')"

AWAY = """
import numpy as np, adaps, torch
with NODE as node:
    kv = node.worker(0)
    kv.begin_setup()
    if node.rank == 1:
        kv.set(np.arange(1000), np.ones((1000, 16_384), dtype=np.float32))
    kv.end_setup()
    if node.rank == 0:
        keys = np.arange(1000)
        out = torch.empty(1000, 16_384)  # memory of its own, which the system takes back at once
        ticket = kv.pull(keys, out, asynchronous=True)
        CHANGE
        kv.wait(ticket)
        kv.pull([3, 4], torch.empty(2, 16_384))
    kv.barrier()
print("fine")
"""


@pytest.mark.parametrize(
    "change",
    [
        "out.data = torch.empty(1)",
        "out.set_()",
        "del out",
        """
        try:
            out.untyped_storage().resize_(0)
        except RuntimeError as error:
            assert "not resizable" in str(error)
        else:
            raise AssertionError("the storage was resized")
""",
    ],
)
def test_a_tensor_that_lets_go_of_its_memory_does_not_harm_a_pull(run_ranks: RunRanks, change: str) -> None:
    script = AWAY.replace("NODE", NODE).replace("CHANGE", change.strip())
    assert output_of_two(run_ranks, script) == ["fine\n", "fine\n"]


@pytest.mark.parametrize(
    ("option", "values", "told"),
    [
        ("workers", ("1", "2"), ("different numbers of workers", "1", "2")),
        ("techniques", ("'adaptive'", "'static'"), ("different techniques", "adaptive", "static")),
        ("nonfinite", ("'raise'", "'skip'"), ("policies for gradients that are not finite", "raise", "skip")),
        ("frame_mac", ("False", "True"), ("different kinds of frames", "without one", "with a MAC")),
    ],
)
def test_nodes_with_other_settings_do_not_join(
    run_ranks: RunRanks, option: str, values: tuple[str, str], told: tuple[str, str, str]
) -> None:
    program = f"""
import adaps, os
value = [{values[0]}, {values[1]}][int(os.environ["RANK"])]
try:
    adaps.Node([adaps.Table("emb", 10, 4)], connect_timeout=60, {option}=value)
except adaps.AdapsError as error:
    print("refused:", error)
"""
    start, first, second = told
    for out in output_of_two(run_ranks, program):
        assert out.startswith("refused:"), out
        # Each names the other's value first.
        assert f"{start}, {first} and {second};" in out or f"{start}, {second} and {first};" in out, out


def test_pushes_that_nobody_awaits_wait_for_room_and_nothing_is_lost(run_ranks: RunRanks) -> None:
    program = """
import numpy as np, adaps, resource
with adaps.Node([adaps.Table("emb", 64, 16_384)], techniques="static", network="1ms,400mbit",
                max_queued_bytes=2_000_000) as node:
    kv = node.worker(0)
    keys = np.arange(64)
    ones = np.ones((64, 16_384), dtype=np.float32)
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
    assert grown < 30, grown
print("fine")
"""
    assert output_of_two(run_ranks, program) == ["fine\n", "fine\n"]


def test_nodes_whose_frames_carry_macs_work_as_others(
    run_ranks: RunRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPS_FRAME_MAC", "1")
    program = """
import numpy as np, adaps
with adaps.Node([adaps.Table("emb", 1000, 64)], channels=2) as node:
    kv = node.worker(0)
    keys = np.arange(1000)
    for step in range(10):
        kv.intent(keys, step + 1, step + 3)
        kv.push(keys, np.ones((1000, 64), dtype=np.float32), asynchronous=True)
        kv.advance_clock()
    kv.waitall()
    kv.end_setup()
    out = np.empty((1000, 64), dtype=np.float32)
    kv.pull(keys, out)
    assert (out == 10 * node.world_size).all()
print("fine")
"""
    assert output_of_two(run_ranks, program) == ["fine\n", "fine\n"]
