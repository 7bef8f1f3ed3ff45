"""The use cases mf and mf-implicit: shares, losses, quality, and the reference on MovieLens-100K."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adabench.usecases.interface import DataError
from adabench.usecases.mf import MfParams, MfUseCase
from adabench.usecases.mf.implicit import MfImplicitParams, MfImplicitUseCase
from adabench.usecases.mf.ranking import ItemsOf, ndcg
from tests.unit.plain_training import epochs_of

SMALL: dict[str, Any] = {"ratings": 20_000, "batch": 64, "dim": 4}


def train(usecase: Any) -> list[dict[str, float]]:
    """Trains with plain PyTorch; the test split's metrics after each epoch."""
    return [usecase.evaluate(model, loaders.test) for model, loaders, _ in epochs_of(usecase)]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_users_stay_together(world: int) -> None:
    usecase = MfUseCase(MfParams(**SMALL), None, 1)
    shares = [
        usecase._split.train[usecase._placement.share(rank, (usecase.params.batch,) * world)]
        for rank in range(world)
    ]
    assert len({len(share) for share in shares}) == 1
    assert len(np.unique(np.concatenate(shares))) == sum(map(len, shares))
    users = [set(usecase._ratings.block.users[share].tolist()) for share in shares]
    assert sum(map(len, users)) <= len(set.union(*users)) + world - 1  # who is at an edge is in two shares
    homes = [set(usecase.home_rows(rank, world)["users.weight"].tolist()) for rank in range(world)]
    assert set.union(*homes) == set.union(*users)
    assert all(home <= own for home, own in zip(homes, users, strict=True))


def test_workers_and_batches_that_cannot_be() -> None:
    usecase = MfUseCase(MfParams(**SMALL), None, 1)
    with pytest.raises(ValueError, match="worker 2 of 2: the worker's number must be from 0 to 1"):
        usecase.loaders(2, 2)
    with pytest.raises(DataError, match="64 need at least 64000"):
        usecase.loaders(0, 1000)


def test_too_few_ratings_are_told(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("1\t2\t3\n")
    with pytest.raises(DataError, match=r"have 1 ratings, none of which is in the"):
        MfUseCase(MfParams(), tmp_path / "u.data", 1)
    with pytest.raises(DataError, match="have no rating above 3: threshold must be lower than 4"):
        MfImplicitUseCase(MfImplicitParams(), tmp_path / "u.data", 1)


def test_the_loss_is_error_and_regularization() -> None:
    usecase = MfUseCase(MfParams(**SMALL, regularization=0.5), None, 1)
    model: Any = usecase.model()
    batch = next(iter(usecase.loaders(0, 1).train))
    user, item = model.users(batch.users), model.items(batch.items)
    scores = model.mean + user[:, 0] + item[:, 0] + (user[:, 1:] * item[:, 1:]).sum(1)
    expected = ((scores - batch.ratings) ** 2 + 0.5 * (user.square().sum(1) + item.square().sum(1))).mean()
    assert usecase.loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-5)


def test_predictions_are_ratings_that_can_be() -> None:
    usecase = MfUseCase(MfParams(**SMALL), None, 1)
    model: Any = usecase.model()
    with torch.no_grad():
        model.items.weight[:, 0] = 100
    batch = next(iter(usecase.loaders(0, 1).test))
    expected = (5 - batch.ratings).square().mean().sqrt().item()
    assert usecase.evaluate(model, [batch])["rmse"] == pytest.approx(expected)
    with pytest.raises(ValueError, match="empty"):
        usecase.evaluate(model, [])


@pytest.mark.parametrize(("kind", "better"), [(MfUseCase, -1), (MfImplicitUseCase, 1)])
def test_plain_pytorch_learns(kind: Any, better: int) -> None:
    usecase = kind(kind.Params(ratings=40_000, epochs=4), None, 1)
    values = [metrics[usecase.metric] for metrics in train(usecase)]
    assert better * (values[-1] - values[0]) > 0.003


@pytest.mark.parametrize("pairs_at_once", [1, 10, 1000])
def test_ndcg_of_known_ranks(monkeypatch: pytest.MonkeyPatch, pairs_at_once: int) -> None:
    monkeypatch.setattr("adabench.usecases.mf.ranking.PAIRS_AT_ONCE", pairs_at_once)
    scores = torch.tensor([[5.0, 4, 3, 2, 1], [5, 4, 3, 2, -torch.inf]])
    wanted = torch.tensor([[0, 0, 1], [0, 2, 3]])
    log = np.log2
    expected = [(1 / log(2) + 1 / log(4)) / (1 / log(2) + 1 / log(3)), 0]
    assert ndcg(scores, wanted, 3).tolist() == pytest.approx(expected)


def test_a_model_that_scores_all_items_alike_gets_what_chance_gets() -> None:
    wanted = torch.tensor([[0], [7]])
    discounts = 1 / np.log2(np.arange(2, 12))
    assert ndcg(torch.zeros(1, 100), wanted, 10).item() == pytest.approx(discounts.sum() / 100)


def test_items_of_users() -> None:
    users, items = np.array([2, 0, 2], np.int32), np.array([5, 6, 7], np.int32)
    found = ItemsOf(users, items, 4)
    assert found.users().tolist() == [0, 2]
    assert found.pairs(np.array([1, 2, 0])).tolist() == [[1, 1, 2], [5, 7, 6]]


def test_what_training_knew_is_not_ranked() -> None:
    usecase = MfImplicitUseCase(MfImplicitParams(**SMALL), None, 1)
    loaders = usecase.loaders(0, 1)
    assert next(iter(loaders.train)).items.shape == (64, 5)
    for loader, known_parts in ((loaders.valid, 1), (loaders.test, 2)):
        batch = next(iter(loader))
        known, wanted = (
            set(zip(batch.users[pairs[0]].tolist(), pairs[1].tolist(), strict=True))
            for pairs in (batch.known, batch.wanted)
        )
        assert not known & wanted
        rows = np.concatenate([part.pairs(batch.users.numpy())[0] for part in usecase._items[:known_parts]])
        assert len(known) == len(rows)


def test_an_item_that_a_user_rated_often_is_liked_once(tmp_path: Path) -> None:
    pairs = [(user, item) for user in range(40) for item in range(10)]
    (tmp_path / "u.data").write_text("".join(f"{user}\t{item}\t5\n" for user, item in pairs * 3))
    usecase = MfImplicitUseCase(MfImplicitParams(batch=8, dim=40), tmp_path / "u.data", 1)
    assert usecase.data_facts == {"liked_ratings": 1200, "liked_pairs": 400}
    model, test = usecase.model(), usecase.loaders(0, 1).test
    with torch.no_grad():  # a model that knows the held-out ratings
        pairs_of = [part.pairs(np.arange(40)).T.tolist() for part in usecase._items[:2]]
        known = {(user, item) for part in pairs_of for user, item in part}
        model.get_parameter("users.weight").zero_()[:, 1:] = torch.eye(40)
        model.get_parameter("items.weight").zero_()[:, 1:] = torch.tensor(
            [[float((user, item) not in known) for user in range(40)] for item in range(10)]
        )
    assert usecase.evaluate(model, test)["ndcg@10"] == pytest.approx(1)


def test_five_folds_of_movielens() -> None:
    """Published: 0.934 with the SVD of Surprise."""
    spec = importlib.util.find_spec("recbole")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("recbole, which ships MovieLens-100K, is not installed: say 'make models'")
    ratings = Path(spec.submodule_search_locations[0], "dataset_example", "ml-100k", "ml-100k.inter")
    errors = [train(MfUseCase(MfParams(fold=fold), ratings, 1))[-1]["rmse"] for fold in range(5)]
    assert sum(errors) / 5 <= 0.93
