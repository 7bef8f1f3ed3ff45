"""Several commands at the same time on one results folder."""

import socket
from pathlib import Path
from typing import Any

from adabench.results.store import list_sessions

from .conftest import logs_hold


def test_each_command_has_its_own_session_and_none_adds_to_another_s(
    start: Any, adabench: Any, tmp_path: Path, marked: Any, wait_until: Any
) -> None:
    unfinished = ("run", "-u", "fake-line[mishap=hang]", "-b", "single")
    holder = start(*unfinished, "-r", "1")
    assert wait_until(lambda: logs_hold(tmp_path, "hanging"), 240)
    (held,) = list_sessions(tmp_path / "adabench-results")
    before = held.session_file.read_bytes()

    together = ("run", "-u", "fake-line[epochs=1]", "-b", "fake-gloo", "--nodes", "2", "-r", "1", "--fresh")
    processes = [start(*together) for _ in range(2)]
    for repeats in ("1", "2"):
        refused = adabench(*unfinished, "-r", repeats)
        assert refused.returncode == 2
        assert refused.stdout == ""
        assert refused.stderr == (
            f"error: session {held.folder.name} is being run by process {holder.pid} on "
            f"{socket.gethostname()}: wait for it, or use --fresh\n"
        )
    assert held.session_file.read_bytes() == before
    assert [process.wait(400) for process in processes] == [0, 0]

    stores = [store for store in list_sessions(tmp_path / "adabench-results") if store.folder != held.folder]
    assert len(stores) == 2
    for store in stores:
        runs, session = store.runs(), store.session()
        assert [(run.cell, run.phase, run.block) for run in runs] == [planned.key for planned in session.plan]
        assert {(run.session, run.status) for run in runs} == {(store.folder.name, "ok")}
        assert {log.stem for log in store.logs.iterdir()} == {run.run_id for run in runs}
        for command in (("compare", store.folder.name, "--baseline", "fake-gloo"), ("show", runs[0].run_id)):
            assert adabench(*command).returncode == 0
    assert held.runs() == []
    listed = adabench("list", "sessions").stdout
    assert all(store.folder.name in listed for store in [held, *stores])
    holder.kill()
    holder.wait()
    assert wait_until(lambda: marked() == [], 240)
