"""Robust means of workers' gradients: a few wrong workers do not decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from adaps.policy import Aggregation

OUTLYING = 3
"""Times the distance of the median worker: who is farther is not believed where it cannot be outvoted."""
BY_COORDINATE = ("median", "trimmed_mean")
"""Rules that look at each number apart; others look at whole gradients, and weigh the workers."""


class Gathered(NamedTuple):
    """Gradients of some rows, of all workers whose gradients count.

    Attributes
    ----------
    values : Tensor
        Gradients of shape (workers, rows, length); zero where a worker has none of a row.
    present : Tensor
        Whether each worker has a gradient of each row, of shape (workers, rows).
    """

    values: Tensor
    present: Tensor

    @property
    def workers(self) -> int:
        """How many there are."""
        return self.values.shape[0]


def trimmed_mean(gathered: Gathered, trim: int | None) -> Tensor:
    """The mean of each coordinate without its `trim` least and greatest values; None: the median.

    Of a row that only some workers have, those count, and the result does as much as they do in the mean:
    with k of n workers, k / n. As many are left out as leave one or two, at most. D. Yin et al.,
    *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*, ICML 2018.
    """
    values, present = gathered
    have = present.sum(0)
    most = (have - 1).clamp(min=0) // 2
    out = most if trim is None else most.clamp(max=trim)
    ranks = torch.arange(gathered.workers)[:, None]
    kept = (ranks >= out) & (ranks < have - out)
    ordered = values.masked_fill(~present[:, :, None], torch.inf).sort(0).values
    sums = ordered.masked_fill(~kept[:, :, None], 0).sum(0)
    parts = have / ((have - 2 * out).clamp(min=1) * gathered.workers)
    return sums * parts[:, None].to(sums.dtype)


def by_majority(gathered: Gathered, trim: int | None, believed: Tensor) -> Tensor:
    """`trimmed_mean`, in which only those `believed` count for rows that at most half of the workers have.

    There nobody can be outvoted: a row that one worker alone has is what this one says.
    """
    have = gathered.present.sum(0)
    agreed = 2 * have > gathered.workers
    present = gathered.present & (agreed | believed[:, None])
    return trimmed_mean(Gathered(gathered.values, present), trim)


def squared_conduct(gathered: Sequence[Gathered], workers: int) -> Tensor:
    """How each worker behaves, of shape (2, workers), in float64.

    The squared distance to the median of all, over the rows that more than half of them have, and the squared
    length of its gradients of all other rows.
    """
    result = torch.zeros(2, workers, dtype=torch.float64)
    for each in gathered:
        agreed = 2 * each.present.sum(0) > workers
        values, present = each.values[:, agreed], each.present[:, agreed]
        if values.numel() > 0:
            away = values - trimmed_mean(Gathered(values, present), None)
            away = away.masked_fill(~present[:, :, None], 0)
            result[0] += away.reshape(workers, -1).double().square().sum(1)
        result[1] += each.values[:, ~agreed].reshape(workers, -1).double().square().sum(1)
    return result


def ordinary(conduct: Tensor) -> Tensor:
    """Which workers are in no respect more than `OUTLYING` times as far as the median worker."""
    half = conduct.sort(1).values[:, (conduct.shape[1] - 1) // 2]
    return (conduct <= OUTLYING**2 * half[:, None]).all(0)


def weighted(gathered: Gathered, weights: Tensor) -> Tensor:
    """The weighted sum of the workers' gradients; a missing gradient counts as zero."""
    return torch.einsum("n,nrl->rl", weights.to(gathered.values.dtype), gathered.values)


def squared_distances(gathered: Sequence[Gathered], workers: int) -> Tensor:
    """Between each two workers, of shape (workers, workers), in float64."""
    result = torch.zeros(workers, workers, dtype=torch.float64)
    for values, _ in gathered:
        flat = values.reshape(workers, -1).double()
        for i in range(workers):
            result[i] += (flat - flat[i]).square().sum(1)
    return result


def squared_suspicions(gathered: Sequence[Gathered], workers: int) -> Tensor:
    """Between each worker and the median of all, of shape (workers,), in float64."""
    result = torch.zeros(workers, dtype=torch.float64)
    for each in gathered:
        centre = trimmed_mean(each, None)
        result += (each.values.double() - centre.double()).reshape(workers, -1).square().sum(1)
    return result


def krum_weights(squared: Tensor, faulty: int, keep: int) -> Tensor:
    """What each worker counts: those count alike who are nearest to their n - f - 2 nearest others.

    P. Blanchard et al., *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*, NIPS 2017;
    with `keep` above 1 it is their Multi-Krum.
    """
    workers = len(squared)
    neighbours = max(1, workers - faulty - 2)
    others = squared.sort(1).values[:, 1 : 1 + neighbours]  # the first is the worker itself
    chosen = others.sum(1).sort(stable=True).indices[: max(1, min(keep, workers - faulty))]
    weights = torch.zeros(workers, dtype=torch.float64)
    weights[chosen] = 1 / len(chosen)
    return weights


def suspicion_weights(squared: Tensor, faulty: int) -> Tensor:
    """What each worker counts: less the farther it is, and the farthest are replaced.

    These are at most `faulty`, and more than `OUTLYING` times as far as the median worker: without that, data
    of workers that are right would be lost in every step.

    With the distance s of a worker to the centre and the median a of all distances it is a / (a + s), divided
    by the sum of all; the mean of the others takes the place of the most suspicious ones, whose weights are
    shared equally among these. After the algorithm in pipeDejavu (github.com/explcre/pipeDejavu), which has
    a constant for a, the weighted mean of the step itself for the centre, and always replaces as many.
    """
    distances = squared.sqrt()
    workers = len(distances)
    half = distances.sort().values[(workers - 1) // 2]
    weights = torch.full_like(distances, 1 / workers)
    if half > 0:
        weights = half / (half + distances)
        weights /= weights.sum()
    elif distances.max() > 0:  # more than half of them agree to the last bit
        weights = (distances == 0).double()
        weights /= weights.sum()
    far = int((distances > OUTLYING * half).sum())
    order = distances.sort(stable=True).indices
    left = workers - min(far, faulty)
    replaced, trusted = order[left:], order[:left]
    weights[trusted] += weights[replaced].sum() / left
    weights[replaced] = 0
    return weights


def still_faulty(rule: Aggregation, missing: int) -> int:
    """Maximum number of wrong workers among those whose gradients count, if `missing` are left out."""
    return max(0, (rule.faulty or 0) - missing)
