"""What several builders share."""

from __future__ import annotations

from collections.abc import Sequence

from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, DataSharing, Home, MadeFor, Parameter, Policy, Rule, Synchronization

__all__ = ["greedy_nodes", "load_of", "pinned", "policy_for"]


def policy_for(
    name: str,
    rules: Sequence[Rule],
    catalogue: Catalogue,
    resources: Resources,
    *,
    every: int = 0,
    shares: str | Sequence[float] = "equal",
) -> Policy:
    """The policy of these rules, made for this model and cluster."""
    made_for = MadeFor(catalogue.sha256, resources.nodes)
    return Policy(name, rules, made_for, Synchronization(every), DataSharing(shares))


def load_of(parameter: Parameter, catalogue: Catalogue) -> float:
    """Bytes of a parameter that a step reads on average; all of it where no accesses were measured."""
    counts = catalogue.accesses.get(parameter.name)
    if counts is None or catalogue.batches == 0:
        return float(parameter.bytes)
    return 4.0 * parameter.length * float(counts.sum()) / catalogue.batches


def greedy_nodes(loads: Sequence[float], resources: Resources) -> list[int]:
    """A node for each load, in their order: always the one that has least for its speed."""
    carried = [0.0] * resources.nodes
    chosen = []
    for load in loads:
        relative = [have / node.speed for have, node in zip(carried, resources.node, strict=True)]
        node = relative.index(min(relative))
        carried[node] += load
        chosen.append(node)
    return chosen


def pinned(catalogue: Catalogue, resources: Resources, technique: str, kind: str | None = None) -> list[Rule]:
    """A rule per parameter of a kind, whole on one node, chosen by `greedy_nodes`."""
    wanted = [one for one in catalogue.parameters if kind is None or one.kind == kind]
    nodes = greedy_nodes([load_of(one, catalogue) for one in wanted], resources)
    return [
        Rule(one.name, technique=technique, home=Home("node", node=node))
        for one, node in zip(wanted, nodes, strict=True)
    ]
