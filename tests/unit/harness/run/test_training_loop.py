from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from adabench.backends.interface import Options
from adabench.harness.run import training_loop
from adabench.harness.run.spec import RankResult, RunSpec, merged_results
from adabench.harness.study import cell
from adabench.usecases.interface import Params
from adabench.usecases.kge import KgeParams, KgeUseCase
from tests.records import make_cell
from tests.unit.plain_training import epochs_of


class Reached(Exception):
    """The end of the tested part of the loop is reached."""


def test_options_are_converted_before_there_are_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Threads that convert to a class which msgspec has not met before can die of a segmentation fault.
    where: list[tuple[int, threading.Thread]] = []

    class Kept(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
        lookahead: int = 1

        def __post_init__(self) -> None:
            where.append((self.lookahead, threading.current_thread()))

    class Backend:
        Options = Kept

    class UseCase:
        Params = Params

        def __init__(self, params: object, data: Path | None, seed: int) -> None:
            pass

        def loaders(self, rank: int, world: int) -> Any:
            assert threading.current_thread() is not threading.main_thread()
            raise Reached

    monkeypatch.setattr(training_loop, "load_backend", lambda name: Backend)
    monkeypatch.setattr(cell, "load_usecase", lambda name: UseCase)
    spec = make_cell(RunSpec, options={"lookahead": 7}, nodes=1, workers=4, folder=str(tmp_path))
    with pytest.raises(Reached):
        training_loop.RankTraining(spec, 0).run()
    assert where == [(7, threading.main_thread())] * 4


def test_metrics_are_those_of_the_best_epoch_on_the_whole_test_split(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(KgeUseCase, "maximize", False)  # The best epoch is not the last one.
    params: dict[str, Any] = {"triples": 4000, "batch": 64, "negatives": 8, "dim": 8, "epochs": 4}
    fields = {"usecase": "kge", "backend": "single", "params": params, "nodes": 1, "folder": str(tmp_path)}
    result = training_loop.RankTraining(make_cell(RunSpec, **fields, seed=1), 0).run()
    usecase = KgeUseCase(KgeParams(**params), None, 1)
    whole: Any = usecase.whole_test()
    expected = [usecase.evaluate(model, whole) for model, _, _ in epochs_of(usecase)]
    assert result.best_epoch is not None
    assert result.best_epoch < 4
    assert result.metrics == pytest.approx(expected[result.best_epoch - 1])
    assert result.data_facts == usecase.data_facts
    assert len(result.history) == 4


def test_a_record_has_the_time_of_the_channels_of_each_node() -> None:
    results = [
        RankResult(
            rank=rank,
            cpu_seconds=1.0,
            peak_rss_mib=1.0,
            context_switches=1,
            paused_seconds=0.0,
            data="",
            counters={"channel_micros": 10.0 + rank, "rounds": 1.0},
        )
        for rank in (0, 1)
    ]
    merged = merged_results(results)
    assert merged["waiting"] == {"channel_micros": [10.0, 11.0]}
    assert merged["counters"] == {"channel_micros": 21.0, "rounds": 2.0}


def test_a_record_has_current_values_of_the_last_epoch_and_sums_of_all_epochs(tmp_path: Path) -> None:
    params = {
        "rows": 700,
        "batch": 50,
        "dim": 2,
        "hidden": [4],
        "epochs": 3,
        "keys": "hash",
        "capacity": 20_000,
    }
    fields = {"usecase": "ctr", "backend": "prefetch", "params": params, "nodes": 1, "folder": str(tmp_path)}
    result = training_loop.RankTraining(make_cell(RunSpec, **fields, seed=1), 0).run()
    rows = result.counters["ids_assigned"]
    assert 0 < rows < 500 * 26  # the split for training has 500 samples of 26 features
    assert result.tables["deep.weight"]["ids_assigned"] == rows
    assert result.counters["pulled_local"] >= 3 * rows
    assert result.counters["slots"] >= rows
