"""A node with one worker that trains its share of every batch as a policy says; with counters by table."""

from __future__ import annotations

import torch

import adaps
import autoada
from tests.integration.autoada_ranks.task import RATE, clicks, train_share
from tests.integration.guarantees.common import arguments, report

given = arguments()
model = clicks()
optimizer = torch.optim.SGD(model.parameters(), lr=RATE / given["shares"])
node = autoada.create_node(model, optimizer, policy=adaps.Policy.parse(given["policy"]))
result = train_share(node, 0, given["steps"])
node.close()
report(**result, tables={table.name: table.stats() for table in node.tables}, total=node.stats())
