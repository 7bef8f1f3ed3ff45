"""A process that gets a part of a core: its control group, and where there can be none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adabench.harness.machine import quota
from adabench.harness.machine.quota import Quota, QuotaUnavailable


def made(cores: float) -> Quota:
    try:
        return Quota(cores)
    except QuotaUnavailable as error:
        pytest.skip(str(error))


def limit_of(folder: Path) -> float:
    """Cores, by either version's files."""
    if (folder / "cpu.max").exists():
        allowed, period = (folder / "cpu.max").read_text().split()
    else:
        allowed, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(allowed) / int(period)


@pytest.mark.parametrize("cores", [1.5, 0.25, 0.005])
def test_a_process_that_enters_is_limited_and_the_group_is_gone_at_the_end(cores: float) -> None:
    with made(cores) as group:
        assert limit_of(group.folder) == pytest.approx(cores, rel=0.01)
        program = f"from adabench.harness.machine.quota import enter; enter({str(group.folder)!r}); input()"
        child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True)
        inside = group.folder / "cgroup.procs"
        while str(child.pid) not in inside.read_text().split():
            assert child.poll() is None
        assert str(os.getpid()) not in inside.read_text().split()
        child.communicate("\n")
    assert not group.folder.exists()


def test_groups_of_processes_that_are_gone_are_removed() -> None:
    with made(0.5) as group:
        with subprocess.Popen([sys.executable, "-c", ""]) as ended:
            ended.wait()
        left = group.folder.with_name(f"adabench-{ended.pid}-0")
        left.mkdir()
        with made(0.5):
            assert not left.exists()
            assert group.folder.exists()


def test_where_there_are_no_control_groups_a_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "_ROOT", tmp_path)  # a folder like any other
    sentence = r"^a node with a part of a core needs root and .*cpu\.max: no such file"
    with pytest.raises(QuotaUnavailable, match=sentence):
        Quota(0.25)
    (tmp_path / "cpu").mkdir()
    with pytest.raises(QuotaUnavailable, match=r"cpu\.cfs_period_us: no such file or directory$"):
        Quota(0.25)
    assert [path.name for path in tmp_path.rglob("*")] == ["cpu"]
