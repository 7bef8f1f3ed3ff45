"""``adabench policy …`` and ``adabench accesses``: how parameters are managed, as a document."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adabench.harness.cli.options import Data, Seed, Workers, at_least_one, shown, with_options
from adabench.harness.cli.terminal import tell
from adabench.harness.errors import UsageError

if TYPE_CHECKING:
    from adabench.backends.policies.resources import Resources
    from adabench.usecases.interface import UseCase
    from adaps.policy import Catalogue, Policy

_BACKEND = "autoada-automatic"
"""Backend whose checks count: all backends on the parameter server execute the same policies."""

PolicyText = Annotated[
    str, typer.Argument(help="A file, or a builder such as nups or 'nups[times=50]'.", metavar="POLICY")
]
UseCaseOption = Annotated[
    str, typer.Option("--usecase", "-u", help="Use case with the parameters, such as ctr or 'ctr[dim=8]'.")
]
UseCaseIfGiven = Annotated[
    str | None,
    typer.Option("--usecase", "-u", help="Use case whose parameters are compared, not the documents."),
]
NodesOption = Annotated[
    int | None, typer.Option("--nodes", help="Number of nodes in the cluster, if they are all equal.")
]
ResourcesOption = Annotated[
    Path | None, typer.Option("--resources", help="The cluster, as `adabench resources` writes it.")
]
AccessesOption = Annotated[
    Path | None, typer.Option("--accesses", help="Access counts, as `adabench accesses` writes them.")
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Also accept a policy that was made for another model or cluster.")
]


class Model:
    """The parameters of a use case's model on a cluster, for which commands make policies."""

    def __init__(self, usecase: UseCase, catalogue: Catalogue, resources: Resources) -> None:
        self.usecase = usecase
        self.catalogue = catalogue
        self.resources = resources

    def policy(self, text: str, force: bool = False) -> Policy:
        """The policy of a file or a builder, if it fits."""
        from adabench.harness.study.policies import fitted, policy_from, refused

        found = policy_from(text, self.catalogue, self.resources)
        with refused():
            return fitted(found, self.catalogue, self.resources.nodes, force=force)


def _model(
    usecase: UseCaseOption,
    nodes: NodesOption = None,
    resources: ResourcesOption = None,
    accesses: AccessesOption = None,
    data: Data = None,
    seed: Seed = 0,
) -> Model:
    from adabench.harness.study.model_parameters import model_parameters_of, read_accesses, usecase_from
    from adabench.harness.study.policies import resources_from

    cluster = resources_from(resources, nodes)
    found = usecase_from(usecase, data, seed)
    catalogue = model_parameters_of(found)
    return Model(found, catalogue if accesses is None else read_accesses(accesses, catalogue), cluster)


def _model_or_none(
    usecase: UseCaseIfGiven = None,
    nodes: NodesOption = None,
    resources: ResourcesOption = None,
    accesses: AccessesOption = None,
    data: Data = None,
    seed: Seed = 0,
) -> Model | None:
    return None if usecase is None else _model(usecase, nodes, resources, accesses, data, seed)


takes_model = with_options("model", _model)
"""Gives a command the options that describe a `Model`, its parameter `model`."""


def accesses(
    usecase: UseCaseOption,
    nodes: Annotated[int, typer.Option(help="Node processes that share the data.")] = 1,
    workers: Annotated[int, typer.Option(help="Worker threads per node.")] = 1,
    epochs: Annotated[int, typer.Option(help="Passes over the training data.")] = 1,
    data: Data = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output file; by default accesses-USECASE.npz.")
    ] = None,
) -> None:
    """Count which rows a use case's training reads, for policies.

    The counts are exact. They cover all training batches, and policy builders read the file.
    """
    from adabench.harness.study.model_parameters import count_accesses, usecase_from, write_accesses

    at_least_one(nodes=nodes, workers=workers, epochs=epochs)
    found = usecase_from(usecase, data, seed)
    catalogue = count_accesses(found, nodes * workers, epochs, nodes)
    file = out or Path(f"accesses-{found.name}.npz")
    write_accesses(file, catalogue)
    tell(f"{shown(file)}: {catalogue.batches} batches")
    for parameter in catalogue.parameters:
        if parameter.name in catalogue.accesses:
            counts = catalogue.accesses[parameter.name]
            tell(
                f"  {parameter.name}: {int(counts.sum())} accesses to {int((counts > 0).sum())} of "
                f"{parameter.rows} rows"
            )


@takes_model
def build(
    model: Model,
    policy: PolicyText,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output file; by default standard output.")
    ] = None,
) -> None:
    """Build the policy for a model's parameters, or complete the policy of a file.

    To complete a policy is to fill in the hottest rows, and shares of the data by speed.
    """
    from adabench.harness.study.policies import policy_from, refused

    found = policy_from(policy, model.catalogue, model.resources)
    with refused():
        resolved = found.resolved(model.catalogue, model.resources.shares)
        resolved.check(model.catalogue, model.resources.nodes)
    if out is None:
        typer.echo(resolved.text(), nl=False)
        return
    try:
        resolved.write(out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from error
    tell(shown(out))


@takes_model
def show_policy(model: Model, policy: PolicyText, force: ForceOption = False) -> None:
    """Show how each parameter is managed: rows, bytes per node, technique, home, expected local share."""
    from adabench.analysis.tables import aligned
    from adabench.harness.study.policies import bytes_per_node, local_share

    found = model.policy(policy, force)
    count = model.resources.nodes
    kept = bytes_per_node(found, model.catalogue, count)
    rows: list[tuple[str, ...]] = [
        ("parameter", "rows", "bytes per node", "rule", "technique", "home", "local")
    ]
    for one in found.managed(model.catalogue):
        parameter = one.parameter
        for number, part in enumerate(one.parts):
            rule = found.rules[part.rule - 1]
            local = local_share(found, part.rule, parameter, model.catalogue, count)
            spread = sorted({round(size) for size in kept[parameter.name]})
            size = f"{spread[0]:,}" if len(spread) == 1 else f"{spread[0]:,}–{spread[-1]:,}"
            rows.append(
                (
                    parameter.name if number == 0 else "",
                    f"{part.count:,}",
                    size if number == 0 else "",
                    str(part.rule),
                    rule.technique,
                    rule.home.text(),
                    "?" if local is None else f"{100 * local:.0f} %",
                )
            )
    for line in aligned(rows, left=(0, 4, 5), gap="  "):
        tell(line)
    _tell_rest(model, found)


@with_options("model", _model_or_none)
def diff(
    model: Model | None,
    one: Annotated[str, typer.Argument(help="A file or a builder.", metavar="ONE")],
    other: Annotated[str, typer.Argument(help="Another one.", metavar="OTHER")],
) -> None:
    """Show the differences between two policies; exit with 1 if there are any."""
    if model is None:
        for text in (one, other):
            if not os.path.isfile(text):
                raise UsageError(f"{text} is no file: a builder needs --usecase and --nodes to make a policy")
        lines = _document_diff(one, other)
    else:
        lines = _managed_diff(model, model.policy(one), model.policy(other))
    for line in lines:
        tell(line)
    raise typer.Exit(1 if lines else 0)


@takes_model
def explain(
    model: Model,
    policy: PolicyText,
    parameter: Annotated[str, typer.Argument(help="Qualified name.")],
    row: Annotated[int, typer.Argument(help="Its row.")],
    force: ForceOption = False,
) -> None:
    """Show which rule manages a row, and why no earlier rule does."""
    from adabench.harness.study.policies import refused
    from adaps.policy.matching import matches

    found = model.policy(policy, force)
    with refused():
        named = model.catalogue.parameter(parameter)
        number = found.rule_number(model.catalogue, parameter, row)
    for before, rule in enumerate(found.rules[: number - 1], 1):
        if matches(rule.parameters, named):
            tell(
                f"rule {before}: {rule.parameters} names {parameter}, but row {row} is not one of the "
                f"rule's rows"
            )
        else:
            tell(f"rule {before}: {rule.parameters} does not name {parameter}, which is {_kind(named.kind)}")
    rule = found.rules[number - 1]
    which = "all rows" if rule.rows is None else f"rows of which {row} is one"
    tell(f"rule {number}: {rule.parameters} names {parameter}, {which}: this is the one")
    for line in rule.text().splitlines()[1:]:
        tell(f"  {line}")


@takes_model
def check_policy(
    model: Model,
    policy: PolicyText,
    force: ForceOption = False,
    workers: Workers = 1,
    network: Annotated[
        str, typer.Option(metavar="NAME", help="Network of the run, such as lan or 0.5ms,2gbit.")
    ] = "loopback",
) -> None:
    """Check that a policy fits a model and a cluster, and that `run` executes it.

    Exits with 2 if not.
    """
    from adabench.harness.study.policy_per_cell import executed_policy

    at_least_one(workers=workers)
    nodes, usecase = model.resources.nodes, model.usecase
    found = model.policy(policy, force)
    wanted = replace(found, made_for=None) if force else found
    executed_policy(wanted, model.catalogue, usecase, _BACKEND, nodes, workers, network)
    tell(f"{found.name}: fits {len(model.catalogue.parameters)} parameters on {model.resources.nodes} nodes")
    _tell_rest(model, found)


def _tell_rest(model: Model, policy: Policy) -> None:
    from adaps.policy.limits import not_executed

    if policy.synchronization.every:
        steps = policy.synchronization.every
        often = "step" if steps == 1 else f"{steps} steps"
        tell(f"synchronization: all updates are visible to all every {often}")
        if policy.synchronization.aggregation.rule != "mean":
            tell(f"aggregation: {policy.synchronization.aggregation.text()}")
    if policy.data.shares != "equal":
        shares = [f"{100 * share:.3g} %" for share in policy.data.numbers]
        tell(f"data: samples are shared by {', '.join(shares) or policy.data.shares}")
    for sentence in not_executed(policy, model.catalogue):
        tell(f"not executed by this version: {sentence}")


def _document_diff(one: str, other: str) -> list[str]:
    from adabench.harness.study.policies import refused
    from adaps.policy import Policy

    with refused():
        texts = [Policy.read(file).text().splitlines() for file in (one, other)]
    return list(difflib.unified_diff(texts[0], texts[1], one, other, lineterm=""))


def _managed_diff(model: Model, first: Policy, second: Policy) -> list[str]:
    lines = []
    managed = zip(first.managed(model.catalogue), second.managed(model.catalogue), strict=True)
    for one, other in managed:
        for start, end, a, b in _overlaps(one.parts, other.parts):
            before, after = (_how(policy, rule) for policy, rule in ((first, a), (second, b)))
            if before != after:
                rows = f"rows {start}–{end - 1}" if (start, end) != (0, one.parameter.rows) else "all rows"
                lines.append(f"{one.parameter.name}, {rows}: {before} → {after}")
    for what in ("synchronization", "data"):
        before, after = (getattr(policy, what) for policy in (first, second))
        if before != after:
            lines.append(f"{what}: {before} → {after}")
    return lines


def _overlaps(one: Any, other: Any) -> list[tuple[int, int, int, int]]:
    """Ranges of rows with the rule of each policy."""
    found = [
        (max(a, c), min(b, d), part.rule, counterpart.rule)
        for part in one
        for a, b in part.ranges
        for counterpart in other
        for c, d in counterpart.ranges
        if max(a, c) < min(b, d)
    ]
    return sorted(found)


def _how(policy: Policy, number: int) -> str:
    rule = policy.rules[number - 1]
    more = [] if rule.lookahead is None else [f"lookahead {rule.lookahead}"]
    more += [] if rule.exchange == "auto" else [f"exchange {rule.exchange}"]
    more += [] if rule.wire == "float32" else [rule.wire]
    more += [] if rule.evict is None else [f"evict {rule.evict.text()}"]
    more += [] if rule.admit is None else [f"admit {rule.admit.text()}"]
    more += [] if rule.memory is None else [f"memory {rule.memory.text()}"]
    return ", ".join([rule.technique, f"home {rule.home.text()}", *more])


def _kind(kind: str) -> str:
    return "dense" if kind == "dense" else "a table of rows"
