"""The findings of ``adabench check`` about plugins that break their promises; runs are simulated."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from adabench.harness.checks import check_backend, check_usecase
from adabench.harness.launch.fork_server import ForkServer
from adabench.harness.launch.launcher import Outcome
from adabench.harness.plugins.registry import load_usecase
from adabench.harness.run.spec import RankResult, RunSpec
from adabench.usecases.interface import DataError


def trained(spec: RunSpec, dropped: int) -> Outcome:
    """The report of a run whose workers each skip the last batches of an epoch."""
    kind = load_usecase(spec.usecase)
    usecase = kind(msgspec.convert(spec.params, kind.Params), None, spec.seed)
    results = []
    for rank in range(spec.nodes):
        workers = range(rank * spec.workers, (rank + 1) * spec.workers)
        batches = [list(usecase.loaders(worker, spec.nodes * spec.workers).train) for worker in workers]
        samples = sum(usecase.samples(one) for share in batches for one in share[: len(share) - dropped])
        results.append(
            RankResult(
                rank=rank,
                counters={"intents": 1.0},
                cpu_seconds=1.0,
                peak_rss_mib=1.0,
                context_switches=1,
                samples=usecase.params.epochs * samples,
                paused_seconds=0.0,
                data="",
                metrics={"auc": 0.75},
            )
        )
    return Outcome("ok", 1.0, results=results)


@pytest.mark.parametrize(("dropped", "kept"), [(0, True), (3, False)])
def test_a_backend_that_drops_batches_is_found_out(
    monkeypatch: pytest.MonkeyPatch, dropped: int, kept: bool
) -> None:
    def launch(server: ForkServer, spec: RunSpec, timeout: float) -> Outcome:
        return trained(spec, 0 if spec.backend == "single" else dropped)

    monkeypatch.setattr(check_backend, "launch_unrecorded", launch)
    findings = list(check_backend.check_backend("prefetch"))
    samples = [one for one in findings if one.promise.startswith("trains as many samples as its workers")]
    assert len(samples) == 3
    assert [one.ok for one in samples] == [kept] * 3
    assert all(one.ok for one in findings if one not in samples)
    assert all(("samples, where its workers were given" in one.detail) is not kept for one in samples)


def test_a_use_case_that_ignores_data_is_found_out() -> None:
    ctr: Any = load_usecase("ctr")

    class Ignores(ctr):  # type: ignore[misc]
        def __init__(self, params: Any, data: Path | None, seed: int) -> None:
            super().__init__(params, None, seed)

    finding = check_usecase._unused(Ignores)
    assert (finding.ok, finding.detail) == (False, "no/such/data is ignored")


@pytest.mark.parametrize("name", ["ctr", "gcn", "kge", "mf", "mf-implicit"])
def test_workers_with_the_same_samples_are_found(name: str) -> None:
    kind: Any = load_usecase(name)

    class Same(kind):  # type: ignore[misc]
        def loaders(self, rank: int, world: int) -> Any:
            return super().loaders(0, world)

    small = {"ctr": {"rows": 4000}, "kge": {"triples": 5000}, "mf": {"ratings": 4000}, "mf-implicit": {}}
    params = kind.Params(batch=64, **small.get(name, {}))
    right, wrong = (one(params, None, 1) for one in (kind, Same))
    assert check_usecase._disjoint(right, right) == ""
    assert "samples are in the shares of two workers" in check_usecase._disjoint(wrong, wrong)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_worker_without_the_whole_of_a_split_is_found(split: str) -> None:
    kind: Any = load_usecase("ctr")

    class Shared(kind):  # type: ignore[misc]
        def loaders(self, rank: int, world: int) -> Any:
            loaders = super().loaders(rank, world)
            return loaders._replace(**{split: list(getattr(loaders, split))[rank::world]})

    right, wrong = (one(kind.Params(rows=20_000), None, 1) for one in (kind, Shared))
    assert check_usecase._whole_splits(right, right) == ""
    assert f"the {split} split has " in check_usecase._whole_splits(wrong, wrong)


def test_data_errors_of_several_lines_are_found() -> None:
    class Talks:
        Params = dict

        def __init__(self, params: Any, data: Any, seed: int) -> None:
            raise DataError("one\ntwo")

    finding = check_usecase._unused(Talks)  # type: ignore[arg-type]
    assert (finding.ok, finding.detail) == (False, "in 2 lines: one\ntwo")
