"""Models of x-transformers: a decoder that continues, an encoder that classifies, and both together."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from .case import Case, drawn

TOKENS, WIDTH, LENGTH, BATCH = 500, 32, 16, 8


def library() -> Any:
    return importlib.import_module("x_transformers")


def tokens(generator: Generator) -> Tensor:
    return torch.randint(0, TOKENS, (BATCH, LENGTH + 1), generator=generator)


def pairs(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    mask = torch.arange(LENGTH + 1) < torch.randint(4, LENGTH + 1, (BATCH, 1), generator=generator)
    return tokens(generator), tokens(generator), mask


def continuing(**options: Any) -> Any:
    def make() -> nn.Module:
        layers = library().Decoder(dim=WIDTH, depth=1, heads=2, attn_dim_head=32, **options)
        net = library().TransformerWrapper(num_tokens=TOKENS, max_seq_len=LENGTH + 1, attn_layers=layers)
        model: nn.Module = library().AutoregressiveWrapper(net)
        return model

    return make


def own_loss(model: Any, batch: Tensor) -> Tensor:
    loss: Tensor = model(batch)
    return loss


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = library().Encoder(dim=WIDTH, depth=1, heads=2, attn_dim_head=16)
        self.encoder = library().TransformerWrapper(
            num_tokens=TOKENS, max_seq_len=LENGTH + 1, attn_layers=layers, return_only_embed=True
        )
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        return self.head(self.encoder(ids, mask=mask).mean(1))


def classified(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    ids, _, mask = batch
    return F.cross_entropy(model(ids, mask), ids[:, 0] % 2)


def translator() -> nn.Module:
    model: nn.Module = library().XTransformer(
        dim=WIDTH,
        enc_num_tokens=TOKENS,
        enc_depth=1,
        enc_heads=2,
        enc_max_seq_len=LENGTH + 1,
        dec_num_tokens=TOKENS,
        dec_depth=1,
        dec_heads=2,
        dec_max_seq_len=LENGTH + 1,
    )
    return model


def translated(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    source, target, mask = batch
    loss: Tensor = model(source, target, mask=mask)
    return loss


CASES = (
    Case("AutoregressiveWrapper", continuing(), drawn(tokens), own_loss),
    Case(
        "AutoregressiveWrapper with rotated places", continuing(rotary_pos_emb=True), drawn(tokens), own_loss
    ),
    Case("Encoder", Classifier, drawn(pairs), classified),
    Case("XTransformer", translator, drawn(pairs), translated),
)
