"""Robust means of workers' gradients: a few wrong workers do not decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

OUTLYING = 3
"""Multiple of the median worker's distance; farther workers are ignored for rows without a majority."""
BY_COORDINATE = ("median", "trimmed_mean")
"""Rules that treat each number separately; other rules weight workers by their whole gradients."""


class Gathered(NamedTuple):
    """Gradients of some rows, from all workers with gradients that count."""

    values: Tensor
    """Gradients of shape (workers, rows, length); zero where a worker has none of a row."""
    present: Tensor
    """Whether each worker has a gradient of each row, of shape (workers, rows)."""

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.values.shape[0]


def trimmed_mean(gathered: Gathered, trim: int | None) -> Tensor:
    """Return the mean of each coordinate without its `trim` least and greatest values; None: the median.

    If only k of n workers have a row, only these k count, and the result is scaled by k / n, as in the mean.
    The trimming always leaves at least one or two values. D. Yin et al., *Byzantine-Robust Distributed
    Learning: Towards Optimal Statistical Rates*, ICML 2018.
    """
    values, present = gathered
    have = present.sum(0)
    most = (have - 1).clamp(min=0) // 2
    out = most if trim is None else most.clamp(max=trim)
    ranks = torch.arange(gathered.workers, device="cpu")[:, None]
    kept = (ranks >= out) & (ranks < have - out)
    ordered = values.masked_fill(~present[:, :, None], torch.inf).sort(0).values
    sums = ordered.masked_fill(~kept[:, :, None], 0).sum(0)
    parts = have / ((have - 2 * out).clamp(min=1) * gathered.workers)
    return sums * parts[:, None].to(sums.dtype)


def by_majority(gathered: Gathered, trim: int | None, believed: Tensor) -> Tensor:
    """Return `trimmed_mean`, with only `believed` workers for rows that at most half of the workers have.

    Such rows have no majority: if a single worker has a row, the result depends on its gradient alone.
    """
    have = gathered.present.sum(0)
    agreed = 2 * have > gathered.workers
    present = gathered.present & (agreed | believed[:, None])
    return trimmed_mean(Gathered(gathered.values, present), trim)


def squared_conduct(gathered: Sequence[Gathered], workers: int) -> Tensor:
    """Return two squared distances of each worker, of shape (2, workers), in float64.

    The first is the distance to the median, over rows that more than half of the workers have. The second is
    the length of its gradients of all other rows.
    """
    result = torch.zeros(2, workers, dtype=torch.float64, device="cpu")
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
    """Return which workers are at most `OUTLYING` times as far as the median worker in both distances."""
    half = conduct.sort(1).values[:, (conduct.shape[1] - 1) // 2]
    return (conduct <= OUTLYING**2 * half[:, None]).all(0)


def squared_distances(gathered: Sequence[Gathered], workers: int) -> Tensor:
    """Squared distances between each two workers, of shape (workers, workers), in float64."""
    result = torch.zeros(workers, workers, dtype=torch.float64, device="cpu")
    for values, _ in gathered:
        flat = values.reshape(workers, -1).double()
        for i in range(workers):
            result[i] += (flat - flat[i]).square().sum(1)
    return result


def squared_suspicions(gathered: Sequence[Gathered], workers: int) -> Tensor:
    """Squared distances of each worker to the median, of shape (workers,), in float64."""
    result = torch.zeros(workers, dtype=torch.float64, device="cpu")
    for each in gathered:
        centre = trimmed_mean(each, None)
        result += (each.values.double() - centre.double()).reshape(workers, -1).square().sum(1)
    return result


def krum_weights(squared: Tensor, faulty: int, keep: int) -> Tensor:
    """Return weights of workers: equal for the workers nearest to their n - f - 2 nearest neighbours.

    P. Blanchard et al., *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*, NIPS 2017;
    with `keep` above 1 it is their Multi-Krum.
    """
    workers = len(squared)
    neighbours = max(1, workers - faulty - 2)
    others = squared.sort(1).values[:, 1 : 1 + neighbours]  # The first is the worker itself.
    chosen = others.sum(1).sort(stable=True).indices[: max(1, min(keep, workers - faulty))]
    weights = torch.zeros(workers, dtype=torch.float64, device="cpu")
    weights[chosen] = 1 / len(chosen)
    return weights


def suspicion_weights(squared: Tensor, faulty: int) -> Tensor:
    """Return weights of workers: smaller for farther workers, and the farthest are replaced.

    At most `faulty` workers are replaced, which are more than `OUTLYING` times as far as the median worker.
    Otherwise data of correct workers would be lost in every step.

    Let s be the distance of a worker to the centre, and a the median of all distances. The weight is a / (a +
    s), divided by the sum of all weights. The mean of the other workers replaces the most suspicious workers,
    and their weights are shared equally among the others. This follows the algorithm in pipeDejavu
    (github.com/explcre/pipeDejavu). There, a is a constant, the centre is the weighted mean of the step, and
    the number of replaced workers is constant.
    """
    distances = squared.sqrt()
    workers = len(distances)
    half = distances.sort().values[(workers - 1) // 2]
    weights = half / (half + distances)
    weights[distances == 0] = 1  # Also if more than half of the workers agree to the last bit.
    weights /= weights.sum()
    far = int((distances > OUTLYING * half).sum())
    order = distances.sort(stable=True).indices
    left = workers - min(far, faulty)
    replaced, trusted = order[left:], order[:left]
    weights[trusted] += weights[replaced].sum() / left
    weights[replaced] = 0
    return weights
