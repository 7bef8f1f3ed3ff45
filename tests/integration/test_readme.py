"""What the README shows can be run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from adabench.harness import registry

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
PROGRAMS = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "import " in block]

# What the examples take for granted: a model whose output is the loss, and a loader.
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


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.split()[1])
def test_example_runs(program: str, tmp_path: Path) -> None:
    for _ in range(2 if "restore(" in program else 1):  # the second time there is something to restore
        process = subprocess.run(
            [sys.executable, "-W", "error", "-c", GIVEN + program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr


def test_examples_are_found() -> None:
    assert [program.split()[1] for program in PROGRAMS] == ["autoada", "adaps", "pathlib"]


def test_strategies_of_the_table_are_the_backends() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE)) == set(registry.names("backend"))
