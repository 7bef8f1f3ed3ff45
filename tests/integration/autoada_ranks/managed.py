"""A node with one worker that trains its share of every batch under a policy.

It reports counters of each table, and the rows grouped by what happened to them.
"""

import numpy as np
import torch

import adaps
import autoada
from tests.integration.autoada_ranks.task import RATE, clicks, train_share
from tests.integration.guarantees.common import arguments, report

given = arguments()
model = clicks()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE / given["shares"])
node = autoada.create_node(model, optimizer, policy=adaps.Policy.parse(given["policy"]))
node.trace(np.arange(node.num_keys))
result = train_share(node, 0, given["steps"])
node.close()
events = adaps.trace_frame(node)
report(
    **result,
    tables={table.name: table.stats() for table in node.tables},
    rows={
        table.name: {
            str(event): sorted(set(found["row"].tolist()))
            for event, found in events[events["table"] == table.name].groupby("event")
        }
        for table in node.tables
    },
    total=node.stats(),
)
