"""The use case `kge`: embeddings of a knowledge graph, with the filtered mean reciprocal rank as metric."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from adabench.usecases.common.batches import (
    DealsBatches,
    Draw,
    OrderedBatches,
    ShuffledBatches,
    batch_loader,
    evaluating,
    generator_of,
)
from adabench.usecases.common.negatives import Uniform
from adabench.usecases.common.placement import PLACEMENTS, Placement, SamplePlacement
from adabench.usecases.common.validation import (
    require_choice,
    require_positive,
    require_sizes,
    require_weight,
)
from adabench.usecases.interface import Draws, Loaders, Params
from adabench.usecases.kge.data import load
from adabench.usecases.kge.model import MODELS, KnowledgeCopy, ModelName, Scores, new_model
from adabench.usecases.kge.ranking import Answers, FilteredRanks, summary

TRIPLES_AT_ONCE, CANDIDATES_AT_ONCE = 128, 2048
"""Numbers of triples and of entities that evaluation compares together.

Products of such matrices are fast, and the scores fit into the cache. The allocator keeps their memory: it
would return larger blocks to the kernel, which clears them each time. """

EVALUATED_SHARE = 0.25
"""Maximum number of scores of the evaluation after an epoch, relative to those of the epoch's training.

With the work around the scores, the evaluation costs less than 0.3 of the training. """

TRAINED_PAIR = 3
"""Cost of training on a pair of a query and an entity, in scores: the score and its two gradients."""


class KgeParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of `kge`.

    Attributes
    ----------
    epochs : int
        Number of passes over the training split.
    batch : int
        Number of triples per step and worker.
    dim : int
        Number of floats of an entity's row.
    lr : float
        Learning rate of the optimizer.
    model : "complex", "distmult", "rotate" or "transe"
        Scoring method.
    negatives : int
        Number of entities drawn for each batch. All its triples share them, in place of the head and of the
        tail.
    regularization : float
        Weight of the cubes of the rows that a triple reads.
    scale : float
        Standard deviation of the initial weights.
    triples : int
        Number of triples to generate if no data are given.
    placement : "random", "greedy", "label" or "cluster"
        Assignment of triples to workers: in turn, by the rows that they read, by their relations, or by their
        heads.
    """

    epochs: int = 5
    batch: int = 256
    dim: int = 64
    lr: float = 0.1
    model: ModelName = "complex"
    negatives: int = 256
    regularization: float = 0.05
    scale: float = 0.05
    triples: int = 60_000
    placement: Placement = "random"

    def __post_init__(self) -> None:
        require_sizes(self, ("epochs", "batch", "dim", "negatives", "triples"))
        require_positive(self, ("lr", "scale"))
        require_weight(self, ("regularization",))
        require_choice(self, {"model": MODELS, "placement": PLACEMENTS})
        if self.model in ("complex", "rotate") and self.dim % 2:
            raise ValueError(f"dim is {self.dim}: it must be even for {self.model}")


class Batch(NamedTuple):
    """Triples of head, relation and tail (batch, 3), and the entities drawn for all (negatives,), int64."""

    triples: Tensor
    negatives: Tensor


class Queries(NamedTuple):
    """Triples to rank.

    Attributes
    ----------
    triples : Tensor
        Triples, int64 (n, 3).
    tails, heads : Tensor
        Pairs of an index in `triples` and an entity that is also correct there, int64 (2, pairs).
    """

    triples: Tensor
    tails: Tensor
    heads: Tensor


class KgeUseCase(DealsBatches[KgeParams]):
    """Learns to score true triples above corrupted ones. `adabench.usecases.kge.read` describes `data`.

    After each epoch, samples of the validation and test splits are evaluated if whole splits would cost more
    than 0.3 of the epoch's training. The samples are the same in all runs with equal data and
    parameters. After the last epoch, the model of the best epoch is evaluated on the whole test split.

    The loss is the cross-entropy of finding a triple's tail among it and the drawn entities, plus the same
    loss for its head. The seed determines the initial weights, the order of the data and the drawn entities,
    but not the data or their splits.
    """

    name: ClassVar[str] = "kge"
    Params: ClassVar[type[Params]] = KgeParams
    metric: ClassVar[str] = "mrr"
    maximize: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.02

    def __init__(self, params: KgeParams, data: Path | None, seed: int) -> None:
        super().__init__(params, seed)
        self._graph = load(data, params.triples)
        self._fingerprint = self._graph.fingerprint
        self._answers: tuple[Answers, Answers] | None = None
        self._valid, self._test = self._samples()
        train, entities = self._graph.train, self._graph.sizes.entities
        self._placement = SamplePlacement(
            params.placement,
            samples=len(train),
            tables={"entities.weight": entities, "relations.weight": self._graph.sizes.relations},
            reads=lambda numbers: train[numbers][:, [0, 2, 1]] + np.array([0, 0, entities], dtype=np.int32),
            orders={"label": lambda: train[:, 1], "cluster": lambda: train[:, 0]},
            what="triples",
        )

    @property
    def data_facts(self) -> dict[str, int]:
        return {
            "valid_triples": len(self._graph.valid),
            "test_triples": len(self._graph.test),
            "valid_triples_after_each_epoch": len(self._valid),
            "test_triples_after_each_epoch": len(self._test),
        }

    def model(self) -> nn.Module:
        generator = torch.Generator().manual_seed(self._seed)
        params, sizes = self._params, self._graph.sizes
        return new_model(params.model, *sizes, params.dim, params.scale, generator)

    def loaders(self, rank: int, world: int) -> Loaders:
        sizes = self._sizes(rank, world)
        graph, params = self._graph, self._params
        train = CorruptedTriples(graph.train, graph.sizes.entities, params.negatives)
        shuffled = ShuffledBatches(self._placement.share(rank, sizes), sizes[rank], self._seed, rank)
        return Loaders(batch_loader(train, shuffled), self._in_order(self._valid), self._in_order(self._test))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return cross-entropies of tails and heads, plus the regularization of the rows of each triple."""
        scores: Scores = model(batch.triples, batch.negatives)
        first = torch.zeros(len(batch.triples), dtype=torch.int64)
        loss = self._params.regularization * scores.norm
        for against, column in ((scores.tails, 2), (scores.heads, 0)):
            # A drawn entity that is correct is not a negative.
            right = batch.triples[:, column, None] == batch.negatives
            logits = torch.cat([scores.own[:, None], against.masked_fill(right, -torch.inf)], dim=1)
            loss = loss + cross_entropy(logits, first)
        return loss

    def evaluate(self, model: nn.Module, loader: Iterable[Queries]) -> dict[str, float]:
        """Return the mean reciprocal rank and Hits@1, 3, 10 of heads and tails among all entities.

        Entities that are correct in any split are filtered. Of entities with equal scores, half count as
        better.
        """
        copied = model if isinstance(model, KnowledgeCopy) else self.copy_of(model)
        with torch.no_grad():
            found = [ranks for batch in loader for ranks in _ranks(copied, batch)]
        if not found:
            raise ValueError("the loader to evaluate over is empty: it must hold at least one triple")
        return summary(torch.cat(found))

    def copy_of(self, model: nn.Module) -> KnowledgeCopy:
        """Return a copy of the model. Each row is read once, in blocks."""
        sizes = self._graph.sizes
        relations = torch.arange(sizes.relations)
        triples = torch.stack([relations * 0, relations, relations * 0], dim=1)
        rows = torch.empty(sizes.entities, self._params.dim)
        with evaluating(model):
            for block in torch.arange(sizes.entities).split(CANDIDATES_AT_ONCE):
                scores: Scores = model(triples[:1], block)
                rows[block] = scores.candidates
            links = [model(part, part[:1, 0]).links for part in triples.split(CANDIDATES_AT_ONCE)]
        return KnowledgeCopy(self._params.model, rows, torch.cat(links))

    def whole_test(self) -> Iterable[Queries] | None:
        whole = len(self._test) == len(self._graph.test)
        return None if whole else self._in_order(self._graph.test)

    def keys(self, batch: Batch) -> dict[str, Tensor]:
        triples = batch.triples
        return {
            "entities.weight": torch.cat([triples[:, 0], triples[:, 2], batch.negatives]),
            "relations.weight": triples[:, 1].contiguous(),
        }

    def samples(self, batch: Batch) -> int:
        return len(batch.triples)

    def draws(self, rank: int = 0) -> Draws:
        del rank  # all triples of a batch share their draws
        return Draws("entities.weight", self._params.negatives)

    def with_drawn(self, batch: Batch, rows: Tensor) -> Batch:
        return batch._replace(negatives=rows)

    def home_rows(self, rank: int, world: int) -> dict[str, Tensor]:
        """Return the rows that worker `rank`'s triples read most; none if triples are assigned randomly."""
        return self._placement.home_rows(rank, self._sizes(rank, world))

    def _samples(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the validation and test triples to evaluate after each epoch, at least one of each."""
        graph = self._graph
        trained = TRAINED_PAIR * self._params.negatives * len(graph.train)
        held_out = graph.sizes.entities * (len(graph.valid) + len(graph.test))
        share = min(1.0, EVALUATED_SHARE * trained / held_out)
        random = np.random.default_rng(0)
        valid, test = (
            split[np.sort(random.choice(len(split), max(1, int(share * len(split))), replace=False))]
            for split in (graph.valid, graph.test)
        )
        return valid, test

    def _in_order(self, triples: NDArray[np.int32]) -> Iterable[Queries]:
        batches = OrderedBatches(np.arange(len(triples)), TRIPLES_AT_ONCE)
        return batch_loader(FilteredTriples(triples, *self._all_answers()), batches)

    def _all_answers(self) -> tuple[Answers, Answers]:
        if self._answers is None:
            graph = self._graph
            asked = np.concatenate([graph.valid, graph.test])
            known = [graph.train, graph.valid, graph.test]
            tails, heads = (
                Answers(asked, known, given, 2 - given, graph.sizes.relations) for given in (0, 2)
            )
            self._answers = tails, heads
        return self._answers


def _ranks(model: KnowledgeCopy, batch: Queries) -> list[Tensor]:
    """Return the ranks of tails and of heads."""
    heads, tails = batch.triples[:, 0], batch.triples[:, 2]
    rows = model.entities.weight
    for_tails, for_heads = model.queries(rows[heads], model.relations(batch.triples[:, 1]), rows[tails])
    found = []
    for queries, right, known in ((for_tails, tails, batch.tails), (for_heads, heads, batch.heads)):
        ranking = FilteredRanks(right, known)
        for block in rows.split(CANDIDATES_AT_ONCE):
            # The correct entities are candidates in each block: equal scores have to come from one operation,
            # because others round in different ways.
            scores = model.each_with_each(queries, torch.cat([block, rows[right]]))
            ranking.add(scores[:, : len(block)], scores[:, len(block) :].diagonal().clone())
        found.append(ranking.ranks())
    return found


class CorruptedTriples(Dataset[Batch]):
    """Training triples by their indices, with uniformly drawn entities."""

    def __init__(self, triples: NDArray[np.int32], entities: int, negatives: int) -> None:
        self._triples = torch.from_numpy(triples)
        self._drawn, self._negatives = Uniform(entities), negatives

    def __getitem__(self, draw: Draw) -> Batch:
        drawn = self._drawn((self._negatives,), generator_of(draw))
        return Batch(self._triples.index_select(0, draw.rows).long(), drawn)


class FilteredTriples(Dataset[Queries]):
    """Triples by their indices, with the other correct entities."""

    def __init__(self, triples: NDArray[np.int32], tails: Answers, heads: Answers) -> None:
        self._triples = torch.from_numpy(triples)
        self._tails, self._heads = tails, heads

    def __getitem__(self, draw: Draw) -> Queries:
        triples = self._triples.index_select(0, draw.rows).long()
        return Queries(triples, self._tails.pairs(triples.numpy()), self._heads.pairs(triples.numpy()))
