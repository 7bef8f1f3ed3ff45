"""Tables whose values are bfloat16 in memory, on a cluster of one node."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import adaps
import autoada
from adabench.usecases.ctr.task import CtrParams, CtrUseCase
from adaps.optimizers import Optimizer
from tests.checkpoint_files import content
from tests.unit.checkpoints import OPTIMIZERS, ROWS, table, train, values

Floats = npt.NDArray[np.float32]


def is_bfloat16(floats: Floats) -> bool:
    return not (floats.view(np.uint32) & 0xFFFF).any()


@pytest.mark.parametrize("length", [128, 127])
def test_rows_without_state_take_half_the_memory(length: int) -> None:
    resident = {}
    for dtype in ("float32", "bfloat16"):
        with adaps.Node([adaps.Table("t", 4096, length, dtype=dtype)]) as node:
            node.worker(0).push(np.arange(4096), np.ones((4096, length), np.float32))
            resident[dtype] = node.stats()["resident_bytes"]
    assert resident["bfloat16"] <= 0.55 * resident["float32"]


def test_a_worker_reads_what_it_wrote() -> None:
    with adaps.Node([table(adaps.SGD(), dtype="bfloat16", init=adaps.Constant(0.0))]) as node:
        kv = node.worker(0)
        rows = np.arange(ROWS)
        whole = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)  # which bfloat16 has
        kv.set(rows, whole)
        assert np.array_equal(values(node), whole)
        kv.push(rows, np.ones_like(whole))
        assert np.array_equal(values(node), whole + 1)
        kv.push(rows, np.full_like(whole, 0.3))
        read = values(node)
        assert is_bfloat16(read)
        assert (np.abs(read - whole - 1.3) <= np.maximum(read, 1) * 2**-7).all()


def test_initial_values_are_rounded_in_the_mean() -> None:
    init = adaps.Constant(1.001)
    with adaps.Node([adaps.Table("t", 1000, 64, init=init, dtype="bfloat16")]) as node:
        out = np.empty((1000, 64), np.float32)
        node.worker(0).pull(np.arange(1000), out)
        assert set(np.unique(out)) == {np.float32(1.0), np.float32(1.0 + 2**-7)}
        assert out.mean(dtype=np.float64) == pytest.approx(1.001, abs=5 * 2**-8 / 64000**0.5)


def test_small_updates_are_not_lost() -> None:
    """Adds a thousandth of bfloat16's spacing at 1, a thousand times."""
    with adaps.Node([adaps.Table("t", 16, 256, init=adaps.Constant(1.0), dtype="bfloat16")]) as node:
        kv = node.worker(0)
        rows, step = np.arange(16), np.full((16, 256), 2**-7 / 1000, np.float32)
        for _ in range(1000):
            kv.push(rows, step)
        out = np.empty((16, 256), np.float32)
        kv.pull(rows, out)
        # On average each float was raised once; the number of raises follows a Poisson distribution.
        assert out.mean(dtype=np.float64) - 1 == pytest.approx(2**-7, abs=5 * 2**-7 / 4096**0.5)
        # To the nearest number, as torch rounds, nothing would be left.
        assert torch.tensor(1.0, dtype=torch.bfloat16) + step.item(0) == 1.0


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: str(optimizer).partition("(")[0])
def test_optimizers_do_what_they_do_in_float32(optimizer: Optimizer) -> None:
    found = {}
    for dtype in ("float32", "bfloat16"):
        with adaps.Node([table(optimizer, dtype=dtype)]) as node:
            train(node, 0, 10)
            found[dtype] = values(node)
    assert is_bfloat16(found["bfloat16"])
    largest = np.abs(found["float32"]).max()
    assert np.abs(found["bfloat16"] - found["float32"]).max() <= 12 * 2**-7 * largest
    assert not np.array_equal(found["bfloat16"], found["float32"])


def test_training_is_the_same_every_time() -> None:
    found = []
    for _ in range(2):
        with adaps.Node([table(adaps.Adagrad(lr=0.1), dtype="bfloat16")]) as node:
            train(node, 0, 10)
            found.append(values(node))
    assert np.array_equal(found[0], found[1])


def test_checkpoints_have_the_very_values_and_either_dtype_goes_on_with_them(tmp_path: Path) -> None:
    with adaps.Node([table(dtype="bfloat16")]) as node:
        train(node, 0, 5)
        expected = values(node)
        node.checkpoint(tmp_path / "packed")
        train(node, 5, 5)
        node.restore(tmp_path / "packed")
        assert np.array_equal(values(node), expected)
    saved = content(tmp_path / "packed", "emb")
    assert np.array_equal(saved.values, expected[saved.rows])
    assert not is_bfloat16(saved.state)  # float32, as ever
    with adaps.Node([table()]) as node:
        node.restore(tmp_path / "packed")
        assert np.array_equal(values(node), expected)
        train(node, 5, 5)
        further = values(node)
        node.checkpoint(tmp_path / "plain")
    with adaps.Node([table(dtype="bfloat16")]) as node:
        node.restore(tmp_path / "plain")
        rounded = values(node)
        assert is_bfloat16(rounded)
        assert np.abs(rounded - further).max() <= 2**-7 * np.abs(further).max()


def test_samples_are_values_as_pulled() -> None:
    sampling = adaps.Sampling(adaps.LogUniform(), "local")
    with adaps.Node([table(dtype="bfloat16", sampling=sampling)]) as node:
        train(node, 0, 3, rows=ROWS)
        kv = node.worker(0)
        sample = kv.prepare_sample(node.table("emb"), 20, kv.current_clock)
        rows = np.empty(20, np.int64)
        out = np.empty((20, 3), np.float32)
        kv.pull_sample(sample, rows, out)
        assert np.array_equal(out, values(node)[rows])


def test_a_wrapped_model_has_its_tables_in_half_the_memory() -> None:
    resident, weights = {}, {}
    for row_dtype in ("float32", "bfloat16"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(2000, 64), nn.Flatten(), nn.Linear(128, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with closing(autoada.AdaModel(model, optimizer, row_dtype=row_dtype)) as wrapped:
            for step in range(5):
                ids = torch.arange(400 * step, 400 * (step + 1)).view(-1, 2)
                optimizer.zero_grad()
                wrapped(ids).square().mean().backward()
                optimizer.step()
            resident[row_dtype] = wrapped.node.stats()["resident_bytes"]
            weights[row_dtype] = wrapped.state_dict()["0.weight"].clone()
    assert resident["bfloat16"] <= 0.56 * resident["float32"]
    assert is_bfloat16(weights["bfloat16"].numpy())
    assert torch.allclose(weights["bfloat16"], weights["float32"], rtol=2**-6, atol=1e-4)


def test_a_dtype_beside_a_node_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 1))
    with (
        autoada.create_node(model, row_dtype="bfloat16") as node,
        pytest.raises(ValueError, match="row_dtype 'bfloat16' cannot be passed with a node"),
    ):
        autoada.AdaModel(model, node=node, row_dtype="bfloat16")
    with pytest.raises(ValueError, match=r"dtype of table '0.weight': 'half' does not exist"):
        autoada.create_node(model, row_dtype="half")


def trained(params: CtrParams, data: Path | None, seed: int, row_dtype: str) -> float:
    """AUC of a training with such rows, by the samples that are held out."""
    usecase = CtrUseCase(params, data, seed)
    model = usecase.model()
    optimizer = usecase.optimizer(model)
    loaders = usecase.loaders(0, 1)
    with closing(autoada.AdaModel(model, optimizer, row_dtype=row_dtype)) as wrapped:
        for _ in range(params.epochs):
            for batch in loaders.train:
                optimizer.zero_grad()
                usecase.loss(wrapped, batch).backward()
                optimizer.step()
        return usecase.evaluate(wrapped, loaders.test)["auc"]


def differences(params: CtrParams, data: Path | None, seeds: range) -> list[float]:
    return [
        trained(params, data, seed, "bfloat16") - trained(params, data, seed, "float32") for seed in seeds
    ]


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_training_on_criteo_is_as_good(shared_data: Path, full: bool, optimizer: Any) -> None:
    params = CtrParams(optimizer=optimizer, lr=0.002 if optimizer == "adagrad" else 0.1)
    found = differences(params, shared_data / "criteo_subset", range(1, 11 if full else 4))
    print(f"{optimizer}: {np.mean(found):+.5f}, {found}")
    assert abs(np.mean(found)) <= 0.001, found
