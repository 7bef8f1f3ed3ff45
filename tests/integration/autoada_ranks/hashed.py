"""A node that trains its share of every batch of raw ids with all nodes together, and reports its states."""

from typing import Any

import torch
from torch import Tensor

import adaps
import autoada
from adaps.policy import Rule, Synchronization
from tests.hash_clicks import batches_of_ids, hash_clicks, loss_of, rows_by_id
from tests.integration.guarantees.common import RANK, arguments, report

given = arguments()


def rows_of(state: dict[str, Tensor]) -> dict[str, Any]:
    return {table: sorted(rows_by_id(state, table).items()) for table in ("wide", "deep")}


def state_of(model: autoada.AdaModel) -> dict[str, Any]:
    """The state that this node sees, while no node changes it."""
    model.worker.barrier()
    state = model.state_dict()
    model.worker.barrier()
    return state


def main() -> None:
    model = hash_clicks()
    model(torch.tensor([[RANK, 2, 3]]))  # all nodes begin with the rows of the first node
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    policy = adaps.Policy("together", [Rule("*", technique="adaptive")], synchronization=Synchronization(1))
    ada = autoada.AdaModel(model, optimizer, policy=policy)
    nodes = ada.num_workers
    share = slice(RANK * 24 // nodes, (RANK + 1) * 24 // nodes)

    def train(batches: Any) -> None:
        for batch in batches:
            loss_of(ada, batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    loader = autoada.AdaDataLoader(batches_of_ids(given["steps"], 24, share), lookahead=4)
    train(loader)
    trained = state_of(ada)
    ada.worker.barrier()
    ada.checkpoint(given["directory"])
    train([(ids * 3, label) for ids, label in batches_of_ids(3, 24, share)])
    ada.restore(given["directory"])
    restored = state_of(ada)
    train([(ids * 5, label) for ids, label in batches_of_ids(3, 24, share)])
    ada.load_state_dict(trained if RANK == 0 else hash_clicks().state_dict())
    loaded = state_of(ada)
    ids = torch.arange(9).view(3, 3)
    ada.eval()
    with torch.no_grad():
        scores = ada(ids).flatten().tolist()
    ada.worker.barrier()
    ada.close()
    sums = sums_of_adagrad(batches_of_ids(3, 24, share))
    report(
        trained=rows_of(trained),
        restored=rows_of(restored),
        loaded=rows_of(loaded),
        scores=scores,
        summary=loader.summary(),
        sums=sums,
    )


def sums_of_adagrad(batches: Any) -> list[list[list[float]]]:
    """The optimizer's state of a table that began without rows, and the same state after it was loaded."""
    model = hash_clicks()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    ada = autoada.AdaModel(model, optimizer)
    for batch in batches:
        loss_of(ada, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    ada.worker.barrier()
    states = [optimizer.state_dict()]
    ada.worker.barrier()
    optimizer.load_state_dict(states[0])
    ada.worker.barrier()
    states.append(optimizer.state_dict())
    ada.worker.barrier()
    ada.close()
    return [state["state"][0]["sum"].tolist() for state in states]


if __name__ == "__main__":
    main()
