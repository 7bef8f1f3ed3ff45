"""Language and sequence models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .recommenders import BATCH, ROWS, ids
from .specimen import Specimen


class TiedTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(ROWS, 8)
        self.positions = nn.Embedding(16, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, ROWS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Any:
        length = tokens.shape[1]
        positions = torch.arange(length, device=self.positions.weight.device)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(tokens) + self.positions(positions)
        return self.head(self.encoder(x, mask=mask, is_causal=True))


class MaskedLanguageModel(nn.Module):
    """Replaces tokens by draws before it reads them, and scores masked positions only."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(ROWS + 1, 8)
        self.mixer = nn.Linear(8, 8)
        self.head = nn.Linear(8, ROWS)

    def forward(self, tokens: Tensor) -> Any:
        chosen = torch.rand(tokens.shape) < 0.3
        chosen[:, 0] = True
        masked = tokens.masked_fill(chosen, ROWS)
        x = self.mixer(self.tokens(masked)).relu()
        return F.cross_entropy(self.head(x[chosen]), tokens[chosen])


class PackedLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(ROWS, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.labels = nn.Embedding(4, 16)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(self.tokens(tokens), lengths, batch_first=True, enforce_sorted=False)
        output, (hidden, _) = self.lstm(packed)
        padded, found = pad_packed_sequence(output, batch_first=True)
        last = padded[torch.arange(len(tokens)), found - 1]
        return ((last * self.labels(lengths % 4)).sum(-1) + hidden[-1].sum(-1)).tanh().mean()


def text(generator: Generator) -> Tensor:
    return ids(generator, BATCH, 9)


def padded_text(generator: Generator) -> tuple[Tensor, Tensor]:
    lengths = torch.randint(1, 8, (BATCH,), generator=generator)
    lengths[0] = 7
    tokens = ids(generator, BATCH, 7).masked_fill(torch.arange(7) >= lengths[:, None], 0)
    return tokens, lengths


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


SPECIMENS = (
    Specimen("transformer with tied head", TiedTransformer, text, next_token_loss, full=("tokens.weight",)),
    Specimen("masked language model", MaskedLanguageModel, text, lambda m, b: m(b), draws=True),
    Specimen("packed LSTM", PackedLSTM, padded_text, lambda m, b: m(*b)),
)
