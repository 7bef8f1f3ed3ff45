"""A node's messages during training, and the event files made from them."""

import itertools
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch

from adabench.harness.errors import UsageError
from adabench.harness.run.progress_log import ProgressEntry, ProgressLog
from adabench.harness.run.spec import exchange_file, read_json
from adabench.harness.session.tensorboard import RunEventFiles, check_tensorboard
from tests.events import scalars


def told(folder: Path, rank: int = 0) -> list[ProgressEntry]:
    return read_json(exchange_file(folder, "progress", rank), list[ProgressEntry]) or []


def test_the_first_step_is_looked_at_and_then_none_for_a_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now = [50.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log, taken = ProgressLog(tmp_path, 0), []
    for step in range(1, 31):
        now[0] += 0.1
        if log.due():
            log.write(1, {"bytes_sent": float(step), "slots": 3.0}, torch.tensor(0.5, requires_grad=True))
            taken.append(step)
    assert taken[0] == 1
    assert all(later - one in (10, 11) for one, later in itertools.pairwise(taken))
    assert [one.step for one in told(tmp_path)] == taken
    assert told(tmp_path)[0] == ProgressEntry(
        number=0, step=1, epoch=1, counters={"bytes_sent": 1.0}, loss=0.5
    )
    log.write(1, {}, quality={"auc": 0.7})
    assert told(tmp_path)[-1] == ProgressEntry(number=len(taken), step=30, epoch=1, quality={"auc": 0.7})


def test_the_last_minute_is_kept_and_only_that(tmp_path: Path) -> None:
    log = ProgressLog(tmp_path, 1)
    for epoch in range(1, 101):
        log.write(epoch, {})
    assert [one.number for one in told(tmp_path, 1)] == list(range(36, 100))
    assert [one.step for one in told(tmp_path, 1)] == list(range(37, 101))  # no step was seen: epochs count


def test_events_are_what_nodes_said_each_once(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    said = [
        ProgressEntry(
            number=0,
            step=1,
            epoch=1,
            loss=0.75,
            counters={"pulled_local": 8, "pulled_remote": 8, "bytes_sent": 100, "blocked_micros": 5e5},
        ),
        ProgressEntry(
            number=1,
            step=9,
            epoch=1,
            counters={"pulled_local": 11, "pulled_remote": 9, "bytes_sent": 300, "blocked_micros": 15e5},
            quality={"auc": 0.5, "valid_auc": 0.25},
        ),
    ]
    run = RunEventFiles(tmp_path / "board" / "ctr-manual-1", 2)
    run.update(scratch, False)  # no progress reported yet
    exchange_file(scratch, "progress", 0).write_bytes(msgspec.json.encode(said[:1]))
    run.update(scratch, True)
    run = RunEventFiles(tmp_path / "board" / "ctr-manual-2", 2)
    exchange_file(scratch, "progress", 0).write_bytes(msgspec.json.encode(said))
    for over in (False, True):
        run.update(scratch, over)
    assert scalars(tmp_path / "board" / "ctr-manual-1" / "node-0")["loss"] == [(1, 0.75)]
    assert scalars(tmp_path / "board" / "ctr-manual-2" / "node-0") == {
        "loss": [(1, 0.75)],
        "local_share": [(1, 0.5), (9, 0.75)],
        "bytes_sent": [(1, 100.0), (9, 300.0)],
        "waiting_seconds": [(1, 0.5), (9, 1.5)],
        "quality/auc": [(9, 0.5)],
        "quality/valid_auc": [(9, 0.25)],
    }
    assert not (tmp_path / "board" / "ctr-manual-2" / "node-1").exists()


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UsageError, match=r"needs the package tensorboard, .* 'adabench\[tensorboard\]'"):
        check_tensorboard()
