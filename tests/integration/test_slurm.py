"""Sessions with the launcher `slurm` on a fake Slurm with two network namespaces, and without Slurm."""

import functools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adabench.harness.launch.fork_server import ForkServer
from adabench.results.record import Run
from adabench.results.store import list_sessions
from tests.events import scalars
from tests.warm import WarmProcess

from .conftest import logs_hold
from .faults import network
from .hosts.on_host import RUN_ON_HOST
from .hosts.study import GIVEN_UP, HANG, STUDY, assert_host_lost, comparable
from .slurm.cluster import Cluster


@pytest.fixture
def cluster(cable: network.Cable, warm: ForkServer, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(warm, tmp_path, list(cable.names.values())) as made:
        yield made
    cable.mend()


Submit = Callable[..., WarmProcess]


@pytest.fixture
def submit(
    cluster: Cluster,
    cable: network.Cable,
    warm: ForkServer,
    tmp_path: Path,
    plugin_environment: dict[str, str],
) -> Iterator[Submit]:
    """Start ``adabench run ARGUMENTS`` where jobs are submitted, without waiting for it."""
    started: list[WarmProcess] = []
    environment = {**plugin_environment, "PATH": cluster.path(), "TEST_NAMESPACE": cable.names["near"]}

    def call(*arguments: str) -> WarmProcess:
        words = ["run", *arguments, "--launcher", "slurm", "--listen", "cable"]
        started.append(WarmProcess(warm, words, environment, tmp_path, RUN_ON_HOST, merged=True))
        return started[-1]

    yield call
    for process in started:
        process.end()


def ended(process: WarmProcess) -> tuple[int, str]:
    said, _ = process.communicate(GIVEN_UP)
    return process.wait(), said


def runs(folder: Path) -> list[Run]:
    """The runs of the newest session."""
    return list_sessions(folder / "adabench-results")[-1].runs()


def test_a_study_is_the_same_here_and_as_a_job(
    cluster: Cluster, submit: Submit, cable: network.Cable, adabench: Any, tmp_path: Path
) -> None:
    (tmp_path / "small.toml").write_text(STUDY)
    assert adabench("run", "small.toml").returncode == 0
    alone = runs(tmp_path)
    code, said = ended(
        submit("small.toml", "--tensorboard", "--job", "time=90m,partition=short", "--job", "exclusive")
    )
    assert code == 0, said
    assert f"this process at {cable.addresses['near']} (cable): set by --listen" in said
    store = list_sessions(tmp_path / "adabench-results")[-1]
    together = store.runs()
    assert [comparable(run) for run in together] == [comparable(run) for run in alone]
    for one, other in zip(alone, together, strict=True):
        assert (one.launcher, one.hosts, other.launcher) == ("local", [], "slurm")
        assert [(host.nodes, host.interface, host.address) for host in other.hosts] == [
            ([rank], "cable", cable.addresses[end]) for rank, end in enumerate(cable.names)
        ]
        assert other.noise is not None
        assert other.noise.probe_seconds > 0
        if other.backend == "fake-gloo":  # its steps count those of all nodes, wherever they run
            assert other.metrics == one.metrics
        else:
            events = store.folder / "tensorboard" / f"ctr-manual-{other.run_id}"
            sent = [scalars(events / f"node-{rank}")["bytes_sent"][-1][1] for rank in range(2)]
            assert sum(sent) == pytest.approx(other.counters["bytes_sent"], rel=1e-6)

    (job,) = cluster.jobs
    wanted = {"nodes": "2", "ntasks-per-node": "1", "cpus-per-task": "1", "time": "90", "partition": "short"}
    assert wanted.items() <= job.options.items()
    assert {"exclusive", "no-requeue"} <= job.options.keys()
    assert "wckey" not in job.options
    # The secret is in a file that only the user can read, until the session ends, and nowhere else.
    assert (job.modes["."], job.modes["secret"], len(job.secret)) == (0o700, 0o600, 64)
    told = [job.script, said, *(word for words in cluster.commands for word in words)]
    logs = [file.read_text() for file in tmp_path.glob("adabench-results/*/logs/*")]
    assert not any(job.secret in text for text in [*told, *logs])
    assert not (tmp_path / "adabench-jobs").exists()


@pytest.mark.parametrize("how", ["killed", "cut off"])
def test_a_host_that_disappears_is_a_row_and_the_session_ends(
    cluster: Cluster, submit: Submit, cable: network.Cable, tmp_path: Path, wait_until: Any, how: str
) -> None:
    process = submit(*HANG)
    assert wait_until(lambda: logs_hold(tmp_path, "hanging"), GIVEN_UP)
    if how == "killed":
        os.kill(cluster.jobs[0].tasks[1], signal.SIGKILL)
    else:
        cable.cut()
    code, said = ended(process)
    assert code == 1
    assert f"the output of the job's hosts is in {tmp_path / 'adabench-jobs'}" in said
    (run,) = runs(tmp_path)
    assert_host_lost(run, said, cable.addresses["far"], how)
    (logs,) = (tmp_path / "adabench-jobs").iterdir()
    assert not (logs / "secret").exists()


def test_the_job_ends_with_the_process_that_submitted_it(
    cluster: Cluster, submit: Submit, tmp_path: Path, wait_until: Any, marked: Callable[[], list[int]]
) -> None:
    process = submit(*HANG)
    assert wait_until(lambda: logs_hold(tmp_path, "hanging"), GIVEN_UP)
    os.kill(process.pid, signal.SIGKILL)
    assert wait_until(lambda: cluster.jobs[0].state == "FAILED", GIVEN_UP)
    assert wait_until(lambda: not marked(), GIVEN_UP)


def test_what_is_stopped_and_what_takes_too_long_are_rows(
    cluster: Cluster, submit: Submit, tmp_path: Path, wait_until: Any
) -> None:
    code, said = ended(submit(*HANG, "--timeout", "4s"))
    assert code == 1, said
    assert [(run.status, run.reason) for run in runs(tmp_path)] == [("timeout", "killed after 4 s")]

    def hanging(number: int) -> bool:
        stores = list_sessions(tmp_path / "adabench-results")
        return len(stores) == number and any(
            "hanging" in log.read_text() for log in stores[-1].logs.iterdir()
        )

    for number, stop in enumerate(("Ctrl-C", "scancel", "the end of its time"), 2):
        process = submit(*HANG, "--fresh")
        assert wait_until(functools.partial(hanging, number), GIVEN_UP)
        if stop == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        elif stop == "scancel":
            cluster.cancel(cluster.jobs[-1])
        else:
            os.kill(cluster.jobs[-1].tasks[1], signal.SIGUSR2)
        code, said = ended(process)
        assert code == 130, said
        assert "interrupted: the same command continues" in said
        assert [(run.status, run.reason) for run in runs(tmp_path)] == [
            ("interrupted", "stopped by the user")
        ]
    assert not (tmp_path / "adabench-jobs").exists()


def test_a_job_that_does_not_begin_is_a_sentence(
    cluster: Cluster, submit: Submit, tmp_path: Path, wait_until: Any
) -> None:
    given = ("-u", "fake-line", "-b", "fake-gloo", "--nodes", "2", "-r", "1")
    code, said = ended(submit(*given, "--job", "partition=nowhere"))
    assert code == 1
    assert "error: the job was not accepted: sbatch: error: invalid partition specified: nowhere" in said

    cluster.broken = True
    code, said = ended(submit(*given))
    assert code == 1
    assert "of job 4200 ended before it had connected: no space left on this host" in said

    cluster.broken, cluster.full = False, True
    for number, state in ((1, "CANCELLED"), (2, "unknown")):
        cluster.accounts = state != "unknown"
        process = submit(*given)
        assert wait_until(lambda number=number: len(cluster.jobs) == number + 1, GIVEN_UP)
        cluster.cancel(cluster.jobs[number])
        code, said = ended(process)
        assert code == 1
        reason = f"it has no output, and its state is {state}"
        assert f"of job 420{number} ended before it had connected: {reason}" in said

    for number, stop in ((4, signal.SIGINT), (5, signal.SIGHUP)):
        process = submit(*given)
        assert wait_until(lambda number=number: len(cluster.jobs) == number, GIVEN_UP)
        process.send_signal(stop)
        assert process.wait(GIVEN_UP) != 0
        assert cluster.jobs[-1].state == "CANCELLED"
    assert not list((tmp_path / "adabench-jobs").glob("*/secret"))
    assert not (tmp_path / "adabench-results").exists()


def test_submitits_local_executor_runs_it_on_this_machine(adabench: Any, tmp_path: Path) -> None:
    given = ("run", "-u", "fake-line", "-b", "fake-gloo", "--nodes", "2", "-r", "1")
    assert adabench(*given).returncode == 0
    done = adabench(*given, "--launcher", "slurm", "--job", "cluster=local,hosts=2")
    assert done.returncode == 0, done.stdout + done.stderr
    alone, together = (store.runs() for store in list_sessions(tmp_path / "adabench-results"))
    assert [comparable(run) for run in together] == [comparable(run) for run in alone]
    assert [run.metrics for run in together] == [run.metrics for run in alone]
    for run in together:
        assert run.launcher == "slurm"
        assert [(host.nodes, host.address) for host in run.hosts] == [([0], "127.0.0.1"), ([1], "127.0.0.1")]
    assert not (tmp_path / "adabench-jobs").exists()
