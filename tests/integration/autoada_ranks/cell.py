"""One epoch of a use case with a backend on the parameter server, as a run trains it."""

import os
from typing import Any

import adaps
from adabench.backends.interface import WorkerContext
from adabench.harness.plugins.registry import load_backend
from adabench.harness.study.model_parameters import usecase_from
from tests.integration.guarantees.common import arguments, report

given = arguments()
rank, nodes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
usecase = usecase_from(given["usecase"], None, 0)
backend = load_backend(given["backend"])()
cluster = WorkerContext(
    rank, nodes, 0, 1, 0, "loopback", lambda make: make(), policy=adaps.Policy.parse(given["policy"])
)
loaders = usecase.loaders(rank, nodes)
session: Any = backend.open(usecase, cluster, backend.Options())
session.synchronize()
before = session.table_counters()
session.synchronize()  # no node's first step is counted by one that has not looked yet
for batch in session.batches(loaders.train):
    session.step(usecase.loss(session.model, batch))
session.synchronize()
after = session.table_counters()
report(
    tables={
        table: {name: count - before[table][name] for name, count in counts.items()}
        for table, counts in after.items()
    }
)
session.close()
session.model.node.close()
