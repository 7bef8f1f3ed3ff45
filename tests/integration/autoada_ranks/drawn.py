"""Training with negatives that each node draws."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

import adaps
import autoada
from adabench.backends.strategies.autoada_automatic import AutoAdaAutomatic
from adabench.backends.strategies.manual import Manual, ManualSession
from adabench.usecases.kge import KgeParams, KgeUseCase
from adabench.usecases.word2vec import Word2VecParams, Word2VecUseCase
from tests.integration.autoada_ranks.sessions import NODES, opened
from tests.integration.autoada_ranks.task import settle
from tests.integration.guarantees.common import RANK

ROWS, DRAWN, STEPS = 400, 20, 60
TABLE = "entities.weight"


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 4)

    def forward(self, ids: Tensor, drawn: Tensor) -> Any:
        return (self.items(ids).sum(0) * self.items(drawn).sum(0)).sum()


def drawn_negatives() -> dict[str, Any]:
    """Train by every scheme."""
    found: dict[str, Any] = {}
    for scheme in adaps.SAMPLING_SCHEMES:
        torch.manual_seed(1)
        model = Pairs()
        negatives = autoada.NegativeSampler(model.items, DRAWN, adaps.Sampling(adaps.LogUniform(), scheme))
        wrapped = autoada.AdaModel(model, adaps.SGD(lr=1e-3))
        own = torch.arange(RANK * 10, RANK * 10 + 10)
        batches = ((own, negatives()) for _ in range(STEPS))
        rows = 0
        for ids, drawn in autoada.AdaDataLoader(batches, lookahead=4):
            rows += len(drawn)
            wrapped(ids, drawn).backward()
        settle(wrapped)
        stats = wrapped.node.stats()
        found[scheme] = {
            "rows": rows,
            "announced": stats["intents"],
            "fallback": stats["sampled_fallback"],
            "sum": float(autoada.unwrap(wrapped).state_dict()["items.weight"].double().sum()),
        }
        wrapped.worker.barrier()
        wrapped.close()
    return found


def bytes_of_draws(steps: int, schemes: Sequence[Any]) -> dict[str, Any]:
    """Train a knowledge graph; all rows but the drawn ones are local before their use."""
    return {scheme: counted(scheme, steps) for scheme in schemes}


def counted(scheme: Any, steps: int) -> dict[str, float]:
    usecase = KgeUseCase(KgeParams(triples=20_000, batch=16, negatives=64, dim=32), None, 1)
    with opened(Manual(), usecase, sampling=scheme) as session:
        before = session.table_counters()[TABLE]
        session.synchronize()  # no node's first step is counted by one that has not looked yet
        for batch in islice(session.drawn(awaited(session, usecase.loaders(RANK, NODES).train)), steps):
            session.step(usecase.loss(session.model, batch))
        session.synchronize()
        after = session.table_counters()[TABLE]
    return {name: value - before[name] for name, value in after.items()}


def awaited(session: ManualSession, loader: Iterable[Any]) -> Iterator[Any]:
    for batch in loader:
        session.announce(batch, session.server.current_clock)
        for table, rows in session.keys(batch).items():
            session.server.wait_intent(session.model.node.table(table).keys(rows))
        yield batch


def word_vectors(params: dict[str, Any], batch: int) -> dict[str, Any]:
    """Train word vectors with automatic intent; the result has the loss on held-out text."""
    usecase = Word2VecUseCase(Word2VecParams(**params, batch=batch // NODES), None, 1)
    loaders = usecase.loaders(RANK, NODES)
    with opened(AutoAdaAutomatic(), usecase) as session:
        for _ in range(usecase.params.epochs):
            for samples in session.batches(loaders.train):
                session.step(usecase.loss(session.model, samples))
            session.synchronize()
        metrics = usecase.evaluate(session.model, loaders.test)
        session.synchronize()
    return metrics
