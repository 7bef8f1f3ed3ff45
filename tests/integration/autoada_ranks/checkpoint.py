"""Trains for some steps and saves, or loads and evaluates."""

import torch

import adaps
import autoada
from tests.integration.autoada_ranks.task import ROWS, batches, clicks, loss_of, settle
from tests.integration.guarantees.common import RANK, arguments, report

given = arguments()
model = autoada.AdaModel(clicks(seed=given["seed"]), adaps.Adagrad(lr=0.01))
if given["save"]:
    for batch in autoada.AdaDataLoader(batches(20, 2, RANK)):
        loss_of(model, batch).backward()
    settle(model)
    if RANK == 0:
        torch.save(model.state_dict(), given["file"])
else:
    deep = model.module.get_parameter("deep.weight")
    deep.sum()  # a node that has read the whole table reads it again after the state was loaded
    model.load_state_dict(torch.load(given["file"]))
    assert torch.equal(deep.detach().clone(), torch.load(given["file"])["deep.weight"])
model.eval()
with torch.no_grad():
    scores = model(torch.arange(ROWS).view(-1, 4)).flatten().tolist()
model.worker.barrier()
model.close()
report(scores=scores)
