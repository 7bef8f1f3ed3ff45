"""The use case ctr fulfills the protocol, and plain PyTorch learns with it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from adabench.usecases.ctr import CtrParams, CtrUseCase
from adabench.usecases.ctr.loader import Batch
from tests.unit.plain_training import epochs_of

SMALL = CtrParams(rows=1400, batch=64, dim=4, hidden=(8,))


@pytest.fixture(scope="module")
def usecase() -> CtrUseCase:
    return CtrUseCase(SMALL, None, 1)


def first_batch(usecase: CtrUseCase) -> Batch:
    batch: Batch = next(iter(usecase.loaders(0, 1).train))
    return batch


def train(usecase: CtrUseCase) -> list[dict[str, float]]:
    """Train with plain PyTorch; returns the metrics of each epoch, with "test …" for the test split."""
    history = []
    for model, loaders, _ in epochs_of(usecase):
        test = {f"test {name}": value for name, value in usecase.evaluate(model, loaders.test).items()}
        history.append(usecase.evaluate(model, loaders.valid) | test)
    return history


def test_a_model_leaves_the_global_generator_alone(usecase: CtrUseCase) -> None:
    state = torch.get_rng_state()
    usecase.model()
    assert torch.equal(torch.get_rng_state(), state)


def test_other_data_have_another_fingerprint(usecase: CtrUseCase) -> None:
    assert CtrUseCase(CtrParams(rows=1401), None, 1).fingerprint != usecase.fingerprint


def test_logit_is_the_sum_of_the_wide_and_the_deep_part(usecase: CtrUseCase) -> None:
    model, batch = usecase.model(), first_batch(usecase)
    deep = model.get_submodule("mlp")
    with torch.no_grad():
        model.get_parameter("wide.weight").copy_(
            torch.arange(len(model.get_parameter("wide.weight")))[:, None]
        )
        embedded = model.get_parameter("deep.weight")[batch.ids].reshape(64, -1)
        expected = batch.ids.sum(dim=1) + deep(torch.cat([batch.dense, embedded], dim=1))[:, 0]
        torch.testing.assert_close(model(batch.dense, batch.ids), expected)


def test_features_of_a_chosen_vocabulary_have_a_row_for_every_value() -> None:
    usecase = CtrUseCase(msgspec.structs.replace(SMALL, vocabulary=50, wide=False), None, 1)
    firsts, batch = usecase.feature_rows(), first_batch(usecase)
    assert firsts.keys() == usecase.keys(batch).keys() == {"deep.weight"}
    assert firsts["deep.weight"].tolist() == list(range(0, 26 * 50, 50))
    tables = {
        name: table for name, table in usecase.model().named_modules() if isinstance(table, nn.Embedding)
    }
    assert {name: table.num_embeddings for name, table in tables.items()} == {"deep": 26 * 50}
    within = batch.ids - firsts["deep.weight"]
    assert within.min() >= 0
    assert within.max() < 50
    # Zipf's law with exponent 1.05 gives the first of 50 values a quarter of the draws.
    assert 0.2 < within.flatten().bincount().max() / within.numel() < 0.3


def test_a_feature_s_rows_begin_at_its_first_row(usecase: CtrUseCase) -> None:
    batch, firsts = first_batch(usecase), usecase.feature_rows()
    assert firsts.keys() == usecase.keys(batch).keys()
    for first in firsts.values():
        assert (batch.ids >= first).all()
        assert (batch.ids[:, :-1] < first[1:]).all()


def test_without_the_wide_part_the_logit_is_the_deep_one(usecase: CtrUseCase) -> None:
    deep = CtrUseCase(msgspec.structs.replace(SMALL, wide=False), None, 1)
    model, batch = deep.model(), first_batch(usecase)
    with torch.no_grad():
        embedded = model.get_parameter("deep.weight")[batch.ids].reshape(64, -1)
        expected = model.get_submodule("mlp")(torch.cat([batch.dense, embedded], dim=1))[:, 0]
        torch.testing.assert_close(model(batch.dense, batch.ids), expected)


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_optimizer_updates_rows_that_were_read_and_no_others(optimizer: str) -> None:
    params = msgspec.structs.replace(SMALL, optimizer=optimizer, lr=0.1)
    usecase = CtrUseCase(params, None, 1)
    model, batch = usecase.model(), first_batch(usecase)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    usecase.loss(model, batch).backward()
    usecase.optimizer(model).step()
    for name, keys in usecase.keys(batch).items():
        changed = (model.state_dict()[name] != before[name]).any(dim=1)
        assert changed[keys].any()
        changed[keys] = False
        assert not changed.any()
    assert not torch.equal(model.state_dict()["wide_dense.weight"], before["wide_dense.weight"])


def test_evaluation_leaves_training_mode_and_needs_no_gradients(usecase: CtrUseCase) -> None:
    model = usecase.model()
    metrics = usecase.evaluate(model, usecase.loaders(0, 1).test)
    assert model.training
    assert metrics.keys() == {"auc", "logloss"}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_evaluation_judges_the_labels_of_the_loader(usecase: CtrUseCase) -> None:
    class Oracle(nn.Module):
        def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return 20.0 * labels.clone() - 10.0

    loader = list(usecase.loaders(0, 1).test)
    for batch in loader:
        labels: torch.Tensor = batch.label
        assert usecase.evaluate(Oracle(), [batch])["auc"] == 1.0
        assert usecase.evaluate(Oracle(), [batch])["logloss"] < 1e-4


def test_default_parameters_learn_generated_data() -> None:
    usecase = CtrUseCase(CtrParams(rows=32_768, epochs=2), None, 1)
    best = max(train(usecase), key=lambda metrics: metrics["auc"])
    assert best["test auc"] > 0.7
    assert best["test logloss"] < 0.54  # the click rate alone gives 0.566


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_default_parameters_learn_criteo(shared_data: Path, seed: int) -> None:
    best = max(
        train(CtrUseCase(CtrParams(), shared_data / "criteo_subset", seed)),
        key=lambda metrics: metrics["auc"],
    )
    assert best["test auc"] >= 0.735
    assert best["test logloss"] < 0.51


def test_equal_seeds_train_alike(usecase: CtrUseCase) -> None:
    assert train(CtrUseCase(SMALL, None, 1)) == train(CtrUseCase(SMALL, None, 1))
