"""A node that trains its share of every batch of raw ids with all nodes together, and reports its state."""

from __future__ import annotations

import io

import torch

import adaps
import autoada
from adaps.policy import Rule, Synchronization
from tests.hash_clicks import batches_of_ids, hash_clicks, loss_of, rows_by_id
from tests.integration.guarantees.common import RANK, arguments, report

given = arguments()
torch.manual_seed(0)
model = hash_clicks(sparse=given["sparse"])
if RANK > 0:  # all nodes use the weights and rows of the first one
    torch.nn.init.ones_(model.mlp[0].weight)
    model(torch.tensor([[RANK, 2, 3]]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=given["momentum"])
policy = adaps.Policy("together", [Rule("*", technique="adaptive")], synchronization=Synchronization(1))
ada = autoada.AdaModel(model, optimizer, policy=policy)
share = slice(RANK * 8 // given["nodes"], (RANK + 1) * 8 // given["nodes"])
batches = batches_of_ids(given["steps"], part=share)
loader = autoada.AdaDataLoader(batches, lookahead=4)
resolved = []
for batch in loader:
    loss = loss_of(ada, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
ada.worker.barrier()
state = ada.state_dict()
ada.worker.barrier()
file = io.BytesIO()
torch.save(state, file)
ada.checkpoint(given["directory"])
other = batches_of_ids(3)
for batch in other:  # rows of other ids than the checkpoint's, and changes of its rows
    loss_of(ada, batch).backward()
    optimizer.step()
    optimizer.zero_grad()
ada.restore(given["directory"])
ada.worker.barrier()
restored = ada.state_dict()
ada.worker.barrier()
ada.load_state_dict(hash_clicks(sparse=given["sparse"]).state_dict() if given["reset"] else state)
ada.worker.barrier()
loaded = ada.state_dict()
ada.worker.barrier()
ada.close()
report(
    **{
        name: {table: sorted(rows_by_id(one, table).items()) for table in ("wide", "deep")}
        for name, one in (("trained", state), ("restored", restored), ("loaded", loaded))
    },
    summary=loader.summary(),
)
