import json
import os
import signal
from collections import Counter
from pathlib import Path

import msgspec
import psutil
import pytest

from adabench.harness.launch import fork_server
from adabench.harness.launch.fork_server import ForkServer, ForkServerError
from adabench.harness.launch.local import launch_unrecorded
from adabench.harness.plugins.registry import load_usecase, modules, names
from adabench.harness.run.spec import RunSpec
from tests.records import make_cell

GROUP = "adabench.harness.launch.process_group:run_group"


def spec(nodes: int = 2) -> RunSpec:
    params = msgspec.to_builtins(msgspec.convert({"rows": 2048, "epochs": 1}, load_usecase("ctr").Params))
    return make_cell(RunSpec, params=params, nodes=nodes)


def test_nothing_of_ours_starts_a_thread_when_it_is_imported_so_every_run_may_be_a_fork() -> None:
    ours = modules("usecase", names("usecase")) + [
        module for module in modules("backend", names("backend")) if not module.endswith(".torchrec")
    ]
    with ForkServer(ours) as server:
        server.start()


def test_a_module_that_starts_a_thread_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "starts_a_thread.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(fork_server, "MODULES", ())  # these are imported well
    with ForkServer(["starts_a_thread"]) as server:
        with pytest.raises(ForkServerError, match=r"cannot be started: one of .*starts_a_thread starts"):
            server.start()
        with pytest.raises(ForkServerError, match="is gone"):
            server.fork(GROUP, ["spec.json"], {}, 1, 2)
    with (
        ForkServer(["no_such_module"]) as server,
        pytest.raises(ForkServerError, match=r"cannot be started: ModuleNotFoundError: .*no_such_module"),
    ):
        server.start()


def test_a_server_that_was_killed_is_started_again_and_its_groups_have_ended(tmp_path: Path) -> None:
    before = psutil.Process().children()
    with ForkServer() as server:
        first = launch_unrecorded(server, spec(), 600)
        (process,) = set(psutil.Process().children()) - set(before)
        process.kill()
        process.wait()
        second = launch_unrecorded(server, spec(), 600)
    assert (first.status, second.status) == ("ok", "ok"), (first.reason, second.reason)
    assert psutil.Process().children() == before


def said_by_ranks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, report: str, runs: int, environment: dict[str, str | None]
) -> str:
    """The output of both ranks of each run, which call the function in `report` instead of training."""
    replaced = (
        "import adabench.harness.run.training_loop\nadabench.harness.run.training_loop.train_rank = report\n"
    )
    (folder / "reports.py").write_text(report + replaced)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    file, out = folder / "spec.json", folder / "out"
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(spec(), folder=str(folder))))
    with ForkServer(["reports"]) as server, out.open("ab") as output:
        server.start()
        for _ in range(runs):
            group = server.fork(GROUP, [str(file)], environment, output.fileno(), output.fileno())
            assert group.wait(600) == 0
            assert group.end() == 0
    return out.read_text()


LIKE_NEW = """
import json, os, random, signal, sys, tempfile, time, numpy
def report(file):
    names = ('GIVEN', 'OTHER', 'RANK', 'WORLD_SIZE', 'MALLOC_TRIM_THRESHOLD_', 'MALLOC_MMAP_THRESHOLD_')
    said = {name: os.environ.get(name) for name in names}
    said |= {'tmp': tempfile.gettempdir(), 'cpu': time.process_time(), 'in': sys.stdin.read()}
    said |= {'random': random.random(), 'numpy': float(numpy.random.rand())}
    said |= {'children': signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL}
    print(json.dumps(said))
    return 0
"""


def test_ranks_are_like_new_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the imports is new: random states, memory accounting, folder, output, the user's variables."""
    monkeypatch.setenv("GIVEN", "before")
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    environment = {"GIVEN": None, "OTHER": "other", "TMPDIR": str(tmp_path)}
    lines = said_by_ranks(tmp_path, monkeypatch, LIKE_NEW, 2, environment).splitlines()
    said = [json.loads(line) for line in lines]
    assert sorted(one["RANK"] for one in said) == ["0", "0", "1", "1"]
    assert all(one["GIVEN"] is None and one["OTHER"] == "other" and one["in"] == "" for one in said)
    assert all(one["WORLD_SIZE"] == "2" and one["tmp"] == str(tmp_path) for one in said)
    assert {one["MALLOC_TRIM_THRESHOLD_"] for one in said} == {"131072"}
    assert {one["MALLOC_MMAP_THRESHOLD_"] for one in said} == {"33554432"}
    assert all(one["children"] and one["cpu"] < 1.0 for one in said)
    assert len({one["random"] for one in said}) == len({one["numpy"] for one in said}) == 4


TALKING = """
import sys
def report(file):
    for _ in range(2000):
        print('said ' * 5)
        print('warned ' * 5, file=sys.stderr)
    print('the last', end='')
    return 0
"""


def test_ranks_write_whole_lines_to_the_file_that_they_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = said_by_ranks(tmp_path, monkeypatch, TALKING, 1, {})
    assert said.count("the last") == 2
    lines = said.replace("the last", "").splitlines()  # it has no end, so that anything may follow it
    assert Counter(lines) == {"said " * 5: 4000, "warned " * 5: 4000}


def test_a_group_that_is_killed_has_a_signals_exit_code(tmp_path: Path, warm: ForkServer) -> None:
    file = tmp_path / "spec.json"
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(spec(), folder=str(tmp_path))))
    with (tmp_path / "out").open("ab") as output:
        group = warm.fork(GROUP, [str(file)], {}, output.fileno(), output.fileno())
        os.kill(group.pid, signal.SIGKILL)
        assert group.wait(600) == -signal.SIGKILL
        assert group.end() == -signal.SIGKILL
