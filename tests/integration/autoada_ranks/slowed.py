"""Epochs of `ctr` under policies, on nodes that control groups slow down for an epoch, if there are any."""

import time
from pathlib import Path
from typing import Any

import msgspec
import torch

import adaps
from adabench.backends.interface import WorkerContext
from adabench.backends.strategies.autoada_automatic import BACKEND
from adabench.harness.machine.quota import enter
from adabench.harness.plugins.registry import load_usecase
from adabench.harness.study.data_partition import partitioned
from tests.integration.guarantees.common import RANK, arguments, report

GROUPS = [Path(group) for group in arguments()["groups"]]


def trained(case: dict[str, Any]) -> dict[str, Any]:
    policy = adaps.Policy.parse(case["policy"])
    kind = load_usecase("ctr")
    usecase = partitioned(kind(msgspec.convert(case["params"], kind.Params), None, 1), policy, 1)
    made: list[Any] = []

    def share(make: Any) -> Any:
        made.append(make())
        return made[0]

    session = BACKEND().open(
        usecase, WorkerContext(RANK, 2, 0, 1, 1, "loopback", share, policy=policy), BACKEND.Options()
    )
    loaders = usecase.loaders(RANK, 2)
    seconds, samples, auc = 0.0, 0, []
    for epoch in range(usecase.params.epochs):
        timed = epoch == 1  # the first one learns what to announce
        if timed and GROUPS:
            enter(GROUPS[RANK])
        session.synchronize()
        began = time.monotonic()
        for batch in session.batches(loaders.train):
            session.step(usecase.loss(session.model, batch))
            samples += usecase.samples(batch)
        session.synchronize()
        if timed:
            seconds = time.monotonic() - began
        if timed and GROUPS:
            enter(GROUPS[RANK].parent)
        auc.append(usecase.evaluate(session.model, loaders.test)["auc"])
    answers = sum(table["messages_sent_answer"] for table in session.table_counters().values())
    session.synchronize()
    session.close()
    made[0].close()
    return {"seconds": seconds, "answers": answers, "samples": samples, "auc": auc}


torch.set_num_threads(1)
report(runs=[trained(case) for case in arguments()["cases"]])
