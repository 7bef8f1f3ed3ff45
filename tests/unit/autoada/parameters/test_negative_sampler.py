"""NegativeSampler: draws with torch, and draws by the server."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

import adaps
import autoada
from adaps._typing import SamplingScheme
from adaps.sampling import RowDistribution

ROWS = 40
DRAWN = 6
WEIGHTS = np.where(np.arange(ROWS) % 4 == 3, 0.0, 1.0 / np.arange(1, ROWS + 1))
DISTRIBUTIONS: list[RowDistribution] = [adaps.Uniform(), adaps.LogUniform(), adaps.Weighted(WEIGHTS)]
EXPECTED = [np.ones(ROWS), np.log1p(1 / np.arange(1, ROWS + 1)), WEIGHTS]


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ROWS, 3)

    def forward(self, pairs: Tensor, drawn: Tensor) -> Any:
        first, second = self.items(pairs).unbind(1)
        return (first * second).sum(1), first @ self.items(drawn).T


def loader(negatives: autoada.NegativeSampler, workers: int = 0) -> DataLoader[Any]:
    pairs = torch.stack([torch.arange(ROWS), torch.arange(ROWS).flip(0)], dim=1)

    def with_negatives(items: list[tuple[Tensor]]) -> tuple[Tensor, Tensor]:
        return torch.stack([pair for (pair,) in items]), negatives()

    return DataLoader(TensorDataset(pairs), 8, collate_fn=with_negatives, num_workers=workers)


def train(model: nn.Module, batches: Any) -> list[Tensor]:
    """The negatives that were drawn, batch by batch."""
    drawn = []
    for pairs, negatives in batches:
        drawn.append(negatives)
        own, against = model(pairs, negatives)
        scores = torch.cat([own, against.flatten()])
        labels = torch.cat([torch.ones_like(own), torch.zeros(against.numel())])
        binary_cross_entropy_with_logits(scores, labels).backward()
    return drawn


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize(("distribution", "expected"), list(zip(DISTRIBUTIONS, EXPECTED, strict=True)))
def test_torch_draws_by_the_distribution(
    distribution: RowDistribution, expected: np.ndarray, replacement: bool
) -> None:
    torch.manual_seed(1)
    sampling = adaps.Sampling(distribution, replacement=replacement)
    negatives = autoada.NegativeSampler(nn.Embedding(ROWS, 2), 2, sampling)
    draws = torch.stack([negatives() for _ in range(20_000)])
    assert draws.dtype == torch.int64
    first = torch.bincount(draws[:, 0], minlength=ROWS).numpy() / len(draws)
    np.testing.assert_allclose(first, expected / expected.sum(), atol=0.015)
    assert first[expected == 0].sum() == 0
    repeats = (draws[:, 0] == draws[:, 1]).float().mean().item()
    assert repeats == (
        pytest.approx(((expected / expected.sum()) ** 2).sum(), abs=0.02) if replacement else 0
    )


def test_torch_draws_the_same_after_the_same_seed() -> None:
    negatives = autoada.NegativeSampler(nn.Embedding(ROWS, 2), DRAWN, adaps.LogUniform())
    torch.manual_seed(3)
    first = negatives()
    torch.manual_seed(3)
    assert torch.equal(negatives(), first)


@pytest.mark.parametrize("scheme", adaps.SAMPLING_SCHEMES)
def test_the_server_draws_for_a_wrapped_model(scheme: SamplingScheme) -> None:
    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)  # is not the server's
        model = Pairs()
        sampling = adaps.Sampling(adaps.LogUniform(), scheme, seed=7)
        batches = loader(autoada.NegativeSampler(model.items, DRAWN, sampling))
        before = model.items.weight.detach().clone()
        wrapped = autoada.AdaModel(model, adaps.SGD(lr=0.5))
        found = torch.stack(train(wrapped, autoada.AdaDataLoader(batches)))
        trained = autoada.unwrap(wrapped).state_dict()["items.weight"]
        assert not torch.equal(before, trained)
        wrapped.close()
        return found

    first = drawn(1)
    assert first.shape == (ROWS // 8, DRAWN)
    assert torch.equal(first, drawn(2))


def test_a_wrapped_model_trains_on_what_was_drawn_as_the_plain_one() -> None:
    torch.manual_seed(0)
    plain, model = Pairs(), Pairs()
    model.load_state_dict(plain.state_dict())
    negatives = autoada.NegativeSampler(model.items, DRAWN)
    wrapped = autoada.AdaModel(model, adaps.SGD(lr=0.5))
    batches = list(loader(negatives))
    train(wrapped, autoada.AdaDataLoader(batches))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for batch in batches:
        optimizer.zero_grad()
        train(plain, [batch])
        optimizer.step()
    torch.testing.assert_close(
        autoada.unwrap(wrapped).state_dict()["items.weight"], plain.items.weight.detach()
    )
    wrapped.close()


def test_processes_of_a_loader_draw_with_torch() -> None:
    model = Pairs()
    batches = loader(autoada.NegativeSampler(model.items, DRAWN), workers=2)
    wrapped = autoada.AdaModel(model, adaps.SGD(lr=0.5))
    drawn = train(wrapped, autoada.AdaDataLoader(batches))
    assert len(drawn) == ROWS // 8
    assert not torch.equal(drawn[0], drawn[1])  # the draws of two processes
    wrapped.close()


def test_what_a_batch_brings_is_announced() -> None:
    model = Pairs()
    batches = loader(autoada.NegativeSampler(model.items, DRAWN))
    wrapped = autoada.AdaModel(model, adaps.SGD(lr=0.5))
    ahead = autoada.AdaDataLoader(batches, lookahead=2)
    train(wrapped, ahead)
    pairs, drawn = next(iter(batches))
    explained = ahead.explain((pairs, drawn))
    for ids in (pairs, drawn):
        assert f"items.weight: {ids.numel()} rows at " in explained
    wrapped.close()


loose = cast("Any", autoada)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: loose.NegativeSampler(4, 2), TypeError, "table is a int; it must be a module with rows"),
        (lambda: loose.NegativeSampler(nn.ReLU(), 2), TypeError, "table is a ReLU"),
        (lambda: loose.NegativeSampler(nn.Embedding(4, 1), 0), ValueError, "n is 0; it must be a positive"),
        (lambda: loose.NegativeSampler(nn.Embedding(4, 1), 2, 3), TypeError, "distribution is 3; it must be"),
        (
            lambda: loose.NegativeSampler(nn.Embedding(4, 1), 2, adaps.Weighted([1])),
            ValueError,
            "1 weights for a table of 4 rows",
        ),
        (
            lambda: loose.NegativeSampler(nn.Embedding(4, 1), 5, adaps.Sampling(replacement=False)),
            ValueError,
            "n is 5; at most 4 rows can be drawn without replacement",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_table_is_drawn_from_in_one_way_and_before_it_is_in_the_server() -> None:
    model = Pairs()
    autoada.NegativeSampler(model.items, 3)
    autoada.NegativeSampler(model.items, 5)
    with pytest.raises(ValueError, match="another sampler of the table has Sampling"):
        autoada.NegativeSampler(model.items, 3, adaps.LogUniform())
    wrapped = autoada.AdaModel(model, adaps.SGD(lr=0.5))
    with pytest.raises(ValueError, match="in a parameter server already: make its sampler before"):
        autoada.NegativeSampler(model.items, 3)
    wrapped.close()
