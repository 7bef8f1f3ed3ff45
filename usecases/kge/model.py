"""The models in plain PyTorch. They compare a query from two parts of a triple with rows of the third."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

ModelName = Literal["complex", "distmult", "rotate", "transe"]
MODELS: tuple[ModelName, ...] = ("complex", "distmult", "rotate", "transe")

PAIRS_AT_ONCE = 1 << 22
"""Maximum number of intermediate results in models that compare each query with each row separately."""


class Scores(NamedTuple):
    """Scores of some triples. A higher score means a more likely triple.

    Attributes
    ----------
    own : Tensor
        Scores of the given triples, float32 (n,).
    tails, heads : Tensor
        Scores with each candidate in place of the tail, or of the head, float32 (n, candidates).
    norm : Tensor
        Mean over the triples of the cubes of all numbers in their rows, float32 scalar, for the
        regularization.
    links, candidates : Tensor
        Rows of the triples' relations and of the candidates, float32.
    """

    own: Tensor
    tails: Tensor
    heads: Tensor
    norm: Tensor
    links: Tensor
    candidates: Tensor


class Knowledge(nn.Module):
    """Embeddings of entities and relations, and one of four methods to score triples with them.

    The methods are ComplEx (Trouillon et al., ICML 2016), DistMult (Yang et al., ICLR 2015), RotatE (Sun et
    al., ICLR 2019) without its margin, and TransE (Bordes et al., NIPS 2013) with the L1 distance.

    Parameters
    ----------
    name : str
        Scoring method, one of `MODELS`.
    rows : Tensor
        Rows of the entities, float32 (entities, dim). `dim` is even for ComplEx and RotatE, whose rows have
        the real parts first and then the imaginary parts.
    links : Tensor
        Rows of the relations, float32 (relations, dim). RotatE's relations are `dim` / 2 angles.
    """

    def __init__(self, name: ModelName, rows: Tensor, links: Tensor) -> None:
        super().__init__()
        self.entities, self.relations = (
            nn.Embedding.from_pretrained(weight, freeze=False, sparse=True) for weight in (rows, links)
        )
        self._name = name

    def forward(self, triples: Tensor, candidates: Tensor) -> Scores:
        """Score triples (n, 3) of head, relation, tail, and their corruptions with candidates (c,), int64."""
        count = len(triples)
        # A single lookup reads and updates a row only once, even if it has several roles in a batch.
        ids = torch.cat([triples[:, 0], triples[:, 2], candidates])
        heads, tails, others = self.entities(ids).tensor_split((count, 2 * count))
        links = self.relations(triples[:, 1])
        for_tails, for_heads = self.queries(heads, links, tails)
        cubes = heads.abs().pow(3).sum() + tails.abs().pow(3).sum()
        if self._name != "rotate":  # RotatE's relations are angles
            cubes = cubes + links.abs().pow(3).sum()
        return Scores(
            self._one_by_one(for_tails, tails),
            self.each_with_each(for_tails, others),
            self.each_with_each(for_heads, others),
            cubes / count,
            links,
            others,
        )

    def queries(self, heads: Tensor, links: Tensor, tails: Tensor) -> tuple[Tensor, Tensor]:
        """Return the query vectors for tails and for heads."""
        if self._name == "distmult":
            return heads * links, tails * links
        if self._name == "transe":
            return heads + links, tails - links
        if self._name == "rotate":
            links = torch.cat([links.cos(), links.sin()], dim=1)
        real, imaginary = links.chunk(2, dim=1)
        return _times(heads, real, imaginary), _times(tails, real, -imaginary)

    def _one_by_one(self, queries: Tensor, rows: Tensor) -> Tensor:
        if self._name in ("complex", "distmult"):
            return (queries * rows).sum(1)
        return -self._length(queries - rows)

    def each_with_each(self, queries: Tensor, rows: Tensor) -> Tensor:
        """Return the scores of all pairs of a query vector and an entity's row, float32 (queries, rows)."""
        if self._name in ("complex", "distmult"):
            return queries @ rows.T
        if self._name == "transe":
            return -torch.cdist(queries, rows, p=1)
        some = max(1, PAIRS_AT_ONCE // max(1, rows.numel()))
        parts = [-self._length(part[:, None] - rows) for part in queries.split(some)]
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def _length(self, difference: Tensor) -> Tensor:
        if self._name == "transe":
            return difference.abs().sum(-1)
        real, imaginary = difference.chunk(2, dim=-1)
        # The gradient of a root at 0 is infinite.
        return (real.square() + imaginary.square() + 1e-12).sqrt().sum(-1)


class KnowledgeCopy(Knowledge):
    """A copy of a model for evaluation. Its rows are in the memory of this process."""


def new_model(
    name: ModelName, entities: int, relations: int, dim: int, scale: float, generator: torch.Generator
) -> Knowledge:
    """Return a model with initial weights of standard deviation `scale`; RotatE's angles are uniform."""
    rows = torch.empty(entities, dim).normal_(std=scale, generator=generator)
    if name == "rotate":
        links = torch.empty(relations, dim // 2).uniform_(-torch.pi, torch.pi, generator=generator)
    else:
        links = torch.empty(relations, dim).normal_(std=scale, generator=generator)
    return Knowledge(name, rows, links)


def _times(rows: Tensor, real: Tensor, imaginary: Tensor) -> Tensor:
    """Return products of complex numbers. Rows have the real parts first and then the imaginary parts."""
    first, second = rows.chunk(2, dim=1)
    return torch.cat([first * real - second * imaginary, first * imaginary + second * real], dim=1)
