"""The outcome of a run, from the files that its ranks have written; no process is started."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from adabench.harness.launch.launcher import Failure, Outcome, RunFiles, Supervision
from adabench.harness.launch.watch import launch
from adabench.harness.run.spec import FileKind, RankResult, RunSpec, exchange_file
from tests.records import make_cell


def launched(written: dict[tuple[FileKind, int], Any], exit_code: int, **fields: Any) -> Outcome:
    """The outcome of a run on two nodes that writes these files and ends."""

    def begin(spec: RunSpec, files: RunFiles) -> Any:
        for (kind, number), content in written.items():
            exchange_file(files.folder, kind, number).write_bytes(msgspec.json.encode(content))
        ended = {"wait": lambda seconds: exit_code, "end": lambda: exit_code}
        return SimpleNamespace(**ended, launched_at=0.0, trouble=None, link=None)

    launcher: Any = SimpleNamespace(begin=begin)
    return launch(launcher, make_cell(RunSpec, **fields), None, Supervision(10.0))


def result(rank: int, data: str) -> RankResult:
    costs: dict[str, Any] = {
        "cpu_seconds": 1.0,
        "peak_rss_mib": 1.0,
        "context_switches": 1,
        "paused_seconds": 0.0,
    }
    return RankResult(rank=rank, data=data, **costs)


@pytest.mark.parametrize(
    ("planned", "read", "reason"),
    [
        ("sha256:a", ("sha256:a", "sha256:a"), None),
        (None, ("sha256:a", "sha256:a"), None),
        ("sha256:a", ("sha256:b", "sha256:b"), "rank 0 read sha256:b, but the run is of sha256:a"),
        (None, ("sha256:a", "sha256:b"), "rank 1 read sha256:b, but the run is of sha256:a"),
    ],
)
def test_a_run_whose_data_changed_fails(
    planned: str | None, read: tuple[str, str], reason: str | None
) -> None:
    outcome = launched(
        {("result", rank): result(rank, one) for rank, one in enumerate(read)}, 0, data=planned
    )
    assert outcome.status == ("ok" if reason is None else "failed")
    assert outcome.reason == (None if reason is None else f"the data changed: {reason}")


@pytest.mark.parametrize(("number", "name"), [(11, "SIGSEGV"), (40, "signal 40")])
def test_a_rank_may_be_killed_by_any_signal(number: int, name: str) -> None:
    failure = Failure(rank=1, pid=1, exit_code=-number, time=1.0)
    outcome = launched({("failures", 0): [failure]}, 1)
    assert (outcome.status, outcome.signal) == ("failed", name)
    assert outcome.reason == f"rank 1 was killed by {name}"
