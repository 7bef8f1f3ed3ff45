"""Partitions the samples of a training step among workers, by the shares of a policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from adaps.policy import DataSharing, Policy, PolicyError

if TYPE_CHECKING:
    from adabench.usecases.interface import UseCase


def with_whole_samples(policy: Policy, batch: int) -> Policy:
    """Return the policy with shares that correspond to whole samples of a step.

    `batch` is the number of samples that a worker has in a step if shares are equal. Raises `PolicyError` if
    a worker would have none.
    """
    sizes = _sizes(policy, batch)
    return replace(policy, data=DataSharing(tuple(size / sum(sizes) for size in sizes)))


def partitioned(usecase: UseCase, policy: Policy, workers: int) -> UseCase:
    """The use case with the batches that a policy's shares give the `workers` of each node.

    Raises `PolicyError` if shares differ and the use case supports only equal ones, or a worker would have no
    sample.
    """
    from adabench.usecases.interface import Dealt

    if len(set(policy.data.numbers)) <= 1:
        return usecase
    if not isinstance(usecase, Dealt):
        raise PolicyError(
            f"{policy.source}: [data]: shares = {policy.data.text()} differ, and use case {usecase.name!r} "
            "supports only equal shares: leave it 'equal'"
        )
    sizes = _sizes(policy, usecase.params.batch)
    return usecase.with_batches([size for size in sizes for _ in range(workers)])


def _sizes(policy: Policy, batch: int) -> Sequence[int]:
    """Return the samples of a step for a worker of each node; their sum is the same as with equal batches.

    Whole numbers are found by the largest remainders. The resulting shares give the same numbers again.
    """
    shares = policy.data.numbers
    step = len(shares) * batch
    exact = [share * step for share in shares]
    sizes = [math.floor(one + 1e-6) for one in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda node: sizes[node] - exact[node])
    for node in by_remainder[: step - sum(sizes)]:
        sizes[node] += 1
    if 0 in sizes:
        node = sizes.index(0)
        raise PolicyError(
            f"{policy.source}: [data]: share {shares[node]:g} gives node {node} less than one of the {step} "
            f"samples of a step ({batch} for each node): use larger batches, or shares that differ less"
        )
    return sizes
