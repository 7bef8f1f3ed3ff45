"""Models of x-transformers: a decoder that continues, an encoder that classifies, and both together."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from .case import Case, drawn, maker

TOKENS, WIDTH, LENGTH, BATCH = 500, 32, 16, 8


def library() -> Any:
    return importlib.import_module("x_transformers")


def tokens(generator: Generator) -> Tensor:
    return torch.randint(0, TOKENS, (BATCH, LENGTH + 1), generator=generator)


def pairs(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    mask = torch.arange(LENGTH + 1) < torch.randint(4, LENGTH + 1, (BATCH, 1), generator=generator)
    return tokens(generator), tokens(generator), mask


def wrapped(kind: str, head: int, options: dict[str, Any], **others: Any) -> Any:
    layers = getattr(library(), kind)(dim=WIDTH, depth=1, heads=2, attn_dim_head=head, **options)
    sizes = {"num_tokens": TOKENS, "max_seq_len": LENGTH + 1}
    return library().TransformerWrapper(**sizes, attn_layers=layers, **others)


def continuing(name: str, **options: Any) -> Case:
    make = maker(library, "AutoregressiveWrapper", lambda: [wrapped("Decoder", 32, options)])
    return Case(name, make, drawn(tokens), lambda model, batch: model(batch))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = wrapped("Encoder", 16, {}, return_only_embed=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        return self.head(self.encoder(ids, mask=mask).mean(1))


def classified(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    ids, _, mask = batch
    return F.cross_entropy(model(ids, mask), ids[:, 0] % 2)


HALF = {"num_tokens": TOKENS, "depth": 1, "heads": 2, "max_seq_len": LENGTH + 1}
TRANSLATOR: dict[str, Any] = {
    f"{half}_{name}": value for half in ("enc", "dec") for name, value in HALF.items()
}


def translated(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Any:
    source, target, mask = batch
    return model(source, target, mask=mask)


CASES = (
    continuing("AutoregressiveWrapper"),
    continuing("AutoregressiveWrapper with rotated places", rotary_pos_emb=True),
    Case("Encoder", Classifier, drawn(pairs), classified),
    Case("XTransformer", maker(library, "XTransformer", dim=WIDTH, **TRANSLATOR), drawn(pairs), translated),
)
