"""The examples run as they are, on one node and on two under torchrun, with less data."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from adabench.harness.launch.fork_server import ForkServer
from adabench.results.store import list_sessions

from .pages import ROOT, finish, start

EXAMPLES = ROOT / "examples"
SMALL = {
    "recommender": ["--samples", "6000", "--categories", "100", "--epochs", "1"],
    "graph": ["--nodes", "600", "--epochs", "2"],
    "server": ["--ratings", "4000", "--epochs", "2"],
    "raw_ids": ["--samples", "2000", "--epochs", "2"],
}


@pytest.mark.parametrize("name", SMALL)
def test_example_on_one_node(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *SMALL[name]])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert len(re.findall(r"epoch \d: (?:loss|error) \d", said)) == int(SMALL[name][-1]), said


def test_examples_on_two_nodes(tmp_path: Path, warm: ForkServer) -> None:
    """In one pair of processes, which import torch once."""
    calls = [f"run({str(EXAMPLES / name)!r} + '.py', {arguments!r})" for name, arguments in SMALL.items()]
    (tmp_path / "all.py").write_text(
        "import runpy, sys\n\n\ndef run(file, arguments):\n    sys.argv = [file, *arguments]\n"
        "    runpy.run_path(file, run_name='__main__')\n\n\n" + "\n".join(calls) + "\n"
    )
    said = finish(start("torchrun --standalone --nproc-per-node 2 all.py", tmp_path, {}, warm))
    assert len(re.findall(r"AUC 0\.\d", said)) == 1
    assert len(re.findall(r"accuracy \d\.\d", said)) == 2
    assert len(re.findall(r"epoch \d: loss \d\.\d+, \d+ ids so far", said)) == 2
    assert len(re.findall(r"node [01], epoch 2: error \d", said)) == 2
    assert len(re.findall(r"node [01]: \d+\.\d% of the rows were local", said)) == 2


def test_a_study_from_python(tmp_path: Path, warm: ForkServer) -> None:
    file = EXAMPLES / "study.py"
    said = finish(start(f"python {file} --results sessions --rows 2000 --repeats 1", tmp_path, {}, warm))
    assert "2 cells, 1 block, 2 runs" in said
    assert re.search(
        r"^autoada-automatic over prefetch: \d\.\d{3} \[nan, nan\], too few runs$", said, re.MULTILINE
    )
    (store,) = list_sessions(tmp_path / "sessions")
    assert {run.status for run in store.runs()} == {"ok"}
    assert (store.folder / "figures" / "ctr.svg").is_file()


def test_every_example_says_how_to_run_it() -> None:
    files = sorted(EXAMPLES.glob("*.py"))
    assert [file.stem for file in files] == ["graph", "raw_ids", "recommender", "server", "study"]
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert f"python examples/{file.name}" in text
        assert (f"torchrun --nproc-per-node 2 examples/{file.name}\n" in text) == (file.stem in SMALL)
