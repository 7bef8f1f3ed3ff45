"""A node that trains with tables that have fewer rows than the training has ids, and reports its states."""

import torch

import adaps
import autoada
from adaps.policy import Eviction, Rule, Synchronization
from tests.hash_clicks import batches_of_ids, hash_clicks, steps
from tests.integration.autoada_ranks.hashed import rows_of, state_of
from tests.integration.guarantees.common import RANK, arguments, report


def main() -> None:
    given = arguments()
    model = hash_clicks(capacity=given["capacity"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rules = [Rule("tables", evict=Eviction("intent")), Rule("*")]
    policy = adaps.Policy("small", rules, synchronization=Synchronization(1))
    ada = autoada.AdaModel(model, optimizer, policy=policy)
    nodes = ada.num_workers
    share = slice(RANK * 24 // nodes, (RANK + 1) * 24 // nodes)
    batches = batches_of_ids(given["steps"], 24, share)
    losses = steps(ada, [optimizer], autoada.AdaDataLoader(batches, lookahead=1, model=ada))
    trained = state_of(ada)
    ada.eval()
    with torch.no_grad():
        scores = ada(batches[-1][0]).flatten().tolist()
        plain = hash_clicks(capacity=given["capacity"])
        plain.load_state_dict(trained)
        expected = plain(batches[-1][0]).flatten().tolist()
    ada.worker.barrier()
    retired = ada.node.table("deep.weight").stats()["ids_retired"]
    ada.close()
    report(losses=losses, trained=rows_of(trained), scores=scores, expected=expected, retired=retired)


if __name__ == "__main__":
    main()
