"""Options of a training on clusters that are only simulated, which `simulate` and `search` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adabench.harness.cli.options import (
    CostedResources,
    Data,
    Links,
    OneUseCase,
    ServerBackend,
    StepMilliseconds,
    Workers,
)
from adabench.harness.errors import UsageError

if TYPE_CHECKING:
    from adabench.backends.policies.resources import Resources
    from adabench.usecases.interface import UseCase


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """A training job and its simulated cluster.

    Attributes
    ----------
    usecase, backend, network, resources, workers, step, data
        Values of the options of these names.
    """

    usecase: OneUseCase
    backend: ServerBackend = "autoada-automatic"
    network: Links = None
    resources: CostedResources = None
    workers: Workers = 1
    step: StepMilliseconds = None
    data: Data = None

    def clusters(self, nodes: Sequence[int] | None, example: str) -> list[Resources]:
        """Return the clusters that the options describe.

        Parameters
        ----------
        nodes : sequence of int, optional
            Numbers of nodes. Without them, the result is the cluster of --resources.
        example : str
            Value of --nodes in the message that asks for it.

        Raises
        ------
        UsageError
            If neither nodes nor --resources are given, or a value is wrong.
        """
        from adabench.harness.estimate.simulate import channels_of, clusters_of

        if nodes is None and self.resources is None:
            raise UsageError(
                f"for how many nodes? Give --nodes {example}, or --resources with a file of "
                "`adabench resources`"
            )
        channels = channels_of(self.backend)
        return clusters_of(self._measured(), nodes, self.network, self.workers, channels)

    def trained(self, seed: int) -> tuple[UseCase, float, str]:
        """Return the use case, the compute seconds of a step, and a note about their source."""
        from adabench.harness.estimate.measured_steps import compute_of
        from adabench.harness.study.model_parameters import usecase_from

        usecase = usecase_from(self.usecase, self.data, seed)
        compute, source = compute_of(
            self.usecase, self.backend, self.step, self.resources, self._measured(), self.data, seed
        )
        return usecase, compute, f"a step computes for {1e3 * compute:.3g} ms, {source}"

    def _measured(self) -> Resources | None:
        """Return the cluster of --resources."""
        from adabench.harness.study.policies import resources_from

        return None if self.resources is None else resources_from(self.resources, None)
