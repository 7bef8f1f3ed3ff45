"""Trains word vectors with automatic intent; each rank reports the loss on held-out text."""

import os
from typing import Any

import torch

from adabench.backends.interface import ServerOptions, WorkerContext
from adabench.backends.strategies.autoada_automatic import AutoAdaAutomatic
from adabench.usecases.word2vec import Word2VecParams, Word2VecUseCase
from tests.integration.guarantees.common import RANK, arguments, report

NODES = int(os.environ.get("WORLD_SIZE", "1"))

torch.set_num_threads(1)
given = arguments()
usecase = Word2VecUseCase(Word2VecParams(**given["params"], batch=given["batch"] // NODES), None, 1)
made: list[Any] = []


def share(make: Any) -> Any:
    made.append(make())
    return made[0]


cluster = WorkerContext(RANK, NODES, 0, 1, 1, "loopback", share)
session = AutoAdaAutomatic().open(usecase, cluster, ServerOptions())
loaders = usecase.loaders(RANK, NODES)
pairs = 0
for _ in range(usecase.params.epochs):
    for batch in session.batches(loaders.train):
        pairs += usecase.samples(batch)
        session.step(usecase.loss(session.model, batch))
    session.synchronize()
metrics = usecase.evaluate(session.model, loaders.test)
session.synchronize()
session.close()
made[0].close()
report(pairs=pairs, **metrics)
