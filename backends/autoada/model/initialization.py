"""Selection of initial weights: all nodes try several for some steps and then share the best."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import adaps
from autoada.hash_embedding import HashEmbedding

Batch = Any
SMOOTHING = 0.8
"""Part of the smoothed loss that remains in each step."""
SAME = 1e-3
"""Relative difference up to which smoothed losses count as equal, so that gradients decide."""
PLATEAU = 1e-3
"""Relative decrease of the smoothed loss in a rung up to which a candidate is on a plateau."""
FLOATS = 256
"""Number of floats of a row that carries weights between nodes."""


class Selection(NamedTuple):
    """Result of `select_initialization`. All nodes get the same result, bit for bit.

    Attributes
    ----------
    model : nn.Module
        Best model, with the weights after its trial steps.
    seed : int
        Seed of the best model: the argument of `make_model`.
    rungs : list of dict of int to float
        Smoothed losses at the end of each rung, by the candidates' seeds; NaN if a loss was not finite.
    steps : int
        Total number of trial steps of all nodes.
    """

    model: nn.Module
    seed: int
    rungs: list[dict[int, float]]
    steps: int


def select_initialization(
    make_model: Callable[[int], nn.Module],
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    loss: Callable[[nn.Module, Batch], Tensor],
    batches: Iterable[Batch],
    *,
    candidates: int = 8,
    rungs: int = 3,
    steps: int = 8,
    seed: int = 0,
    **node_options: Any,
) -> Selection:
    """Collective: try several initial weights, and give all nodes the best ones.

    Candidates are dealt to the nodes in turn. In each rung, each node trains its candidates, all with the
    same batches. The better half of all candidates continues with twice as many steps. This is successive
    halving (Jamieson and Talwalkar, *Non-stochastic Best Arm Identification and Hyperparameter Optimization*,
    AISTATS 2016). The candidate with the lower smoothed loss is better. If two losses are nearly equal,
    the larger norm of the last gradient is better, because it promises more progress. Candidates whose loss
    is not finite are dropped. Candidates on a plateau are dropped unless all are.

    Call this function once in each process, before `create_node` or `AdaModel`. Pass the model of the result
    to them, with a new optimizer.

    Parameters
    ----------
    make_model : callable
        Factory: ``make_model(seed)`` returns a new model on the CPU or a GPU. All models have equal shapes.
        PyTorch's global generator is also seeded with `seed` before each call.
    optimizer : callable
        Factory that returns the plain optimizer of a model.
    loss : callable
        Loss function: ``loss(model, batch)`` returns a scalar.
    batches : iterable
        Batches of this node, which are repeated if there are too few.
    candidates : int
        Number of candidates, 1 or more; their seeds are `seed`, `seed` + 1 and so on.
    rungs : int
        Maximum number of comparisons, 1 or more. The best candidate after the last comparison wins, or
        earlier a candidate that is the only one left.
    steps : int
        Number of steps of each candidate in the first rung, 2 or more.
    seed : int
        Seed of the first candidate, 0 or more. Equal seeds and batches give equal winners, bit for bit.
    **node_options
        Further arguments of `adaps.Node`, such as ``listen``.

    Returns
    -------
    Selection
        Model with the best initial weights, and the losses of all candidates.

    Raises
    ------
    ValueError
        If a number is too small, there is no batch, or no candidate has a finite loss.
    adaps.PeerLost
        If another node is lost.

    Notes
    -----
    Nodes with different batches measure different losses. If the batches change the loss as much as the
    initial weights do, give all nodes the same batches.
    """
    for name, value, least in (
        ("candidates", candidates, 1),
        ("rungs", rungs, 1),
        ("steps", steps, 2),
        ("seed", seed, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}: it must be a whole number, {least} or more")
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        weights = _Weights(_made(make_model, seed))
        table = adaps.Table("weights", weights.rows, FLOATS)
        with adaps.Node([table], techniques="static", **node_options) as node:
            worker = node.worker(0)
            mine = {}
            for each in range(seed + node.rank, seed + candidates, node.world_size):
                model = weights.checked(_made(make_model, each))
                mine[each] = _Candidate(model, optimizer(model), torch.get_rng_state())
            alive = list(range(seed, seed + candidates))
            losses: list[dict[int, float]] = []
            stream = endless(batches)
            for rung in range(rungs):
                given = [next(stream) for _ in range(steps << rung)] if mine else []
                own = {each: candidate.train(given, loss) for each, candidate in mine.items()}
                scores = _all_scores(node, rung, own)
                losses.append({each: scores[each].loss for each in alive})
                alive = _survivors(scores)
                mine = {each: candidate for each, candidate in mine.items() if each in alive}
                if len(alive) == 1:
                    break
            won = alive[0]
            model = mine[won].model if won in mine else _made(make_model, won)
            if won in mine:
                weights.write(worker, model)
            worker.barrier()
            weights.read(worker, model)
            worker.barrier()
            made = sum(len(tried) * (steps << rung) for rung, tried in enumerate(losses))
            return Selection(model, won, losses, made)


def endless(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Go through `batches` again and again.

    Raises
    ------
    ValueError
        If there are no batches, as the loop would never end.
    """
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError("batches is empty: give an iterable that can be gone through again and again")


def _all_scores(node: adaps.Node, rung: int, own: Mapping[int, _Score]) -> dict[int, _Score]:
    """Collective: return the scores of all candidates at the end of a rung, by their seeds."""
    node.post(f"rung {rung} of {node.rank}", json.dumps(own))
    node.worker(0).barrier()
    scores: dict[int, _Score] = {}
    for rank in range(node.world_size):
        text = node.posted(f"rung {rung} of {rank}")
        assert text is not None  # Each node posts its text before the barrier.
        scores |= {int(each): _Score(*score) for each, score in json.loads(text).items()}
    return scores


class _Score(NamedTuple):
    """Score of a candidate at the end of a rung: smoothed loss, and norm of the last gradient."""

    loss: float
    norm: float
    plateau: bool


def _survivors(scores: dict[int, _Score]) -> list[int]:
    """Return the seeds of the better half of the candidates, rounded up, best first."""
    finite = {each: score for each, score in scores.items() if math.isfinite(score.loss)}
    if not finite:
        raise ValueError(
            f"none of the {len(scores)} candidates left has a finite loss: try a lower learning rate"
        )
    moving = {each: score for each, score in finite.items() if not score.plateau} or finite
    best = sorted(moving, key=lambda each: (moving[each].loss, each))
    ranked: list[int] = []
    while best:  # candidates with nearly the loss of the best one left are ordered by their gradients
        limit = moving[best[0]].loss + SAME * abs(moving[best[0]].loss)
        alike = [each for each in best if moving[each].loss <= limit]
        ranked += sorted(alike, key=lambda each: (-moving[each].norm, each))
        best = best[len(alike) :]
    return ranked[: -(-len(scores) // 2)]


@dataclass
class _Candidate:
    """A model in training, with a separate random generator."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    generator: Tensor
    smoothed: float = math.nan

    def train(self, batches: list[Batch], loss: Callable[[nn.Module, Batch], Tensor]) -> _Score:
        torch.set_rng_state(self.generator)
        self.model.train()
        first = norm = math.nan
        for batch in batches:
            self.optimizer.zero_grad()
            result = loss(self.model, batch)
            result.backward()
            norm = _norm(self.model)
            self.optimizer.step()
            value = float(result.detach())
            self.smoothed = (
                value if math.isnan(self.smoothed) else SMOOTHING * self.smoothed + (1 - SMOOTHING) * value
            )
            first = self.smoothed if math.isnan(first) else first
            if not math.isfinite(value):
                return _Score(math.nan, math.nan, plateau=False)
        self.optimizer.zero_grad()
        self.generator = torch.get_rng_state()
        return _Score(self.smoothed, norm, plateau=first - self.smoothed <= PLATEAU * abs(first))


class _Weights:
    """Copies parameters and buffers of a model to and from a table, as bytes."""

    def __init__(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            if isinstance(module, HashEmbedding):
                raise ValueError(
                    f"{name!r} is a HashEmbedding, whose state has no fixed size: train the model with one "
                    "seed"
                )
        self._shapes = _shapes_of(model)
        self._sizes = [value.nbytes for value in model.state_dict().values()]
        self.rows = max(1, -(-sum(self._sizes) // (4 * FLOATS)))

    def write(self, worker: adaps.Worker, model: nn.Module) -> None:
        rows = torch.zeros(self.rows, FLOATS, dtype=torch.float32, device="cpu")
        for value, part in zip(model.state_dict().values(), self._parts(rows), strict=True):
            part.copy_(value.contiguous().view(-1).view(torch.uint8))
        worker.set(torch.arange(self.rows, device="cpu"), rows)

    def read(self, worker: adaps.Worker, model: nn.Module) -> None:
        rows = torch.empty(self.rows, FLOATS, dtype=torch.float32, device="cpu")
        worker.pull(torch.arange(self.rows, device="cpu"), rows)
        for value, part in zip(model.state_dict().values(), self._parts(rows), strict=True):
            value.copy_(part.clone().view(value.dtype).view(value.shape))

    def _parts(self, rows: Tensor) -> Sequence[Tensor]:
        """Return the bytes of each parameter and buffer in rows."""
        parts: Sequence[Tensor] = rows.view(-1).view(torch.uint8)[: sum(self._sizes)].split(self._sizes)
        return parts

    def checked(self, model: nn.Module) -> nn.Module:
        """Return the model, if it has the same parameters and buffers."""
        if _shapes_of(model) != self._shapes:
            raise ValueError("make_model returns models of different shapes: only the values may differ")
        return model


def _shapes_of(model: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in model.state_dict().items()}


def _made(make_model: Callable[[int], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return make_model(seed)


def _norm(model: nn.Module) -> float:
    """Return the norm of all gradients together."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    values = [each.coalesce().values() if each.is_sparse else each for each in gradients]
    return math.hypot(*(float(torch.linalg.vector_norm(each, dtype=torch.float64)) for each in values))
