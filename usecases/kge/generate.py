"""Generates a learnable graph with skewed degrees. Its relations connect kinds of entities."""

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.validation import require_memory
from adabench.usecases.kge.read import Block, Sizes

SEED = 20_150_726
"""Constant, so that equal numbers of triples give equal data for all seeds of runs."""

RELATIONS = 24
KINDS = 150
TRIPLES_PER_ENTITY = 20
SKEW = 1.0
"""Exponent of an entity's probability within its kind, which falls with its rank."""
NOISE = 0.05
"""Share of tails that are drawn from all entities."""
BYTES_PER_TRIPLE = 200
"""Memory during generation."""


def generate(count: int) -> tuple[Block, Sizes]:
    """Draw `count` triples and drop repeated ones; equal numbers give equal triples.

    Every entity has a kind. A relation leads from each kind of head to one kind of tail. Within a kind,
    popular entities are drawn more often.

    Raises
    ------
    DataError
        If the triples exceed the machine's memory.
    """
    require_memory("triples", count, BYTES_PER_TRIPLE)
    rng = np.random.default_rng(SEED)
    entities = max(2 * KINDS, count // TRIPLES_PER_ENTITY)
    kinds = rng.permutation(np.arange(entities) % KINDS)
    members = [np.flatnonzero(kinds == kind) for kind in range(KINDS)]
    relations = np.minimum(rng.zipf(1.5, count) - 1, RELATIONS - 1)
    head_kinds = rng.integers(KINDS, size=count)
    leads = np.stack([rng.permutation(KINDS) for _ in range(RELATIONS)])
    tail_kinds = leads[relations, head_kinds]
    heads, tails = (_members(rng, members, wanted) for wanted in (head_kinds, tail_kinds))
    stray = np.flatnonzero(rng.random(count) < NOISE)
    tails[stray] = rng.integers(entities, size=len(stray))
    triples = np.unique(np.stack([heads, relations, tails], axis=1), axis=0)
    return rng.permutation(triples).astype(np.int32), Sizes(entities, RELATIONS)


def _members(
    rng: np.random.Generator, members: list[NDArray[np.int64]], kinds: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Draw an entity of each of these kinds."""
    drawn = np.empty(len(kinds), dtype=np.int64)
    for kind, own in enumerate(members):
        wanted = np.flatnonzero(kinds == kind)
        weights = np.arange(1, len(own) + 1) ** -SKEW
        drawn[wanted] = own[rng.choice(len(own), size=len(wanted), p=weights / weights.sum())]
    return drawn
