"""Peer systems say where they cannot run, share tables out whole, and train other use cases as well."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn

from adabench.backends._peer import replace_tables
from adabench.backends.protocol import Cluster, Unavailable
from adabench.backends.rpc import RemoteTable
from adabench.backends.torchrec import TorchRec
from adabench.harness.plugins.registry import load_backend
from adabench.usecases.ctr.task import CtrParams, CtrUseCase
from adabench.usecases.gcn.task import GcnParams, GcnUseCase

PEERS = ["ddp", "rpc", "torchrec"]
STEPS = 10


def unshared(make: Callable[[], Any]) -> Any:
    raise AssertionError("nothing may be opened")


ONE = Cluster(rank=0, world_size=1, worker=0, workers=1, seed=1, network="loopback", share=unshared)


def test_torchrec_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="torchrec is not installed: say 'make peers'"):
        TorchRec()


@pytest.mark.parametrize("name", ["ddp", "rpc"])
def test_peers_have_one_worker_a_process_and_no_shaped_links(name: str) -> None:
    usecase = CtrUseCase(CtrParams(rows=1400), None, 1)
    backend = load_backend(name)()
    with pytest.raises(Unavailable, match=f"{name} has one worker per process, not 2"):
        backend.open(usecase, replace(ONE, workers=2), backend.Options())
    with pytest.raises(Unavailable, match="sockets of its own, which the network 'lan' does not slow down"):
        backend.open(usecase, replace(ONE, world_size=2, network="lan"), backend.Options())


def test_tables_that_do_more_than_look_up_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True, max_norm=1.0))
    with pytest.raises(Unavailable, match="table 0 uses max_norm"):
        replace_tables(model, lambda name, table: nn.Identity())
    kept = nn.Sequential(nn.Embedding(5, 2))
    replace_tables(kept, lambda name, table: nn.Identity())
    assert isinstance(kept[0], nn.Embedding)  # its gradient is dense, like that of any other layer


@pytest.mark.parametrize(("rows", "world"), [(10, 1), (10, 3), (2, 3)])
def test_blocks_of_all_processes_are_the_table(rows: int, world: int) -> None:
    weight = torch.arange(float(rows))[:, None]
    tables = [RemoteTable(0, rows, replace(ONE, rank=rank, world_size=world)) for rank in range(world)]
    assert torch.equal(torch.cat([table.own_block(weight) for table in tables]), weight)


@pytest.mark.parametrize("name", PEERS)
def test_peers_train_graphs_as_plain_pytorch_does(name: str) -> None:
    """A use case that does not say where features begin; its ids have one dimension."""
    expected = losses("single")
    assert losses(name) == pytest.approx(expected, abs=1e-4)
    assert expected[0] != expected[-1]


def losses(name: str) -> list[float]:
    usecase = GcnUseCase(GcnParams(), None, 1)
    made: list[Any] = []

    def share(make: Callable[[], Any]) -> Any:
        made.append(make())
        return made[-1]

    try:
        backend = load_backend(name)()
    except Unavailable as error:
        pytest.skip(str(error))
    session = backend.open(usecase, replace(ONE, share=share), backend.Options())
    found = []
    for batch in islice(session.batches(usecase.loaders(0, 1).train), STEPS):
        loss = usecase.loss(session.model, batch)
        session.step(loss)
        found.append(loss.item())
    session.close()
    for one in made:
        one.close()
    return found
