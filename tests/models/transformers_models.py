"""Models of transformers, built from small configurations, without weights from elsewhere."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from .case import Case, Expected, drawn, maker

TOKENS, WIDTH, LAYERS, HEADS, PLACES = 500, 32, 1, 2, 32
BATCH, LENGTH = 8, 16

BERT = {
    "vocab_size": TOKENS,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * WIDTH,
    "max_position_embeddings": PLACES,
}


def case(
    name: str,
    config: str,
    options: dict[str, Any],
    batch: Callable[[Generator], Any],
    expected: Expected | None = None,
    dear: str = "",
) -> Case:
    make = maker(library, name, lambda: [getattr(library(), config)(**options)])
    return Case(name, make, drawn(batch), loss_of, expected or Expected(), dear=dear)


def library() -> Any:
    return importlib.import_module("transformers")


def loss_of(model: Any, batch: dict[str, Tensor]) -> Any:
    return model(**batch).loss


def text(generator: Generator) -> dict[str, Tensor]:
    """Token ids; the last ones of each line are padding."""
    ids = torch.randint(3, TOKENS, (BATCH, LENGTH), generator=generator)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def masked(generator: Generator) -> dict[str, Tensor]:
    batch = text(generator)
    chosen = torch.rand(BATCH, LENGTH, generator=generator) < 0.15
    chosen[:, 1] = True
    labels = batch["input_ids"].masked_fill(~chosen, -100)
    return {**batch, "input_ids": batch["input_ids"].masked_fill(chosen, 1), "labels": labels}


def continued(generator: Generator) -> dict[str, Tensor]:
    batch = text(generator)
    return {**batch, "labels": batch["input_ids"]}


def classified(generator: Generator) -> dict[str, Tensor]:
    return {**text(generator), "labels": torch.randint(0, 2, (BATCH,), generator=generator)}


def translated(generator: Generator) -> dict[str, Tensor]:
    return {**text(generator), "labels": torch.randint(3, TOKENS, (BATCH, 8), generator=generator)}


TIED = Expected(told=("is read in full",))
"""The head shares the weights of the table."""

CASES = (
    case("BertForMaskedLM", "BertConfig", BERT, masked, TIED),
    case("BertForSequenceClassification", "BertConfig", BERT, classified),
    case("RobertaForSequenceClassification", "RobertaConfig", {**BERT, "pad_token_id": 0}, classified),
    case(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {
            "vocab_size": TOKENS,
            "dim": WIDTH,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "hidden_dim": WIDTH,
            "max_position_embeddings": PLACES,
        },
        classified,
    ),
    case("AlbertForSequenceClassification", "AlbertConfig", {**BERT, "embedding_size": 16}, classified),
    case("ElectraForSequenceClassification", "ElectraConfig", {**BERT, "embedding_size": 16}, classified),
    case(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": TOKENS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": PLACES},
        continued,
        TIED,
        "its whole forward is simulated, as Python reads values in it (`__bool__`)",
    ),
    case("LlamaForCausalLM", "LlamaConfig", {**BERT, "num_key_value_heads": 1}, continued),
    case(
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": TOKENS,
            "d_model": WIDTH,
            "d_kv": 16,
            "d_ff": 64,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "decoder_start_token_id": 0,
        },
        translated,
        TIED,
    ),
)
