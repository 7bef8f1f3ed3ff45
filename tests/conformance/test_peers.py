"""Peer systems refuse what they cannot run, distribute whole tables, and train other use cases as well."""

import importlib.util
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from adabench.backends.external._shared import replace_tables
from adabench.backends.external.pykeen import PyKeenOptions
from adabench.backends.external.rpc import RemoteTable
from adabench.backends.interface import OwnLoop, Unavailable
from adabench.harness.plugins.registry import load_backend
from adabench.usecases.ctr.task import CtrParams, CtrUseCase
from adabench.usecases.gcn.task import GcnParams, GcnUseCase
from adabench.usecases.kge.model import ModelName
from adabench.usecases.kge.task import KgeParams, KgeUseCase
from adabench.usecases.word2vec.task import Word2VecParams, Word2VecUseCase
from tests.worker_contexts import PerProcess, worker_context

PEERS = ["ddp", "rpc", "torchrec"]
STEPS = 10


def unshared(make: Callable[[], Any]) -> Any:
    raise AssertionError("nothing may be opened")


ONE = worker_context(unshared)


@pytest.mark.parametrize("name", ["gensim", "pykeen", "torchrec"])
def test_a_missing_system_is_installed_by_an_extra_of_its_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = load_backend(name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = f"{name} is not installed: pip install 'adabench[{name}]'"
    with pytest.raises(Unavailable, match=re.escape(message)):
        peer()
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\n{name} = ["{name}>=' in project


@pytest.mark.parametrize("name", ["ddp", "rpc"])
def test_peers_have_one_worker_a_process_and_no_shaped_links(name: str) -> None:
    usecase = CtrUseCase(CtrParams(rows=1400), None, 1)
    backend = load_backend(name)()
    with pytest.raises(Unavailable, match=f"{name} has one worker per process, not 2"):
        backend.open(usecase, replace(ONE, workers=2), backend.Options())
    with pytest.raises(Unavailable, match="its own sockets, which the network 'lan' does not slow down"):
        backend.open(usecase, replace(ONE, world_size=2, network="lan"), backend.Options())


def test_tables_that_do_more_than_look_up_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True, max_norm=1.0))
    with pytest.raises(Unavailable, match="table 0 uses max_norm"):
        replace_tables(model, lambda name, table: nn.Identity())
    kept = nn.Sequential(nn.Embedding(5, 2))
    replace_tables(kept, lambda name, table: nn.Identity())
    assert isinstance(kept[0], nn.Embedding)  # the gradient is dense, like that of any other layer


@pytest.mark.parametrize(("rows", "world"), [(10, 1), (10, 3), (2, 3)])
def test_blocks_of_all_processes_are_the_table(rows: int, world: int) -> None:
    weight = torch.arange(float(rows))[:, None]
    tables = [RemoteTable(0, rows, replace(ONE, rank=rank, world_size=world)) for rank in range(world)]
    assert torch.equal(torch.cat([table.own_block(weight) for table in tables]), weight)


@pytest.mark.parametrize("name", PEERS)
def test_peers_train_graphs_as_plain_pytorch_does(name: str) -> None:
    """The use case does not declare where features begin, and its ids have one dimension."""
    expected = losses("single")
    assert losses(name) == pytest.approx(expected, abs=1e-4)
    assert expected[0] != expected[-1]


def losses(name: str) -> list[float]:
    usecase = GcnUseCase(GcnParams(), None, 1)
    shared = PerProcess()
    backend = available(name)
    session = backend.open(usecase, replace(ONE, per_process=shared), backend.Options())
    found = []
    for batch in islice(session.batches(usecase.loaders(0, 1).train), STEPS):
        loss = usecase.loss(session.model, batch)
        session.step(loss)
        found.append(loss.item())
    # A run synchronizes after each epoch, too. Without it, gloo's thread may still need the interpreter's
    # lock to release the last gradients while destroying the group below waits for that thread.
    session.synchronize()
    session.close()
    shared.close()
    return found


def test_gensim_trains_vectors_that_ours_are_as_good_as() -> None:
    """The same text, settings and number of epochs; loss and correlation by our evaluation of both."""
    usecase = Word2VecUseCase(Word2VecParams(), None, 1)
    reference, ours = (quality(name, usecase) for name in ("gensim", "single"))
    assert reference["loss"] < 2  # it did learn, and its rows are where ours are
    assert ours["loss"] <= 1.01 * reference["loss"]
    assert ours["topics"] >= reference["topics"] - 0.02


@pytest.mark.parametrize("model", ["complex", "distmult"])
def test_pykeen_trains_rows_that_score_here_as_there(model: ModelName) -> None:
    usecase = KgeUseCase(KgeParams(model=model, triples=8000, batch=64, dim=16, epochs=3), None, 1)
    session = available("pykeen").open(usecase, ONE, PyKeenOptions())
    session.synchronize()
    train = usecase.loaders(0, 1).train
    triples = torch.cat([batch.triples for batch in train])
    corrupted = triples.clone()
    corrupted[:, 2] = triples[:, 2].roll(1)

    def told_apart() -> float:
        """Share of triples that score above the same with another's tail."""
        with torch.no_grad():
            right, wrong = (session.model(each, torch.arange(2)).own for each in (triples, corrupted))
        return float((right > wrong).float().mean())

    assert told_apart() < 0.55
    for _ in range(usecase.params.epochs):
        samples = session.train_epoch(train)
    session.synchronize()
    assert samples == len(triples)
    assert told_apart() > 0.62
    with torch.no_grad():
        theirs = session._theirs.score_hrt(triples)[:, 0]
        ours = session.model(triples, torch.arange(2)).own
    torch.testing.assert_close(ours, theirs)
    session.close()


@pytest.mark.parametrize(("name", "wanted"), [("gensim", "word2vec"), ("pykeen", "kge")])
def test_peers_with_a_loop_of_their_own_train_one_use_case(name: str, wanted: str) -> None:
    usecase = CtrUseCase(CtrParams(rows=1400), None, 1)
    backend = available(name)
    with pytest.raises(Unavailable, match=f"{name} trains only {wanted}, not ctr: use -u {wanted}"):
        backend.open(usecase, ONE, backend.Options())


def quality(name: str, usecase: Any) -> dict[str, float]:
    """After all epochs."""
    session = available(name).open(usecase, ONE, load_backend(name).Options())
    loaders = usecase.loaders(0, 1)
    for _ in range(usecase.params.epochs):
        if isinstance(session, OwnLoop):
            session.train_epoch(loaders.train)
            continue
        for batch in session.batches(loaders.train):
            session.step(usecase.loss(session.model, batch))
    session.synchronize()
    found: dict[str, float] = usecase.evaluate(session.model, loaders.test)
    session.close()
    return found


def available(name: str) -> Any:
    try:
        return load_backend(name)()
    except Unavailable as error:
        pytest.skip(str(error))
