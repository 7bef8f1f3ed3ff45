"""Ranks that train their share of every batch of raw ids with all nodes together."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

import adaps
import autoada
from adaps.policy import Eviction, Rule, Synchronization
from tests.hash_clicks import batches_of_ids, hash_clicks, rows_by_id
from tests.hash_clicks import steps as make_steps
from tests.integration.guarantees.common import RANK


def rows_of(state: dict[str, Tensor]) -> dict[str, Any]:
    return {table: sorted(rows_by_id(state, table).items()) for table in ("wide", "deep")}


def state_of(model: autoada.AdaModel) -> dict[str, Any]:
    """The state that this node sees, while no node changes it."""
    model.worker.barrier()
    state = model.state_dict()
    model.worker.barrier()
    return state


def share_of(model: autoada.AdaModel) -> slice:
    """The samples of this rank in every batch of 24."""
    nodes = model.num_workers
    return slice(RANK * 24 // nodes, (RANK + 1) * 24 // nodes)


def hashed(steps: int, directory: str) -> dict[str, Any]:
    """Train, and restore a checkpoint and load a state after more steps."""
    model = hash_clicks()
    model(torch.tensor([[RANK, 2, 3]]))  # all nodes begin with the rows of the first node
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    policy = adaps.Policy("together", [Rule("*", technique="adaptive")], synchronization=Synchronization(1))
    ada = autoada.AdaModel(model, optimizer, policy=policy)
    share, train = share_of(ada), partial(make_steps, ada, [optimizer])
    loader = autoada.AdaDataLoader(batches_of_ids(steps, 24, share), lookahead=4)
    train(loader)
    trained = state_of(ada)
    ada.worker.barrier()
    ada.checkpoint(directory)
    train([(ids * 3, label) for ids, label in batches_of_ids(3, 24, share)])
    ada.restore(directory)
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
    return {
        "trained": rows_of(trained),
        "restored": rows_of(restored),
        "loaded": rows_of(loaded),
        "scores": scores,
        "summary": loader.summary(),
        "sums": sums_of_adagrad(batches_of_ids(3, 24, share)),
    }


def sums_of_adagrad(batches: Any) -> list[list[list[float]]]:
    """The optimizer's state of a table that began without rows, and the same state after it was loaded."""
    model = hash_clicks()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    ada = autoada.AdaModel(model, optimizer)
    make_steps(ada, [optimizer], batches)
    ada.worker.barrier()
    states = [optimizer.state_dict()]
    ada.worker.barrier()
    optimizer.load_state_dict(states[0])
    ada.worker.barrier()
    states.append(optimizer.state_dict())
    ada.worker.barrier()
    ada.close()
    return [state["state"][0]["sum"].tolist() for state in states]


def retiring(steps: int, capacity: int) -> dict[str, Any]:
    """Train with tables that have fewer rows than the training has ids."""
    model = hash_clicks(capacity=capacity)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rules = [Rule("tables", evict=Eviction("intent")), Rule("*")]
    policy = adaps.Policy("small", rules, synchronization=Synchronization(1))
    ada = autoada.AdaModel(model, optimizer, policy=policy)
    batches = batches_of_ids(steps, 24, share_of(ada))
    make_steps(ada, [optimizer], autoada.AdaDataLoader(batches, lookahead=1, model=ada))
    trained = state_of(ada)
    ada.eval()
    with torch.no_grad():
        scores = ada(batches[-1][0]).flatten().tolist()
        plain = hash_clicks(capacity=capacity)
        plain.load_state_dict(trained)
        expected = plain(batches[-1][0]).flatten().tolist()
    ada.worker.barrier()
    retired = ada.node.table("deep.weight").stats()["ids_retired"]
    ada.close()
    return {"trained": rows_of(trained), "scores": scores, "expected": expected, "retired": retired}
