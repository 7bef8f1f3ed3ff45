"""The use case gcn fulfills the protocol, and plain PyTorch learns with it."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import torch_geometric.typing
from sklearn.metrics import roc_auc_score
from torch_geometric.data import Data

from adabench.usecases.gcn import GcnUseCase
from adabench.usecases.gcn.task import GcnParams
from adabench.usecases.interface import DataError
from tests.graph_files import write_npz
from tests.unit.plain_training import epochs_of

SMALL = GcnParams(epochs=2, dim=16, hidden=16, batch=256)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def usecase() -> GcnUseCase:
    return GcnUseCase(SMALL, None, 1)


def first_batch(usecase: GcnUseCase) -> Data:
    return next(iter(usecase.loaders(0, 1).train))


def train(usecase: GcnUseCase) -> dict[str, float]:
    """Train with plain PyTorch; the test split's accuracy at the best epoch by validation, and all losses."""
    history = []
    for model, loaders, losses in epochs_of(usecase):
        valid, test = usecase.evaluate(model, loaders.valid), usecase.evaluate(model, loaders.test)
        history.append((valid["accuracy"], test["accuracy"], sum(losses) / len(losses)))
    return {"test": max(history)[1], "first": history[0][2], "last": history[-1][2]}


def test_batches_are_subgraphs_around_their_first_nodes(usecase: GcnUseCase) -> None:
    batch = first_batch(usecase)
    assert usecase.samples(batch) == batch.batch_size == 256
    assert len(batch.y) == len(batch.n_id) == batch.num_nodes > 256
    assert torch.equal(batch.y, usecase._data.y[batch.n_id])
    arcs = set(map(tuple, usecase._graph.edge_index.T.tolist()))
    assert set(map(tuple, batch.n_id[batch.edge_index].T.tolist())) < arcs


def test_the_loss_is_the_cross_entropy_of_the_first_nodes(usecase: GcnUseCase) -> None:
    model, batch = usecase.model(), first_batch(usecase)
    probabilities = model(batch.n_id, batch.edge_index).softmax(dim=1)[: batch.batch_size]
    expected = -probabilities[torch.arange(batch.batch_size), batch.y[: batch.batch_size]].log().mean()
    torch.testing.assert_close(usecase.loss(model, batch), expected)


def test_training_shares_are_disjoint_and_new_each_epoch(usecase: GcnUseCase) -> None:
    shares = []
    for rank in range(3):
        loader = usecase.loaders(rank, 3).train
        epochs = [torch.cat([batch.n_id[: batch.batch_size] for batch in loader]) for _ in range(2)]
        assert not torch.equal(*epochs)
        assert torch.equal(*(nodes.sort().values for nodes in epochs))
        shares.append(epochs[0])
    assert len({len(share) for share in shares}) == 1
    together = torch.cat(shares)
    assert len(together.unique()) == len(together)
    assert len(usecase._split.train) - len(together) in range(3)


def test_every_worker_evaluates_the_whole_splits_in_the_same_neighbourhoods(usecase: GcnUseCase) -> None:
    for part in ("valid", "test"):
        seen = []
        for rank in range(2):
            loader = getattr(usecase.loaders(rank, 2), part)
            for _ in range(2):
                batches = list(loader)
                seen.append(torch.cat([batch.n_id for batch in batches]))
                nodes = torch.cat([batch.n_id[: batch.batch_size] for batch in batches])
                assert nodes.tolist() == getattr(usecase._split, part).tolist()
        assert all(torch.equal(seen[0], other) for other in seen)


def test_evaluation_counts_right_answers_and_leaves_the_model_training(usecase: GcnUseCase) -> None:
    model, loader = usecase.model(), usecase.loaders(0, 1).valid
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.get_parameter("conv2.bias")[3] = 1.0
    result = usecase.evaluate(model, loader)
    labels = usecase._data.y[usecase._split.valid]
    assert result["accuracy"] == pytest.approx((labels == 3).double().mean().item())
    at_three, elsewhere = (math.log(math.e + 15) - one for one in (1.0, 0.0))
    share = result["accuracy"]
    assert result["loss"] == pytest.approx(share * at_three + (1 - share) * elsewhere, rel=1e-5)
    assert model.training
    with pytest.raises(ValueError, match="the loader to evaluate over is empty"):
        usecase.evaluate(model, [])


def test_two_classes_have_an_area_under_the_curve(tmp_path: Path) -> None:
    write_npz(tmp_path, edges=np.random.default_rng(1).integers(60, size=(200, 2)), y=np.arange(60) % 2)
    two = GcnUseCase(GcnParams(graph="mine", batch=8, fanout=-1), tmp_path, 1)
    model, loader = two.model(), two.loaders(0, 1).valid
    model.eval()
    with torch.no_grad():
        scored = [(batch.y[: batch.batch_size], model(batch.n_id, batch.edge_index)) for batch in loader]
    labels = torch.cat([one for one, _ in scored]).numpy()
    margins = torch.cat([logits[: len(one), 1] - logits[: len(one), 0] for one, logits in scored]).numpy()
    expected = roc_auc_score(labels, margins)
    assert two.evaluate(model, loader)["auc"] == pytest.approx(expected, abs=1e-6)


def test_features_are_inputs_of_the_model_if_they_are_wanted(tmp_path: Path) -> None:
    labels = np.arange(300) % 3  # only the features give the classes: no node has a neighbor
    write_npz(tmp_path, edges=[(0, 0)], y=labels, x=4.0 * np.eye(3)[labels])
    params = GcnParams(graph="mine", batch=32, dim=4, hidden=8, epochs=5, lr=0.1)
    assert train(GcnUseCase(params, tmp_path, 1))["test"] < 0.7
    featured = GcnUseCase(msgspec.structs.replace(params, features=True), tmp_path, 1)
    assert featured.model().get_parameter("conv1.lin.weight").shape == (8, 4 + 3)
    batch = first_batch(featured)
    assert torch.equal(batch.x, featured._data.x[batch.n_id])
    assert train(featured)["test"] > 0.95


def test_home_rows_are_disjoint_complete_and_hold_the_workers_training_nodes(usecase: GcnUseCase) -> None:
    rows = [usecase.home_rows(rank, 3)["embedding.weight"] for rank in range(3)]
    assert torch.cat(rows).sort().values.tolist() == list(range(usecase._graph.num_nodes))
    for rank in range(3):
        training = torch.cat([batch.n_id[: batch.batch_size] for batch in usecase.loaders(rank, 3).train])
        assert torch.isin(training, rows[rank]).all()


def test_plain_pytorch_learns() -> None:
    result = train(GcnUseCase(GcnParams(epochs=2), None, 1))
    assert result["last"] < 0.7 * result["first"]
    assert result["test"] > 0.75


def test_pygs_sampler_is_used_where_it_is_installed_and_asked_for_clearly_where_not() -> None:
    usecase = GcnUseCase(GcnParams(sampler="pyg"), None, 1)
    if torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE:
        assert first_batch(usecase).batch_size == 128
    else:
        with pytest.raises(ValueError, match="sampler=pyg needs the package pyg-lib, which is not installed"):
            usecase.loaders(0, 1)


def test_too_many_workers_and_a_worker_that_does_not_exist_are_refused(
    usecase: GcnUseCase, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="worker 2 of 2: the worker's number must be from 0 to 1"):
        usecase.loaders(2, 2)
    (tmp_path / "git_edges.csv").write_text("id_1,id_2\n0,1\n")
    (tmp_path / "git_target.csv").write_text("id,name,ml_target\n0,a,1\n1,b,0\n")
    tiny = GcnUseCase(GcnParams(graph="github"), tmp_path, 1)
    with pytest.raises(DataError, match="1 training nodes cannot be shared among 2 workers"):
        tiny.loaders(0, 2)


@pytest.mark.parametrize(
    ("graph", "folder", "target"), [("facebook", "musae_social", 0.92), ("pubmed", "planetoid", 0.81)]
)
def test_real_graphs_reach_their_accuracy(shared_data: Path, graph: str, folder: str, target: float) -> None:
    usecase = GcnUseCase(GcnParams(graph=graph, epochs=2), shared_data / folder, 1)
    assert train(usecase)["test"] >= target
