"""The request for a job, and the messages where no job is possible."""

import io
import socket
import sys
from pathlib import Path

import pytest
from rich.console import Console

from adabench.harness.errors import UsageError
from adabench.harness.launch import slurm
from adabench.harness.launch.launcher import LauncherOptions
from adabench.harness.launch.local import Local
from adabench.harness.launch.slurm import JobRequest, Slurm
from adabench.harness.session.execute import run_session
from adabench.harness.session.resume_options import ResumeOptions
from adabench.harness.study.study import load_study


def test_a_request_is_read_as_it_is_written() -> None:
    read = JobRequest.read(["hosts=2,time=90s,exclude=a[1-3],b,mem_per_cpu=2G", "exclusive"])
    assert (read.cluster, read.hosts, read.minutes) == ("slurm", 2, 2)
    assert read.options == {"exclude": "a[1-3],b", "mem-per-cpu": "2G", "exclusive": True}
    assert read.folder == Path.cwd() / "adabench-jobs"
    nothing = JobRequest.read([])
    assert (nothing.hosts, nothing.minutes, nothing.options) == (None, None, {})
    assert JobRequest.read(["folder=~/jobs"]).folder == Path.home() / "jobs"


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["hosts=0"], "--job hosts=0 is not a number of hosts: give one from 1 to 1024"),
        (["hosts=two"], "--job hosts=two is not a number of hosts"),
        (["time=soon"], "--job time: 'soon' is not a duration"),
        (["partition=a", "partition=b"], "--job partition is given twice"),
        (["partition="], "--job 'partition=' is not of the form key=value"),
        (["=short"], "--job '=short' is not of the form key=value"),
        (["comment=a\n#SBATCH --uid=0"], "is not of the form key=value"),
        (["nodes=2"], "--job nodes is set by the launcher: use hosts=N"),
        (["cluster=pbs"], "--job cluster=pbs: valid are slurm, and local"),
        (["cluster=local,qos=high"], "--job qos is an option of sbatch, which cluster=local does without"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(texts: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        JobRequest.read(texts)
    assert sentence in str(refused.value)


def test_what_is_missing_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--job hosts=2 is for a scheduler, which --launcher local does not"):
        Local(LauncherOptions(job=["hosts=2"]))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UsageError, match="needs Slurm's sbatch and srun and squeue and scancel, not found on PATH: "
    ):
        Slurm(LauncherOptions("lo"))
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UsageError, match=r"needs the package submitit, .* pip install 'adabench\[slurm\]'"):
        Slurm(LauncherOptions("lo", job=["cluster=local"]))


def test_a_name_that_only_this_host_understands_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADAPS_LISTEN", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    with pytest.raises(UsageError, match=r"this host's name, localhost, is no address .*: --listen names"):
        slurm._where(None, "slurm")
    assert slurm._where(None, "local") == ("127.0.0.1", "the job runs on this machine only")
    monkeypatch.setenv("ADAPS_LISTEN", "lo")
    assert slurm._where(None, "slurm") == ("127.0.0.1", "set by ADAPS_LISTEN")


def test_a_study_that_a_job_cannot_run_asks_for_none(tmp_path: Path) -> None:
    study = load_study(
        None, "s", {"usecases": "ctr[rows=2000]", "backends": "manual", "repeats": "1", "interleaved": True}
    )
    with (
        Slurm(LauncherOptions(job=["cluster=local", f"folder={tmp_path / 'jobs'}"])) as launcher,
        pytest.raises(UsageError, match="leave it out with --launcher slurm"),
    ):
        run_session(study, tmp_path, ResumeOptions(), Console(file=io.StringIO()), launcher)
    assert not (tmp_path / "jobs").exists()
