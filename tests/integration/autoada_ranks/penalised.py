"""Trains with a penalty on all parameters, which the loop computes; reports the warnings."""

import logging

import torch

import autoada
from tests.integration.autoada_ranks.task import batches, clicks, loss_of
from tests.integration.guarantees.common import RANK, report


class Messages(logging.Handler):
    """Keeps messages."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())


messages = Messages()
logging.getLogger("autoada").addHandler(messages)
plain = clicks()
optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
model = autoada.AdaModel(plain, optimizer)
for batch in autoada.AdaDataLoader(batches(12, 2, RANK)):
    penalty = torch.stack([parameter.pow(2).sum() for parameter in model.parameters()]).sum()
    loss = loss_of(model, batch) + 0.01 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.worker.barrier()
model.close()
report(messages=messages.seen)
