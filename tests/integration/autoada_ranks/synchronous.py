"""A node with one worker that trains its share of every batch."""

from tests.integration.autoada_ranks.task import node_for, train_share
from tests.integration.guarantees.common import arguments, report

given = arguments()
node = node_for(given["shares"], workers=1)
result = train_share(node, 0, given["steps"])
node.close()
report(**result)
