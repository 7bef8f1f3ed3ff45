"""Dense parameters use all-reduce. Each table stays on servers or is replicated, whichever sends fewer bytes.

S. Kim et al., *Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks*, EuroSys 2019. As in
Parallax, all workers make each step together, dense parameters use all-reduce, and for other parameters the
amount of transferred data decides, which depends on their sparsity. The alternatives are also offered by
Parallax's servers (snuspl/parallax, page about the API, `replicate_variables`): rows that stay on their home
nodes and are requested, or replicas on all nodes that are updated after each step. AutoDist's version
(petuum/autodist, autodist/strategy/parallax_strategy.py) leaves all parameters with sparse gradients on
servers, without replicas.

The byte counts are our addition. They use the sizes of this server's messages (docs/concepts/protocol.md,
section 3) and the number of accesses to each row. The rows of tables that stay have homes by hash, so that
all servers share a large table. The paper partitions large tables for this purpose.
"""

from __future__ import annotations

import numpy as np

from adabench.backends.policies._building import RuleBuilder, measured_tables
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Parameter, Rule
from adaps.simulation import MESSAGE_BYTES


class ParallaxOptions(BuilderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `parallax`.

    Attributes
    ----------
    state : int
        Number of floats of optimizer state for each float of a row: 1 for Adagrad, which the use cases use, 0
        for plain SGD, 2 for Adam. Replicas also exchange it.
    """

    state: int = 1

    def __post_init__(self) -> None:
        if self.state < 0:
            raise ValueError(f"state is {self.state}: it must be 0 or more")


class Parallax(RuleBuilder):
    name = "parallax"
    Options = ParallaxOptions
    every = 1

    def rules(self, catalogue: Catalogue, resources: Resources, options: ParallaxOptions) -> list[Rule]:
        rules = [Rule("dense", technique="allreduce")]
        for table in measured_tables(self.name, catalogue):
            asked, copied = bytes_per_step(table, catalogue, resources.nodes, options.state)
            if copied < asked:
                rules.append(Rule(table.name, technique="full_replication"))
        return [*rules, Rule("*", technique="static")]


def bytes_per_step(table: Parameter, catalogue: Catalogue, nodes: int, state: int = 0) -> tuple[float, float]:
    """Return the bytes that all nodes send in a step with a batch each: for rows that stay, and for replicas.

    Batches are assumed to read rows independently of each other.

    Parameters
    ----------
    table : Parameter
        Table with accesses in the catalogue.
    catalogue : Catalogue
        Parameters with their accesses.
    nodes : int
        Number of nodes of the cluster.
    state : int
        Number of floats of optimizer state for each float of a row.
    """
    read = catalogue.accesses[table.name] / max(1, catalogue.batches)
    floats = 4.0 * table.length
    row = floats * (1 + state)
    # A pull and a push of each row that is read by a node other than its home.
    asked = (nodes - 1) * read.sum() * (2 * (MESSAGE_BYTES["request"] + MESSAGE_BYTES["answer"]) + 2 * floats)
    # Each replica sends its change, or its gradient if that is shorter, and receives all other changes in one
    # message.
    change = min(row, MESSAGE_BYTES["gradient"] + floats)
    others = 1.0 - (1.0 - read) ** (nodes - 1)
    exchanged = MESSAGE_BYTES["delta"] + change + MESSAGE_BYTES["ack"]
    refreshed = MESSAGE_BYTES["refresh"] + row
    copied = (nodes - 1) * (read.sum() * exchanged + np.sum(others) * refreshed)
    return float(asked), float(copied)


BUILDER = Parallax
