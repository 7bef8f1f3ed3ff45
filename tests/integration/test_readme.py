"""The code of the README runs exactly as it is written there."""

import os
import re
from pathlib import Path

import pytest

import autoada
from tests.conftest import Python, RunRanks

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "import " in block]

# The examples assume a model whose output is the loss, and a loader.
GIVEN = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Embedding(100, 4)

    def forward(self, ids):
        return self.rows(ids).square().mean()

model = Model()
loader = torch.utils.data.DataLoader(torch.arange(100), batch_size=10)
"""


LABELS = """
criterion = torch.nn.functional.mse_loss
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.arange(100), torch.tensor(0.0).expand(100)), batch_size=10
)
model = torch.nn.Sequential(model.rows, torch.nn.Linear(4, 1), torch.nn.Flatten(0))
"""
DOCSTRING = "\n".join(re.findall(r"^(?:>>>|\.\.\.) (.*)$", autoada.__doc__ or "", re.MULTILINE))


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.split()[1])
def test_example_runs(program: str, nodes: int, run_ranks: RunRanks) -> None:
    for process in run_ranks(GIVEN + program, nodes):
        assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("nodes", [1, 2])
def test_example_of_the_package_runs(nodes: int, run_ranks: RunRanks) -> None:
    assert "loss.backward()" in DOCSTRING
    processes = run_ranks(GIVEN + LABELS + DOCSTRING, nodes)
    for process in processes:
        assert process.returncode == 0, process.stderr
    told = "".join(process.stderr for process in processes)
    assert ("workers 0 and 1 begin with equal batches" in told) == (nodes == 2)


def test_the_first_example_trains_under_torchrun(tmp_path: Path, python: Python) -> None:
    script = tmp_path / "train.py"
    script.write_text(GIVEN + PROGRAMS[0])
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = python(*torchrun, str(script), folder=tmp_path, environment=environment)
    assert process.returncode == 0, process.stderr


def test_examples_are_found() -> None:
    assert [program.split()[1] for program in PROGRAMS] == ["autoada"]


def test_it_is_short() -> None:
    text = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    words = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text).translate(str.maketrans("|#*`", "    ")).split()
    assert 600 <= len([word for word in words if any(letter.isalnum() for letter in word)]) <= 800


def test_what_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) == 8  # three figures, and five pages to go on with
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []
    images = [link for link in links if link.endswith(".svg")]
    assert len(images) == 3
