"""Policies from files or builders, and their effects on a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from adabench.backends.policies.resources import Resources, ResourcesError
from adabench.harness.errors import UsageError, unknown
from adabench.harness.plugins.registry import load_builder, names
from adabench.harness.study.model_parameters import count_accesses, model_parameters_of
from adabench.harness.study.syntax import convert_params, parse_one
from adaps.policy import AccessesMissing, Catalogue, Managed, Parameter, Policy, PolicyError
from adaps.policy.executed import BY_HASH, homes_of

if TYPE_CHECKING:
    from adabench.usecases.interface import UseCase

AHEAD = 20
"""Lookahead in batches that is assumed for the expected local share of relocation."""


@contextmanager
def refused() -> Iterator[None]:
    """Turn errors in a policy or in resources into errors on the command line."""
    try:
        yield
    except (PolicyError, ResourcesError) as error:
        raise UsageError(str(error)) from error


def policy_from(text: str, catalogue: Catalogue, resources: Resources) -> Policy:
    """Read a policy's file, or build the policy for a model and a cluster.

    The text is a file or a builder such as ``nups[times=50]``. Raises `UsageError` if it is neither, or if
    the builder or the file is wrong.
    """
    with refused():
        return _found(text, catalogue, resources)


def made_policy(text: str, catalogue: Catalogue, resources: Resources) -> Policy:
    """As `policy_from`, and `fitted`, so that the policy can be kept without its files.

    Raises
    ------
    AccessesMissing
        If the builder needs access counts and the catalogue has none.
    PolicyError
        If a file or an option of the builder is wrong, or the policy does not fit.
    UsageError
        If the text is neither a file nor a builder.
    """
    return fitted(_found(text, catalogue, resources), catalogue, resources.nodes)


def made_where_counted(
    text: str, resources: Resources, catalogue: Catalogue, counted: Callable[[], Catalogue]
) -> tuple[Policy, Catalogue]:
    """As `made_policy`; if access counts are needed, calls `counted`, which reads the data.

    Returns the policy and its catalogue.
    """
    try:
        return made_policy(text, catalogue, resources), catalogue
    except AccessesMissing:
        catalogue = counted()
        return made_policy(text, catalogue, resources), catalogue


def policy_of_usecase(text: str, usecase: UseCase, resources: Resources, workers: int) -> Policy:
    """As `made_policy`, for a use case's model and workers per node; errors are a `UsageError`."""
    nodes = resources.nodes
    with refused():
        policy, _ = made_where_counted(
            text,
            resources,
            model_parameters_of(usecase),
            lambda: count_accesses(usecase, nodes * workers, epochs=1, nodes=nodes),
        )
    return policy


def fitted(policy: Policy, catalogue: Catalogue, nodes: int, *, force: bool = False) -> Policy:
    """The policy with ranges in place of all other rows, if it fits a model and a number of nodes.

    With `force`, policies that were made for another model or cluster fit as well. Raises `PolicyError` if
    the policy does not fit, or access counts are needed.
    """
    policy.check(catalogue, nodes, force=force)
    resolved = policy.resolved(catalogue)
    if any(rule.rows is not None and rule.rows.hottest is not None for rule in policy.rules):
        resolved.check(catalogue, nodes, force=force)  # parts that depend on rows unknown before
    return resolved


def _found(text: str, catalogue: Catalogue, resources: Resources) -> Policy:
    if os.path.isfile(text) or text.endswith(".toml"):
        return Policy.read(text)
    parsed = parse_one(text)
    if parsed is None:
        raise UsageError(
            f"{text!r} is not one policy: give a file, or a builder such as nups or nups[times=50]"
        )
    name, given = parsed
    if name not in names("policy"):
        raise unknown("policy", name, names("policy"), ", neither a file nor a builder")
    builder = load_builder(name)
    options = convert_params(builder.Options, given, f"builder {name!r}")
    return replace(builder().build(catalogue, resources, options), source=text)


def resources_from(file: Path | None, nodes: int | None) -> Resources:
    """Return the resources of a file, or of a number of equal nodes.

    Raises `UsageError` if the file is wrong or is of another number of nodes, or if neither is given.
    """
    if nodes is not None and nodes < 1:
        raise UsageError(f"--nodes {nodes}: give 1 or more")
    if file is None:
        if nodes is None:
            raise UsageError(
                "for how many nodes? Give --nodes 2, or --resources with a file of `adabench resources`"
            )
        return Resources.alike(nodes)
    with refused():
        resources = Resources.read(file)
    if nodes is not None and nodes != resources.nodes:
        raise UsageError(f"--nodes {nodes}: {file} describes {resources.nodes}; leave one of the two out")
    return resources


def bytes_per_node(policy: Policy, catalogue: Catalogue, nodes: int) -> dict[str, list[float]]:
    """Return for each parameter the expected bytes of values on each node at the start of training."""
    by_name = {one.parameter.name: one for one in policy.managed(catalogue)}
    kept = {}
    for name, one in by_name.items():
        parameter = one.parameter
        total = [0.0] * nodes
        for part in one.parts:
            rule = policy.rules[part.rule - 1]
            if rule.technique in ("full_replication", "allreduce"):
                counts = [float(part.count)] * nodes
            elif rule.home.scheme in ("blocks", "shares"):
                counts = _of_ranges(rule.home.block_bounds(parameter.rows, nodes), part.ranges)
            elif rule.home.scheme == "with":
                own = Managed(parameter, (part,))
                counts = _of_homes(homes_of(policy, own, by_name, nodes), nodes)
            else:
                counts = rule.home.node_counts(part.count, nodes)
            total = [have + 4.0 * parameter.length * more for have, more in zip(total, counts, strict=True)]
        kept[name] = total
    return kept


def local_share(
    policy: Policy, rule: int, parameter: Parameter, catalogue: Catalogue, nodes: int
) -> float | None:
    """Return the expected local share of a rule's accesses to a parameter, from 0 to 1.

    With equal workers everywhere, one in `nodes` accesses finds a row that stays where it is at home, unless
    some rows were chosen for a node, as `placed` does. Copies are local if intent comes in time. A row that
    moves is on one of the nodes that need it at the same time. Let q be the probability that another node
    needs it, which requires access counts. Then it is on a given such node with probability (1 - (1 - q)^n) /
    (n q).

    Returns None if the share is not known: without access counts, or for rows that were chosen for a node.
    """
    technique = policy.rules[rule - 1].technique
    if nodes == 1 or technique in ("full_replication", "allreduce", "replication", "adaptive"):
        return 1.0
    if technique == "static":
        return None if _chosen_for_a_node(policy, rule) else 1.0 / nodes
    if parameter.kind == "dense":
        return 1.0 / nodes  # Every step of every worker reads the parameter.
    counts = catalogue.accesses.get(parameter.name)
    if counts is None or catalogue.batches == 0 or not counts.any():
        return None
    wanted = 1.0 - (1.0 - counts / catalogue.batches) ** AHEAD
    alone = wanted.clip(1e-12, 1.0)
    local = (1.0 - (1.0 - alone) ** nodes) / (nodes * alone)
    return float((local * counts).sum() / counts.sum())


def _chosen_for_a_node(policy: Policy, rule: int) -> bool:
    """Whether a rule places some but not all rows of a table on a node, or with such rows."""
    found = policy.rules[rule - 1]
    if found.home.table is None:
        return found.rows is not None and found.home.node is not None
    return any(
        one.parameters == found.home.table and one.rows is not None and one.home.node is not None
        for one in policy.rules
    )


def _of_ranges(bounds: list[int], ranges: tuple[tuple[int, int], ...]) -> list[float]:
    """How many rows of the ranges each node's block holds."""
    return [
        float(sum(max(0, min(end, high) - max(start, low)) for start, end in ranges))
        for low, high in pairwise(bounds)
    ]


def _of_homes(homes: list[tuple[int, int, int | str]], nodes: int) -> list[float]:
    """Return the number of rows of these ranges at each node; rows placed by hash count equally."""
    counts = [0.0] * nodes
    for start, end, where in homes:
        scattered = where == BY_HASH or isinstance(where, str)
        for node in range(nodes) if scattered else [int(where)]:
            counts[node] += (end - start) / (nodes if scattered else 1)
    return counts
