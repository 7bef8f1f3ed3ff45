"""Exchange of the gradients of all workers, which are then combined by a rule."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import adaps
from adaps.policy import Aggregation
from autoada.sync.process_group import ProcessGroup
from autoada.sync.robust_aggregation import (
    BY_COORDINATE,
    Gathered,
    by_majority,
    krum_weights,
    ordinary,
    squared_conduct,
    squared_distances,
    squared_suspicions,
    suspicion_weights,
)

_log = logging.getLogger("autoada")
STEPS, NOT_FINITE, LEAVES = range(3)
"""What a worker announces before a step: it steps, without finite gradients, or has closed its model."""


class Gradients(NamedTuple):
    """Gradients of some rows."""

    keys: Tensor
    """Distinct int64 keys of the rows."""
    values: Tensor
    """One row of values for each key, float32 or float64, in host memory."""


class CombinedGradients(NamedTuple):
    """Combined gradients of all workers."""

    gradients: Gradients
    """Combined gradients of the rows that this worker combines; empty if only steps are wanted."""
    steps: Sequence[Gradients]
    """Gradients that this worker pushes, each as a separate step. All workers' steps add up to the combined
    gradients. Their number is about the same as under the mean, where each worker's gradient is one step, so
    that the effect of a stateful optimizer stays comparable."""
    anywhere: bool
    """Whether any worker has a gradient of any row."""


class GradientExchange:
    """Combines gradients by a rule: each of n workers combines all gradients of every n-th row.

    So each worker sends its own gradients only once, with any number of workers. For rules that use whole
    gradients, each worker sums distances over its rows, and all workers add up these sums. A worker takes no
    part in a step if a number of its gradients is not finite. A call of `combine` takes at most `most`
    gradients.
    """

    def __init__(self, node: adaps.Node, worker: int, rule: Aggregation, most: int) -> None:
        self._rule = rule
        self._most = most
        self._workers = node.world_size * node.workers
        self._index = node.rank * node.workers + worker
        own = range(node.rank * node.workers, (node.rank + 1) * node.workers)
        self._elsewhere = [share for share in range(self._workers) if share not in own]
        self.bytes_sent = 0
        """Bytes sent to workers of other nodes."""
        self.group = ProcessGroup(node, "aggregation", self._index, self._workers, "combined")
        """Group of all workers."""

    def combine(self, given: Sequence[Gradients], whole: Sequence[bool]) -> list[CombinedGradients]:
        """Collective: combine the gradients of all workers by the rule.

        Parameters
        ----------
        given : sequence of Gradients
            Gradients of this worker. All workers pass the same number of gradients, with rows of equal
            length.
        whole : sequence of bool
            For each gradient, whether it is combined at once instead of pushed in steps.

        Raises
        ------
        ArithmeticError
            If no worker has a gradient that is finite.
        adaps.AdapsError
            If a worker has closed its model.
        """
        finite = all(bool(each.values.isfinite().all()) for each in given)
        if not finite:
            given = [_none_of(each) for each in given]
        by_receiver, counts = [], []
        for each in given:
            turns = each.keys % self._workers
            order = turns.sort(stable=True).indices
            by_receiver.append(Gradients(each.keys[order], each.values[order]))
            counts.append(turns.bincount(minlength=self._workers))
        headers = self._gather(self._header(STEPS if finite else NOT_FINITE, counts))
        counting = self._check_headers(headers, len(given))
        numbers = headers[:, 2 : 2 + len(given) * self._workers]
        numbers = numbers.view(self._workers, len(given), self._workers)
        received = self._exchange(by_receiver, numbers)
        gathered = [_gathered([section[worker] for worker in counting]) for section in received]
        rows = [of_all for _, of_all in gathered]
        # Workers that are left out count among the faulty ones.
        faulty = max(0, (self._rule.faulty or 0) - (self._workers - len(counting)))
        if self._rule.rule in BY_COORDINATE:
            trim = faulty if self._rule.rule == "trimmed_mean" else None
            believed = ordinary(self._sum(squared_conduct(rows, len(counting))))
            sums = [Gradients(keys, by_majority(of_all, trim, believed)) for keys, of_all in gathered]
            steps = [_in_steps(each, of_all) for each, of_all in zip(sums, rows, strict=True)]
        else:
            weights = self._weights(rows, len(counting), faulty)
            own = float(weights[counting.index(self._index)]) if finite else 0.0
            sums = [
                Gradients(keys, torch.einsum("n,nrl->rl", weights.to(of_all.values.dtype), of_all.values))
                if wanted
                else _none_of(mine)
                for (keys, of_all), mine, wanted in zip(gathered, given, whole, strict=True)
            ]
            steps = [[Gradients(mine.keys, own * mine.values)] if own else [] for mine in given]
        anywhere = (numbers.sum((0, 2)) > 0).tolist()
        return [CombinedGradients(*one) for one in zip(sums, steps, anywhere, strict=True)]

    def _check_headers(self, headers: Tensor, sections: int) -> list[int]:
        """Return the workers with gradients that count in this step, if all workers make it."""
        for worker, (what, others) in enumerate(headers[:, :2].tolist()):
            if what == LEAVES:
                raise adaps.AdapsError(
                    f"worker {worker} has closed its model before the others: under aggregation "
                    f"{self._rule.rule!r} all workers make as many steps"
                )
            if others != sections:
                raise adaps.AdapsError(
                    f"worker {worker} steps with another optimizer than worker {self._index}: under "
                    f"aggregation {self._rule.rule!r} all workers make the same steps in the same order"
                )
        counting = [worker for worker, what in enumerate(headers[:, 0].tolist()) if what == STEPS]
        if not counting:
            raise ArithmeticError("no worker has a finite gradient: training diverged")
        return counting

    def spread(self, mine: Gradients) -> Gradients:
        """Collective: give all workers the combined rows of each."""
        counts = self._gather(torch.tensor([len(mine.keys)], dtype=torch.int64, device="cpu"))[:, 0].tolist()
        sizes = [len(mine.keys)] * self._workers
        keys = self._send(mine.keys.repeat(self._workers), sizes, counts)
        values = self._send(mine.values.repeat(self._workers, 1), sizes, counts)
        return Gradients(keys, values)

    def leave(self) -> None:
        """Announce that this worker makes no more steps."""
        self.group.hold()
        # This does not block the caller, which must close the node because barriers of other nodes wait for
        # it.
        threading.Thread(target=self._say_goodbye, name="aggregation").start()

    def _say_goodbye(self) -> None:
        try:
            self._gather(self._header(LEAVES, []))
            self.group.release()
        except (adaps.AdapsError, RuntimeError) as error:  # Closing the node also raises this error.
            _log.info("the exchange of gradients has ended: %s", error)

    def _header(self, announcement: int, counts: Sequence[Tensor]) -> Tensor:
        """Return the worker's announcement: its sections, and the rows of each section for each worker."""
        header = torch.zeros(2 + self._most * self._workers, dtype=torch.int64, device="cpu")
        header[0], header[1] = announcement, len(counts)
        if counts:
            header[2 : 2 + len(counts) * self._workers] = torch.cat(list(counts))
        return header

    def _weights(self, gathered: Sequence[Gathered], workers: int, faulty: int) -> Tensor:
        if self._rule.rule == "krum":
            keep = self._rule.keep or 1
            return krum_weights(self._sum(squared_distances(gathered, workers)), faulty, keep)
        return suspicion_weights(self._sum(squared_suspicions(gathered, workers)), faulty)

    def _exchange(self, given: Sequence[Gradients], numbers: Tensor) -> list[list[Gradients]]:
        """For each section, the gradients that each worker has of this worker's rows."""
        received = []
        for section, each in enumerate(given):
            sizes = numbers[self._index, section].tolist()
            counts = numbers[:, section, self._index].tolist()
            keys = self._send(each.keys, sizes, counts).split(counts)
            values = self._send(each.values, sizes, counts).split(counts)
            received.append([Gradients(*one) for one in zip(keys, values, strict=True)])
        return received

    def _send(self, rows: Tensor, sizes: Sequence[int], counts: Sequence[int]) -> Tensor:
        """All to all: send `sizes` rows to the workers, and receive `counts` rows from them."""
        result = rows.new_empty(sum(counts), *rows.shape[1:])
        work = self.group.begin("alltoall_base", result, rows.contiguous(), list(counts), list(sizes))
        self.group.wait(work)
        self.bytes_sent += sum(sizes[share] for share in self._elsewhere) * rows[:1].numel() * rows.itemsize
        return result

    def _sum(self, part: Tensor) -> Tensor:
        """The sum over all workers, in their order, so that it is the same everywhere."""
        return self._gather(part.reshape(-1)).sum(0).view(part.shape)

    def _gather(self, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(self._workers)]
        self.group.wait(self.group.begin("allgather", [parts], [part]))
        self.bytes_sent += len(self._elsewhere) * part.nbytes
        return torch.stack(parts)


def _none_of(gradients: Gradients) -> Gradients:
    return Gradients(gradients.keys[:0], gradients.values[:0])


def _in_steps(combined: Gradients, gathered: Gathered) -> list[Gradients]:
    """Return a step for each worker with a gradient of a row, as if all had equal parts of the sum."""
    keys, sums = combined
    have = gathered.present.sum(0)
    parts = sums / have[:, None].to(sums.dtype)
    return [
        Gradients(keys[rows], parts[rows])
        for rows in (have > number for number in range(int(have.max()) if len(have) else 0))
    ]


def _gathered(given: Sequence[Gradients]) -> tuple[Tensor, Gathered]:
    """The rows that any worker has, and each worker's gradients of them."""
    keys, where = torch.cat([each.keys for each in given]).unique(return_inverse=True)
    length = given[0].values.shape[1]
    values = given[0].values.new_zeros(len(given), len(keys), length)
    present = torch.zeros(len(given), len(keys), dtype=torch.bool, device="cpu")
    for worker, (each, places) in enumerate(
        zip(given, where.split([len(g.keys) for g in given]), strict=True)
    ):
        values[worker, places] = each.values
        present[worker, places] = True
    return keys, Gathered(values, present)
