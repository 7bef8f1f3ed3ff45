"""The sections of a policy's document, apart from its rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adaps.policy.toml_text import toml_fields, toml_value
from adaps.policy.validation import PolicyError, check_fields, check_one_of, check_whole, checked_shares

__all__ = [
    "AGGREGATIONS",
    "EXPECTS_FAULTY",
    "MEAN",
    "SHARES_BY_SPEED",
    "SHARES_EQUAL",
    "Aggregation",
    "DataSharing",
    "MadeFor",
    "Synchronization",
]

SHARES_EQUAL, SHARES_BY_SPEED = "equal", "speed"
AGGREGATIONS = ("mean", "median", "trimmed_mean", "krum", "suspicion")
MEAN, KRUM = "mean", "krum"
EXPECTS_FAULTY = ("trimmed_mean", "krum", "suspicion")
"""Rules that need the maximum number of wrong workers."""


@dataclass(frozen=True)
class MadeFor:
    """The model and the cluster of a policy. The policy is refused for others.

    Attributes
    ----------
    parameters : str, optional
        `Catalogue.sha256` of the model's parameters.
    nodes : int, optional
        Number of nodes.
    """

    parameters: str | None = None
    nodes: int | None = None

    def __post_init__(self) -> None:
        if self.parameters is not None:
            digits = self.parameters.removeprefix("sha256:") if isinstance(self.parameters, str) else ""
            if len(digits) != 64 or set(digits) - set("0123456789abcdef") or digits == self.parameters:
                raise PolicyError(
                    f"parameters is {self.parameters!r}; it must be sha256: and 64 hexadecimal digits"
                )
        if self.nodes is not None:
            check_whole("nodes", self.nodes, least=1)

    def text(self) -> str:
        """Return the section as TOML."""
        return toml_fields("[made_for]", parameters=self.parameters, nodes=self.nodes)


@dataclass(frozen=True)
class Aggregation:
    """The combination of all workers' gradients in each step.

    Attributes
    ----------
    rule : str
        Rule. ``mean`` averages. ``median`` takes the median of each coordinate. ``trimmed_mean`` averages
        each coordinate without the `faulty` smallest and largest values. ``krum`` takes the gradient that is
        nearest to its neighbours. ``suspicion`` takes a mean without outliers, with weights by the distance
        to the median.
    faulty : int, optional
        Maximum number of wrong workers at a time, at least 1. trimmed_mean, krum and suspicion need it.
    keep : int, optional
        Number of gradients that krum averages, 1 by default.
    """

    rule: str = MEAN
    faulty: int | None = None
    keep: int | None = None

    def __post_init__(self) -> None:
        check_one_of("aggregation", self.rule, AGGREGATIONS)
        if (self.faulty is not None) != (self.rule in EXPECTS_FAULTY):
            needed = (
                f"takes no faulty = {self.faulty!r}"
                if self.faulty is not None
                else "needs faulty, how many workers may be wrong at once: "
                f'{{ rule = "{self.rule}", faulty = 1 }}'
            )
            raise PolicyError(f"aggregation {self.rule!r} {needed}")
        if self.faulty is not None:
            check_whole("aggregation faulty", self.faulty, least=1)
        if self.keep is not None:
            if self.rule != KRUM:
                raise PolicyError(f"aggregation {self.rule!r} takes no keep = {self.keep!r}")
            check_whole("aggregation keep", self.keep, least=1)

    @classmethod
    def of(cls, value: Any) -> Aggregation:
        """Return the aggregation for the value of ``aggregation`` in a document.

        Parameters
        ----------
        value : str, dict or Aggregation
            Value such as ``"median"`` or ``{"rule": "trimmed_mean", "faulty": 2}``.
        """
        if isinstance(value, Aggregation):
            return value
        if isinstance(value, Mapping):
            check_fields("aggregation", value, ("rule", "faulty", "keep"))
            if "rule" not in value:
                raise PolicyError(f"aggregation has no rule; valid are {', '.join(AGGREGATIONS)}")
            return cls(**value)
        return cls(value)

    def check(self, workers: int) -> None:
        """Raise `PolicyError` if there are too few workers to detect wrong ones.

        Parameters
        ----------
        workers : int
            Number of workers of all nodes.
        """
        if self.faulty is None:
            return
        least = 2 * self.faulty + (2 if self.rule == KRUM else 0)
        if workers <= least:
            raise PolicyError(
                f"aggregation {self.rule!r} with faulty = {self.faulty} needs more than {least} workers, and "
                f"there {'is 1' if workers == 1 else f'are {workers}'}"
            )
        if self.keep is not None and self.keep > workers - self.faulty:
            raise PolicyError(
                f"aggregation keep is {self.keep}; of {workers} workers, {self.faulty} of them faulty, it "
                f"can be at most {workers - self.faulty}"
            )

    def text(self) -> str:
        """Return the value of ``aggregation`` as TOML."""
        if self.faulty is None:
            return toml_value(self.rule)
        given = {"rule": self.rule, "faulty": self.faulty, "keep": self.keep}
        return toml_value({name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class Synchronization:
    """Times when workers see each other's updates, and the combination of one step's gradients.

    Attributes
    ----------
    every : int
        Number of steps after which all updates of all workers are visible to all workers; 0 for asynchronous
        updates.
    aggregation : Aggregation
        Combination of all workers' gradients. Any rule except the mean needs ``every = 1``.
    """

    every: int = 0
    aggregation: Aggregation = field(default_factory=Aggregation)

    def __post_init__(self) -> None:
        check_whole("every", self.every, least=0)
        if not isinstance(self.aggregation, Aggregation):
            object.__setattr__(self, "aggregation", Aggregation.of(self.aggregation))
        if self.aggregation.rule != MEAN and self.every != 1:
            raise PolicyError(
                f"aggregation is {self.aggregation.rule!r} with every = {self.every}; only gradients of the "
                "same step can be compared: it needs every = 1"
            )

    def text(self) -> str:
        """Return the section as TOML; the mean is omitted."""
        aggregation = None if self.aggregation == Aggregation() else self.aggregation
        return toml_fields("[synchronization]", every=self.every, aggregation=aggregation)


@dataclass(frozen=True)
class DataSharing:
    """The distribution of training samples to workers.

    Attributes
    ----------
    shares : "equal", "speed", or sequence of float
        Shares of the workers. ``equal`` gives every worker the same number of samples. ``speed`` gives each
        worker a number in proportion to the speed of its node; it must be replaced by numbers when the speeds
        are known. Numbers are the part of each node in the samples of a step, and add up to 1.
    """

    shares: str | Sequence[float] = "equal"

    def __post_init__(self) -> None:
        if isinstance(self.shares, str) or not isinstance(self.shares, Sequence):
            check_one_of("shares", self.shares, (SHARES_EQUAL, SHARES_BY_SPEED), " or a list of numbers")
            return
        numbers = checked_shares("shares", self.shares)
        if 0.0 in numbers:
            raise PolicyError(f"shares holds 0 for node {numbers.index(0.0)}; every node needs samples")
        object.__setattr__(self, "shares", numbers)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Each node's part; empty if `shares` is a text."""
        return () if isinstance(self.shares, str) else tuple(self.shares)

    def check(self, nodes: int) -> None:
        """Raise `PolicyError` if the numbers do not match the number of nodes.

        Parameters
        ----------
        nodes : int
            Number of nodes of the cluster.
        """
        if self.numbers and len(self.numbers) != nodes:
            raise PolicyError(
                f"[data]: shares has {len(self.numbers)} numbers for {nodes} nodes; give one each"
            )

    def text(self) -> str:
        """Return the value of ``shares`` as TOML."""
        return toml_value(self.shares)
