"""AdaPM's interface, as its scripts use it, on one server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import adaps
import adaps.compat.adapm as adapm

NUM_KEYS, LENGTH = 1000, 2


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "DMLC_NUM_SERVER",
        "DMLC_ROLE",
        "DMLC_PS_ROOT_URI",
        "DMLC_PS_ROOT_PORT",
        "RANK",
        "WORLD_SIZE",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[adapm.Server]:
    adapm.setup(NUM_KEYS, 2, use_techniques="all", num_channels=4)
    lengths = torch.ones(NUM_KEYS) * LENGTH
    lengths[400] = 10
    server = adapm.Server(lengths)
    yield server
    server.shutdown()


@pytest.fixture
def kv(server: adapm.Server) -> adapm.Worker:
    return adapm.Worker(0, server)


def arrays(kind: str, keys: list[int]) -> tuple[Any, Any, Any]:
    """Keys, ones to push and an output."""
    if kind == "torch":
        return torch.LongTensor(keys), torch.ones(len(keys) * LENGTH), torch.zeros(len(keys) * LENGTH)
    ones = np.ones(len(keys) * LENGTH, dtype=np.float32)
    return np.array(keys), ones, np.zeros_like(ones)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_the_primitives(kv: adapm.Worker, kind: str) -> None:
    keys, ones, out = arrays(kind, [1, 333, 666, 960])
    kv.intent(keys, kv.current_clock() + 1)
    kv.advance_clock()
    kv.wait_sync()
    assert kv.current_clock() == 1
    kv.push(keys, ones)
    first, second = kv.push(keys, ones, True), kv.pull(keys, out, True)
    kv.wait(first)
    kv.wait(second)
    assert out.tolist() == [2] * 8
    kv.set(keys, ones)
    kv.waitall()
    assert kv.pull(keys, out) == -1
    assert out.tolist() == [1] * 8


def test_one_key_may_hold_a_longer_value(kv: adapm.Worker) -> None:
    out = torch.ones(10)
    kv.pull(torch.LongTensor([400]), out)
    assert out.tolist() == [0] * 10
    assert (kv.num_keys, kv.get_key_size(), kv.get_key_size(400), kv.get_key_size(999)) == (1000, 2, 10, 2)
    with pytest.raises(IndexError, match=r"key 1000 is not in \[0, 1000\)"):
        kv.get_key_size(1000)
    with pytest.raises(ValueError, match="holds 2 values, but 1 keys need 10"):
        kv.pull(torch.LongTensor([400]), torch.ones(2))


def test_keys_are_checked(kv: adapm.Worker) -> None:
    for key in (-1, NUM_KEYS):
        with pytest.raises(IndexError, match=rf"key {key} is not in \[0, 1000\)"):
            kv.pull(torch.LongTensor([key]), torch.ones(LENGTH))


def test_workers_meet_and_finalize(server: adapm.Server) -> None:
    def work(index: int) -> None:
        kv = adapm.Worker(index, server)
        kv.begin_setup()
        kv.end_setup()
        kv.push(torch.arange(10), torch.ones(20))
        kv.barrier()
        kv.finalize()

    server.barrier()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, range(2)))
    assert server.my_rank() == 0


def test_one_length_for_all_keys() -> None:
    adapm.setup(50, 1)
    server = adapm.Server(8)
    assert adapm.Worker(0, server).get_key_size(49) == 8
    server.shutdown()
    server.shutdown()


def test_the_former_name_of_wait_sync_warns(kv: adapm.Worker) -> None:
    with pytest.warns(DeprecationWarning, match="wait_sync"):
        kv.wait_replica_sync()


@pytest.mark.parametrize("technique", ["replication_only", "relocation_only", None, ""])
def test_techniques_have_their_names(technique: Any) -> None:
    adapm.setup(50, 1, technique)
    adapm.Server(torch.full((50,), 4)).shutdown()


def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"technique 'al' does not exist.*all, replication_only, relocation_only"
    ):
        adapm.setup(50, 1, "al")
    with pytest.raises(ValueError, match="num_threads is 0"):
        adapm.setup(50, 0)
    with pytest.raises(ValueError, match="num_channels is 0"):
        adapm.setup(50, 1, num_channels=0)
    adapm.setup(50, 1)
    with pytest.raises(ValueError, match="value_lengths has 49 elements; setup announced 50 keys"):
        adapm.Server(torch.ones(49))
    with pytest.raises(ValueError, match=r"value length of key 7 is 1\.5"):
        adapm.Server(torch.cat([torch.ones(7), torch.full((43,), 1.5)]))
    with pytest.raises(ValueError, match="length of table 'keys from 7' is 0"):
        adapm.Server(torch.cat([torch.ones(7), torch.zeros(43)]))
    monkeypatch.setenv("DMLC_NUM_SERVER", "2")
    with pytest.raises(adaps.RendezvousError, match="DMLC_ROLE is missing; a cluster needs DMLC_NUM_SERVER"):
        adapm.Server(1)
    monkeypatch.setenv("DMLC_ROLE", "server")
    with pytest.raises(adaps.RendezvousError, match="DMLC_PS_ROOT_URI is missing"):
        adapm.Server(1)
    with pytest.raises(
        adaps.RendezvousError, match="DMLC_ROLE is 'server' in a process that runs a scheduler"
    ):
        adapm.scheduler(50, 1)


@pytest.mark.parametrize("scheme", ["naive", "preloc", "pool", "local"])
@pytest.mark.parametrize("distribution", ["uniform", "log-uniform"])
def test_samples_are_drawn_of_the_keys_that_were_named(scheme: str, distribution: str) -> None:
    adapm.setup(NUM_KEYS, 1)
    lengths = torch.ones(NUM_KEYS) * LENGTH
    lengths[400] = 10
    server = adapm.Server(lengths)
    server.enable_sampling_support(scheme, True, distribution, 401, 411)
    kv = adapm.Worker(0, server)
    kv.set(np.arange(401, 411), np.repeat(np.arange(401, 411, dtype=np.float32), LENGTH))
    keys, vals = np.empty(3000, np.int64), np.empty((3000, LENGTH), np.float32)
    kv.pull_sample(kv.prepare_sample(3000, 0), keys, vals)
    assert (vals == keys[:, None]).all()
    counts = np.bincount(keys - 401, minlength=10)
    assert len(counts) == 10
    ranks = np.arange(10)
    probabilities = np.full(10, 0.1)
    if distribution == "log-uniform":
        probabilities = np.log((ranks + 2) / (ranks + 1)) / np.log(11)
    assert np.allclose(counts / 3000, probabilities, atol=0.06), counts  # six standard deviations
    assert [kv.get_key_size(key) for key in (0, 400, 405, 999)] == [LENGTH, 10, LENGTH, LENGTH]
    server.shutdown()


def test_without_replacement_no_key_comes_twice() -> None:
    adapm.setup(20, 1)
    server = adapm.Server(1)
    server.enable_sampling_support("local", False, "uniform", 0, 20)
    kv = adapm.Worker(0, server)
    keys, vals = torch.empty(20, dtype=torch.int64), torch.empty(20)
    kv.pull_sample(kv.prepare_sample(20, 0, 1), keys, vals)
    assert sorted(keys.tolist()) == list(range(20))
    server.shutdown()


def test_mistakes_of_sampling_are_named() -> None:
    adapm.setup(50, 1)
    lengths = torch.ones(50)
    lengths[7] = 2
    server = adapm.Server(lengths)
    with pytest.raises(ValueError, match=r"distribution 'zipf' does not exist.*uniform, log-uniform"):
        server.enable_sampling_support("local", True, "zipf", 0, 5)
    with pytest.raises(ValueError, match=r"sampling scheme 'far' does not exist.*naive"):
        server.enable_sampling_support("far", True, "uniform", 0, 5)
    for first, end in ((5, 9), (40, 51), (9, 9), (-1, 3)):
        with pytest.raises(ValueError, match=f"keys {first} to {end - 1}: they must be in .0, 50."):
            server.enable_sampling_support("local", True, "uniform", first, end)
    kv = adapm.Worker(0, server)
    with pytest.raises(adaps.AdapsError, match="no sampling is configured"):
        kv.prepare_sample(3, 0)
    with pytest.raises(adaps.AdapsError, match="once, before the first Worker"):
        server.enable_sampling_support("local", True, "uniform", 10, 20)
    server.shutdown()
