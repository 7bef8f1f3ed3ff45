"""Models of PyKEEN, trained on corrupted triples as by its ``SLCWATrainingLoop``."""

from __future__ import annotations

import functools
import importlib
import os
import tempfile
from typing import Any

import torch
from torch import Generator, Tensor, nn

from .case import Case, Expected, drawn, maker

ENTITIES, RELATIONS, TRIPLES = 400, 12, 1500
BATCH, WIDTH = 128, 16


@functools.cache
def home() -> tempfile.TemporaryDirectory[str]:
    """Where the library makes folders as soon as it is imported; else in the user's home."""
    made = tempfile.TemporaryDirectory()
    os.environ["PYSTOW_HOME"] = made.name
    return made


def library(module: str) -> Any:
    home()
    return importlib.import_module(f"pykeen.{module}")


def triples(count: int, generator: Generator) -> Tensor:
    columns = [
        torch.randint(0, most, (count,), generator=generator) for most in (ENTITIES, RELATIONS, ENTITIES)
    ]
    return torch.stack(columns, 1)


@functools.cache
def factory() -> Any:
    kind = library("triples").CoreTriplesFactory
    known = triples(TRIPLES, Generator().manual_seed(5))
    return kind(known, num_entities=ENTITIES, num_relations=RELATIONS)


def corrupted(generator: Generator) -> tuple[Tensor, Tensor]:
    """Triples, and the same with another head or tail."""
    positive = triples(BATCH, generator)
    negative = positive.clone()
    side = torch.randint(0, 2, (BATCH,), generator=generator) * 2
    negative[torch.arange(BATCH), side] = torch.randint(0, ENTITIES, (BATCH,), generator=generator)
    return positive, negative


def loss_of(model: Any, batch: tuple[Tensor, Tensor]) -> Any:
    positive, negative = (model.score_hrt(part) for part in batch)
    scored = model.loss.process_slcwa_scores(positive, negative[:, None])
    return scored + model.collect_regularization_term()


def after_step(model: Any) -> None:
    model.post_parameter_update()


def case(name: str, expected: Expected | None = None, **options: Any) -> Case:
    def make() -> nn.Module:
        known = {"triples_factory": factory(), "random_seed": 7}
        return maker(lambda: library("models"), name, **known, **options)()

    return Case(name, make, drawn(corrupted), loss_of, expected or TWO_CALLS, after_step)


TWO_CALLS = Expected(exact_from=2)
"""Exact after two batches, because positive and negative triples are scored in separate calls."""
NORMALIZED = Expected(exact_from=2, told=("_embeddings.weight' is read in full",))
"""The embeddings are read in full after each step."""
REGULARIZED = Expected(exact_from=2, told=("_embeddings.weight' is read in full",) * 3)
_LAYER = "entity_representations.0.layers.0"
CONVOLVED = Expected(
    on_demand=(
        *(
            f"{_LAYER}.{way}.relation_representations.{part}._embeddings.weight"
            for way in ("fwd", "bwd")
            for part in ("base", "weight")
        ),
        "relation_representations.0._embeddings.weight",
    ),
    told=None,
)
"""The model keeps a result for all entities until the end of the step, and it drops edges at random."""

CASES = (
    case("TransE", NORMALIZED, embedding_dim=WIDTH),
    case("TransH", REGULARIZED, embedding_dim=WIDTH),
    case("DistMult", NORMALIZED, embedding_dim=WIDTH),
    case("ComplEx", embedding_dim=WIDTH),
    case("RotatE", NORMALIZED, embedding_dim=WIDTH),
    case("HolE", NORMALIZED, embedding_dim=WIDTH),
    case("SimplE", embedding_dim=WIDTH),
    case("TuckER", embedding_dim=WIDTH, relation_dim=8),
    case("ERMLP", embedding_dim=WIDTH),
    case("ConvE", embedding_dim=32, output_channels=4, embedding_height=4, embedding_width=8),
    case("RGCN", CONVOLVED, embedding_dim=WIDTH, num_layers=1),
)
