"""Builds the policies of cells, for backends that use one, before any of their processes starts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from adabench.backends.policies.resources import Resources
from adabench.harness.errors import UsageError
from adabench.harness.machine.namespaces import link_of
from adabench.harness.plugins.registry import load_backend
from adabench.harness.study.cell import Cell
from adabench.harness.study.data_partition import partitioned, with_whole_samples
from adabench.harness.study.model_parameters import count_accesses, model_parameters_of
from adabench.harness.study.policies import made_where_counted, refused
from adaps.policy import Catalogue, Policy
from adaps.policy.limits import not_executed

if TYPE_CHECKING:
    from adabench.usecases.interface import UseCase


def with_policy_per_cell(cells: Sequence[Cell], usecase: UseCase) -> list[Cell]:
    """The cells with the policy that the option `policy` of their backend names, as a whole document.

    Each policy is built for the model of the cells' use case and a cell's number of nodes, which count as
    equal. Row accesses are counted where a builder needs them, once for all cells that share them. Raises
    `UsageError` if there is no such policy, it does not fit, or a part of it is not executed.
    """
    from adabench.backends.interface import ServerOptions

    catalogue = functools.cache(lambda: model_parameters_of(usecase))

    @functools.cache
    def counted(nodes: int, workers: int) -> Catalogue:
        return count_accesses(usecase, nodes * workers, epochs=1, nodes=nodes)

    @functools.cache
    def document(text: str, backend: str, nodes: int, workers: int, network: str) -> str:
        try:
            with refused():
                policy, known = made_where_counted(
                    text, Resources.alike(nodes), catalogue(), lambda: counted(nodes, workers)
                )
                return executed_policy(policy, known, usecase, backend, nodes, workers, network).text()
        except UsageError as error:
            raise UsageError(f"backend {backend!r}: {error}") from error

    def policy_of(cell: Cell) -> str | None:
        if not issubclass(load_backend(cell.backend).Options, ServerOptions):
            return cell.policy
        return document(cell.options["policy"], cell.backend, cell.nodes, cell.workers, cell.network)

    return [msgspec.structs.replace(cell, policy=policy_of(cell)) for cell in cells]


def executed_policy(
    policy: Policy,
    catalogue: Catalogue,
    usecase: UseCase,
    backend: str,
    nodes: int,
    workers: int,
    network: str,
) -> Policy:
    """Return the policy as a run executes it: shares of the data are whole samples.

    Parameters
    ----------
    policy : Policy
        Policy that fits the catalogue.
    catalogue : Catalogue
        Parameters of the use case's model.
    usecase : UseCase
        Use case that the cell trains.
    backend : str
        Backend of the cell.
    nodes : int
        Number of nodes of the cell.
    workers : int
        Number of workers per node of the cell.
    network : str
        Network of the cell.

    Raises
    ------
    UsageError
        If the backend does not execute the policy, or the use case cannot deal its data by it.
    """
    from adabench.backends.interface import TakesPolicy

    made = load_backend(backend)()
    with refused():
        if policy.data.numbers:
            policy = _dealt(usecase, policy, nodes, workers)
        if isinstance(made, TakesPolicy):
            imitated = "loopback" if link_of(network) is not None else network
            made.check_policy(usecase, policy, nodes, workers, imitated)
            return policy
    for sentence in not_executed(policy, catalogue):
        raise UsageError(f"{policy.source}: {sentence}")
    return policy


def _dealt(usecase: UseCase, policy: Policy, nodes: int, workers: int) -> Policy:
    """The policy with the shares that batches have in whole samples, if the use case supports them."""
    from adabench.usecases.interface import DataError

    try:
        policy = with_whole_samples(policy, usecase.params.batch)
        partitioned(usecase, policy, workers).loaders(0, nodes * workers)
    except DataError as error:
        raise UsageError(f"use case {usecase.name!r}: {error}") from error
    return policy
