"""Dense parameters by all-reduce, each table of rows by a server or by copies, whichever sends fewer bytes.

S. Kim et al., *Parallax: Sparsity-aware Data Parallel Training of Deep Neural Networks*, EuroSys 2019. Taken
from it: each step is one of all workers; dense parameters go by all-reduce; and for the others the amount of
data transfer decides, which depends on how sparse they are. What competes here is what its servers offer, too
(snuspl/parallax, its page about the API, `replicate_variables`): rows that stay at home and are asked for, or
copies everywhere that are brought up to date after each step. AutoDist's form of it (petuum/autodist,
autodist/strategy/parallax_strategy.py) leaves all that has sparse gradients on servers, without copies.

Ours are the counts: bytes are those of this server's messages (docs/concepts/protocol.md, section 3), with
how often each row is read. Tables that stay are scattered by hash, so that all servers share a large one,
which the paper partitions for that.
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
        Floats of optimizer state for each float of a row: 1 with Adagrad, by which the use cases train, 0
        with plain SGD, 2 with Adam. Copies exchange it, too.
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
    """Bytes that all nodes send in a step with a batch each: for rows that stay, and for copies.

    Batches are taken to read rows independently of each other.

    Parameters
    ----------
    table : Parameter
        Table with accesses in the catalogue.
    catalogue : Catalogue
    nodes : int
        Nodes of the cluster.
    state : int
        Floats of optimizer state for each float of a row.
    """
    read = catalogue.accesses[table.name] / max(1, catalogue.batches)
    floats = 4.0 * table.length
    row = floats * (1 + state)
    # A pull and a push of each row that is read elsewhere than at home.
    asked = (nodes - 1) * read.sum() * (2 * (MESSAGE_BYTES["request"] + MESSAGE_BYTES["answer"]) + 2 * floats)
    # Each copy sends its change, or its gradient where that is shorter, and gets those of the others in one.
    change = min(row, MESSAGE_BYTES["gradient"] + floats)
    others = 1.0 - (1.0 - read) ** (nodes - 1)
    exchanged = MESSAGE_BYTES["delta"] + change + MESSAGE_BYTES["ack"]
    refreshed = MESSAGE_BYTES["refresh"] + row
    copied = (nodes - 1) * (read.sum() * exchanged + np.sum(others) * refreshed)
    return float(asked), float(copied)


BUILDER = Parallax
