"""Trainers of other libraries train on the parameter server as with plain PyTorch, on one node and on two."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from adabench.backends.external._shared import is_installed
from adabench.harness.launch.fork_server import ForkServer
from tests.integration.autoada_ranks.trainers import REFUSED

from .pages import ROOT, finish, start

PACKAGES = {
    "accelerate_loop": ("accelerate",),
    "ignite_engine": ("ignite",),
    "lightning_module": ("lightning",),
    "skorch_net": ("skorch",),
    "transformers_trainer": ("transformers", "accelerate"),
}
"""Examples, and the libraries that their trainers need."""
INSTALLED = [name for name, packages in PACKAGES.items() if all(map(is_installed, packages))]
EXAMPLES = [
    pytest.param(
        name, marks=[] if name in INSTALLED else pytest.mark.skip("`make models` installs the library")
    )
    for name in PACKAGES
]
MODULE = "tests.integration.autoada_ranks.trainers"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, warm: ForkServer) -> dict[str, Any]:
    """What one process reports."""
    folder = tmp_path_factory.mktemp("trainers")
    finish(start(f"python -m {MODULE} {folder} {' '.join(INSTALLED)}", ROOT, {}, warm))
    return report(folder, "alone")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory, warm: ForkServer) -> list[dict[str, Any]]:
    """What each of two nodes under torchrun reports."""
    folder = tmp_path_factory.mktemp("trainers")
    launcher = "torchrun --standalone --nproc-per-node 2"
    finish(start(f"{launcher} -m {MODULE} {folder} {' '.join(INSTALLED)}", ROOT, {}, warm))
    return [report(folder, rank) for rank in ("0", "1")]


def report(folder: Path, place: str) -> dict[str, Any]:
    messages = (folder / f"{place}.log").read_text().splitlines()
    assert [message for message in messages if message.startswith("WARNING:autoada")] == []
    return dict(json.loads((folder / f"{place}.json").read_text()))


def distance(first: dict[str, Any], second: dict[str, Any]) -> float:
    """The largest difference between the weights of two trainings."""
    assert first["state"].keys() == second["state"].keys()
    pairs = [(first["state"][name], second["state"][name]) for name in first["state"]]
    return max(float(abs(a - b)) for one, two in pairs for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_trainer_on_one_node_trains_as_with_plain_pytorch(name: str, alone: dict[str, Any]) -> None:
    seen = alone[name]
    assert seen["wrapped"]["workers"] == 1
    assert distance(seen["wrapped"], seen["plain"]) < 1e-5
    assert (
        distance(seen["plain, double batches"], seen["plain"]) > 1e-3
    )  # other trainings are found to differ


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_trainer_on_two_nodes_trains_as_one_process_with_the_batches_together(
    name: str, alone: dict[str, Any], together: list[dict[str, Any]]
) -> None:
    for node in together:
        assert node[name]["workers"] == 2
        assert distance(node[name], alone[name]["plain, double batches"]) < 1e-4


@pytest.mark.parametrize("name", [each for each in EXAMPLES if each.values[0] in REFUSED])
def test_a_trainer_that_adds_distributed_data_parallel_is_refused(
    name: str, together: list[dict[str, Any]]
) -> None:
    for node in together:
        assert "without DataParallel or DistributedDataParallel" in node[name]["refused"]


def test_every_example_of_a_trainer_says_how_to_run_it_and_is_on_the_page() -> None:
    page = (ROOT / "docs" / "guides" / "trainers.md").read_text(encoding="utf-8")
    folder = ROOT / "examples" / "trainers"
    assert {file.stem for file in folder.glob("*.py")} == {*PACKAGES, "clicks"}
    for name in PACKAGES:
        text = (folder / f"{name}.py").read_text(encoding="utf-8")
        assert f"    python examples/trainers/{name}.py\n" in text
        assert f"    torchrun --nproc-per-node 2 examples/trainers/{name}.py\n" in text
        assert f"(../../examples/trainers/{name}.py)" in page
    assert re.search(r"make models", page)
