"""Use cases with raw ids as keys: no numbering of ids, and quality as with numbered rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adabench.backends.external.ddp import Ddp
from adabench.backends.external.floor import Floor
from adabench.backends.external.rpc import Rpc
from adabench.backends.interface import Options, ServerOptions, Unavailable
from adabench.backends.strategies.manual import Manual
from adabench.harness.checks.check_usecase import _keys
from adabench.harness.errors import UsageError
from adabench.harness.study.model_parameters import count_accesses
from adabench.usecases.ctr import CtrParams, CtrUseCase
from adabench.usecases.ctr import cache as ctr_cache
from adabench.usecases.ctr.table import hashed_ids
from adabench.usecases.interface import UseCase, hashed_tables
from adabench.usecases.mf import MfParams, MfUseCase
from adabench.usecases.mf.data import load as load_ratings
from tests.unit.plain_training import epochs_of
from tests.unit.usecases.ctr.test_cache import raw_text, table_of
from tests.worker_contexts import PerProcess, worker_context


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADABENCH_CACHE", str(tmp_path / "cache"))


def ctr(keys: Any, data: Path | None = None, **params: Any) -> CtrUseCase:
    given = {"rows": 14_000, "batch": 64, "dim": 4, "hidden": (8,), **params}
    return CtrUseCase(CtrParams(keys=keys, **given), data, 1)


def mf(keys: Any, data: Path | None = None, **params: Any) -> MfUseCase:
    return MfUseCase(MfParams(keys=keys, **{"ratings": 20_000, **params}), data, 1)


def quality(usecase: Any) -> float:
    """The metric of the test split after the last epoch."""
    *_, (model, loaders, _) = epochs_of(usecase)
    return float(usecase.evaluate(model, loaders.test)[usecase.metric])


@pytest.mark.parametrize(("make", "tolerance"), [(ctr, 0.03), (mf, 0.02)])
def test_quality_is_that_of_dense_keys(make: Any, tolerance: float) -> None:
    """Initial weights and so the qualities differ."""
    found, expected = (
        quality(make(keys, hidden=(64, 32)) if make is ctr else make(keys)) for keys in ("hash", "dense")
    )
    assert found == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("make", [ctr, mf])
def test_keys_are_the_ids_that_the_loss_reads(make: Any) -> None:
    usecase: UseCase = make("hash")
    assert _keys(usecase, usecase) == ""
    batch = next(iter(usecase.loaders(0, 1).train))
    assert hashed_tables(usecase) == set(usecase.keys(batch))
    assert hashed_tables(make("dense")) == frozenset()


def test_raw_criteo_is_read_without_numbering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(raw_text(300))
    dense = ctr("dense", path)
    monkeypatch.setattr(ctr_cache, "_distinct", lambda file: pytest.fail("ids were numbered"))
    usecase = ctr("hash", path)
    ids = usecase._data.train.samples.ids.numpy()
    assert np.array_equal(ids, hashed_ids(table_of(path.read_text()).ids[: len(ids)]))
    assert usecase.fingerprint == dense.fingerprint
    numbered = dense._data.train.samples.ids.numpy()
    assert len(np.unique(ids)) == len(np.unique(numbered))


def test_different_ids_of_a_field_and_small_ids_of_all_fields_remain_different() -> None:
    values = np.array([0, 1, -1, 2**63 - 1, -(2**63), 2**58, -(2**58)])
    ids = hashed_ids(np.repeat(values[:, None], 26, axis=1))
    assert all(len(np.unique(column)) == len(values) for column in ids.T)
    small = hashed_ids(np.random.default_rng(0).choice(2**58, (500, 26), replace=False))
    assert len(np.unique(small)) == small.size


def test_ids_of_ratings_are_whole_numbers_or_hashes(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    names = ["7", "-9223372036854775808", "u1", "9223372036854775808", "007", " 7 "]
    path.write_text("".join(f"{name},5,1.0\n" for name in names))
    block = load_ratings(path, 0, hashed=True).block
    users = block.users.tolist()
    assert users[:2] == [7, -(2**63)]
    assert users[5] == 7  # spaces around a name do not count
    assert len(set(users)) == 5
    assert users[2:5] == load_ratings(path, 0, hashed=True).block.users.tolist()[2:5]
    assert block.items.tolist() == [5] * 6


@pytest.mark.parametrize("backend", [Ddp, Floor, Rpc])
def test_backends_that_need_row_numbers_refuse_ids(backend: Any) -> None:
    with pytest.raises(Unavailable, match=r"needs row numbers, but deep.weight has ids: use keys=dense"):
        backend().open(ctr("hash"), worker_context(PerProcess()), Options())


def test_counts_simulations_and_searches_refuse_ids() -> None:
    with pytest.raises(UsageError, match=r"rows of deep.weight cannot be counted.*: use keys=dense"):
        count_accesses(ctr("hash"), 1, 1)
    with pytest.raises(ValueError, match=r"cannot be searched for the ids of deep.weight: use keys=dense"):
        Manual().served(ctr("hash"))


def test_capacity_that_is_too_small_is_an_error() -> None:
    usecase = ctr("hash", capacity=100)
    batch = next(iter(usecase.loaders(0, 1).train))
    with pytest.raises(RuntimeError, match=r"capacity of 100 rows, and the ids so far need \d+"):
        usecase.loss(usecase.model(), batch)


def test_the_weight_of_the_linear_model_is_the_first_number_of_a_row() -> None:
    usecase = ctr("hash")
    model: Any = usecase.model()
    batch = next(iter(usecase.loaders(0, 1).train))
    before = model(batch.dense, batch.ids)
    with torch.no_grad():
        model.deep.weight[:, 0] += 1.0
        torch.testing.assert_close(model(batch.dense, batch.ids), before + 26)


def test_tables_of_a_model_have_different_seeds() -> None:
    model: Any = mf("hash").model()
    ids = torch.tensor([1, 2])
    assert not torch.equal(model.users(ids), model.items(ids))
    assert torch.equal(model.users(ids), mf("hash").model().users(ids))  # type: ignore[operator]


@pytest.mark.parametrize("strategy", ["manual", "prefetch", "autoada_manual", "autoada_automatic"])
def test_strategies_on_the_server_equal_plain_pytorch(strategy: str) -> None:
    import importlib

    backend = importlib.import_module(f"adabench.backends.strategies.{strategy}").BACKEND()
    usecase = ctr("hash", epochs=1)
    session = backend.open(usecase, worker_context(PerProcess()), ServerOptions())
    loaders = usecase.loaders(0, 1)
    for batch in session.batches(loaders.train):
        session.step(usecase.loss(session.model, batch))
    found = usecase.evaluate(session.model, loaders.test)
    session.close()
    assert found["auc"] == pytest.approx(quality(usecase), abs=1e-4)
