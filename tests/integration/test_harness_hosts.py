"""Sessions of the launcher `torchrun` on two hosts, which are two network namespaces."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adabench.harness.launch.fork_server import ForkServer
from adabench.results.store import SessionStore, list_sessions
from tests.warm import WarmProcess

from .conftest import PLUGINS, logs_hold
from .faults import network
from .hosts.on_host import RUN_ON_HOST
from .hosts.study import GIVEN_UP, HANG, STUDY, assert_host_lost, comparable

SECRET = "lMe6iY1fC9Q0Vd3n"
ENDS = ("near", "far")


class Job:
    """The processes of one session, one at each end of the cable."""

    def __init__(
        self, cable: network.Cable, warm: ForkServer, folder: Path, environment: dict[str, str]
    ) -> None:
        self._cable, self._warm, self.folder = cable, warm, folder
        self._environment = {"ADAPS_SECRET": SECRET, "MASTER_ADDR": cable.addresses["near"], **environment}
        self.processes: list[WarmProcess] = []

    def start(self, *arguments: str, far: dict[str, str] | None = None) -> list[WarmProcess]:
        """`far` is added to the environment of rank 1."""
        for rank, end in enumerate(ENDS):
            own = {**self._environment, **(far or {} if rank else {})}
            folder = self.folder / end
            folder.mkdir(exist_ok=True)
            environment = {
                **{name: value for name, value in own.items() if value},
                **{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29400"},
                "TEST_NAMESPACE": self._cable.names[end],
            }
            self.processes.append(
                WarmProcess(
                    self._warm,
                    ["run", *arguments, "--launcher", "torchrun"],
                    environment,
                    folder,
                    RUN_ON_HOST,
                )
            )
        return self.processes

    def ends(self) -> list[tuple[int, str]]:
        """Exit code and output of both, without their figures' paths."""
        said = [process.communicate(GIVEN_UP) for process in self.processes]
        return [(process.wait(), out + err) for process, (out, err) in zip(self.processes, said, strict=True)]

    def session(self) -> SessionStore:
        (store,) = list_sessions(self.folder / "near" / "adabench-results")
        assert not (self.folder / "far" / "adabench-results").exists()
        return store


@pytest.fixture
def job(
    cable: network.Cable, warm: ForkServer, tmp_path: Path, plugin_environment: dict[str, str]
) -> Iterator[Job]:
    made = Job(cable, warm, tmp_path, plugin_environment)
    yield made
    cable.mend()
    for process in made.processes:
        process.end()


def test_a_study_is_the_same_here_and_on_two_hosts(job: Job, adabench: Any, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(STUDY)
    job.start(str(tmp_path / "small.toml"), "--listen", "cable")
    assert adabench("run", "small.toml").returncode == 0
    for end, (code, said) in zip(ENDS, job.ends(), strict=True):
        assert code == 0, said
        where = f"listens at {job._cable.addresses[end]} (cable): set by --listen"
        assert said.count(where) == 1
    (here,) = list_sessions(tmp_path / "adabench-results")
    alone, together = here.runs(), job.session().runs()
    assert [comparable(run) for run in together] == [comparable(run) for run in alone]
    for one, other in zip(alone, together, strict=True):
        assert (one.launcher, one.hosts) == ("local", [])
        assert other.launcher == "torchrun"
        assert [(host.nodes, host.interface, host.address) for host in other.hosts] == [
            ([rank], "cable", job._cable.addresses[end]) for rank, end in enumerate(ENDS)
        ]
        assert other.hosts[0].machine == job.session().session().machine
        assert other.cpu_seconds
        if other.backend == "fake-gloo":  # its steps count those of all nodes, wherever they run
            assert other.metrics == one.metrics
        else:
            assert set(other.tables) == set(one.tables)
            assert other.counters["bytes_sent"] > 0


def test_what_goes_wrong_elsewhere_is_recorded_with_what_was_said_there(job: Job) -> None:
    """Over IPv6, where the kernel has it."""
    if Path("/proc/net/if_inet6").exists():
        job._environment["MASTER_ADDR"] = job._cable.add_ipv6()["near"]
    job.start("-u", "fake-line[mishap=raise,orphan]", "-b", "fake-gloo", "--nodes", "2", "-r", "1")
    (code, _), (others, said) = job.ends()
    assert (code, others) == (1, 0), said
    runs = {run.params["mishap"]: run for run in job.session().runs()}
    assert runs["raise"].reason == "rank 1: RuntimeError: the second step went wrong"
    assert (runs["raise"].status, runs["raise"].failed_phase) == ("failed", "train")
    assert runs["orphan"].reason == "rank 1 was killed by SIGKILL"
    assert (runs["orphan"].signal, runs["orphan"].failed_rank) == ("SIGKILL", 1)
    log = (job.session().logs / f"{runs['raise'].run_id}.err").read_text()
    assert "rank 1 failed in phase train\nTraceback" in log


@pytest.mark.parametrize("how", ["killed", "cut off"])
def test_a_host_that_disappears_is_a_row_and_the_session_ends(job: Job, wait_until: Any, how: str) -> None:
    processes = job.start(*HANG)
    assert wait_until(lambda: logs_hold(job.folder / "near", "hanging"), GIVEN_UP)
    if how == "killed":
        os.kill(processes[1].pid, signal.SIGKILL)  # and no other: its own end with it
    else:
        job._cable.cut()
    (code, said), (others, theirs) = job.ends()
    assert code == 1
    (run,) = job.session().runs()
    assert_host_lost(run, said, job._cable.addresses["far"], how)
    if how == "cut off":
        assert others == 1
        assert "rank 0 is gone: no message arrived from it for 5 s" in theirs


def test_ctrl_c_on_either_host_ends_both_and_a_timeout_is_a_row(job: Job, wait_until: Any) -> None:
    processes = job.start(*HANG)
    assert wait_until(lambda: logs_hold(job.folder / "near", "hanging"), GIVEN_UP)
    processes[1].send_signal(signal.SIGINT)
    assert [code for code, _ in job.ends()] == [130, 130]
    (run,) = job.session().runs()
    assert (run.status, run.reason) == ("interrupted", "stopped by the user")

    job.processes.clear()
    job.start(*HANG, "--fresh", "--timeout", "4s")
    assert [code for code, _ in job.ends()] == [1, 0]
    timed_out = list_sessions(job.folder / "near" / "adabench-results")[-1].runs()
    assert [(run.status, run.reason) for run in timed_out] == [("timeout", "killed after 4 s")]


def test_another_build_on_one_host_is_a_sentence(job: Job, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in PLUGINS.iterdir():
        if file.is_file():
            (changed / file.name).write_bytes(file.read_bytes())
        else:
            (changed / file.name).symlink_to(file)
    with (changed / "adabench_fake.py").open("a") as source:
        source.write("# another build\n")
    paths = os.environ.get("PYTHONPATH", "")
    job.start(
        *("-u", "fake-line", "-b", "fake-gloo", "--nodes", "2", "-r", "1"),
        far={"PYTHONPATH": os.pathsep.join([str(changed), *filter(None, [paths])])},
    )
    (code, said), (others, theirs) = job.ends()
    far = job._cable.addresses["far"]
    assert code == 2
    assert f"error: rank 1 ({far}) has other sources of fake-line · fake-gloo than rank 0" in said
    assert others == 1
    assert f"error: rank 0 has ended: rank 1 ({far}) has other sources" in theirs


def test_hosts_without_a_secret_are_told_how_to_make_one(job: Job) -> None:
    job._environment["ADAPS_SECRET"] = ""
    job.start("-u", "fake-line", "-b", "fake-gloo", "--nodes", "2", "-r", "1")
    for code, said in job.ends():
        assert code == 1
        assert "rank 1 of 2 nodes is on another host than rank 0" in said
        assert "head -c 32 /dev/urandom | base64" in said
