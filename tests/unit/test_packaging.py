"""How the folders become packages: one name each, everything pinned, nothing else in a wheel."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import adabench
from tests.conftest import Python

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["analysis", "backends", "harness", "results", "usecases"]


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_of_the_repository_is_no_package(folder: str) -> None:
    process = run_python(f"import {folder}")
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1] == (
        f"ImportError: this folder is the package 'adabench.{folder}', not '{folder}': "
        "install the project and import that"
    )


@pytest.mark.parametrize("first", ["", "import autoada; "])
def test_autoada_has_one_name_only(first: str, python: Python) -> None:
    code = first + "import adabench.backends.autoada"
    process = python("-c", code) if first else run_python(code)  # the former has imported autoada before
    assert process.returncode == 1
    assert "ImportError: this folder is the package 'autoada'" in process.stderr.splitlines()[-1]


def test_version_is_the_distributions() -> None:
    assert adabench.__version__ == version("adabench")


def test_the_changelog_has_an_entry_per_version_with_its_date() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^## \[(.*?)\](?: - (.*))?$", changelog, re.MULTILINE))
    assert entries.pop("Unreleased", "") == ""
    released = [Version(one) for one in entries]
    assert released == sorted(released, reverse=True)
    assert all(date.fromisoformat(day) for day in entries.values())
    declared = Version(project["project"]["version"])
    assert declared > released[0] if declared.is_devrelease else declared == released[0]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_constraints_pin_every_dependency_once(python: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    pins: dict[str, str] = {}
    for pin in applicable((ROOT / "constraints.txt").read_text().splitlines(), python):
        (specifier,) = pin.specifier
        name = canonicalize_name(pin.name)
        assert specifier.operator == "=="
        assert name not in pins, f"{name} is pinned twice for Python {python}"
        pins[name] = specifier.version
    for requirement in applicable(wanted, python):
        pinned = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pinned), f"{requirement} is pinned to {pinned}"


@pytest.mark.parametrize("file", ["CMakeLists.txt", "CMakePresets.json", "pyproject.toml"])
def test_builds_run_on_the_oldest_processor(file: str) -> None:
    """Kernels for newer processors are chosen when the program runs, in csrc/core/store/step_kernels.cc."""
    assert re.findall(r"-m(?:arch|cpu|tune|avx|fma|sse)\S*", (ROOT / file).read_text(encoding="utf-8")) == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip wheel .` makes, reusing the objects of the installed build."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", "-qq", *options, "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    (file,) = folder.glob("*.whl")
    return file


def test_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"adabench", "adaps", "autoada"}
    packages = {name.split("/")[1] for name in names if name.startswith("adabench/")}
    assert packages == {*FOLDERS, "__init__.py"}
    for sources, package in [
        *((folder, f"adabench/{folder}") for folder in FOLDERS),
        ("backends/adaps", "adaps"),
        ("backends/autoada", "autoada"),
    ]:
        needed = (
            file for kind in ("py", "toml", "css", "in") for file in (ROOT / sources).rglob(f"*.{kind}")
        )
        for source in needed:
            in_repository = source.relative_to(ROOT).as_posix()
            excluded = ("backends/adaps/", "backends/autoada/", "results/reference/", "results/sessions/")
            if sources in FOLDERS and in_repository.startswith(excluded):
                continue
            assert f"{package}/{source.relative_to(ROOT / sources).as_posix()}" in names
    unwanted = (
        "adabench/backends/adaps/",
        "adabench/backends/autoada/",
        "adabench/results/reference/",
        "adabench/results/sessions/",
    )
    assert [name for name in names if name.startswith(unwanted)] == []


def test_the_wheel_runs_away_from_the_clone(wheel: Path, tmp_path: Path) -> None:
    """Runs in a separate environment with the dependencies that are installed here."""
    environment, away = tmp_path / "environment", tmp_path / "away"
    away.mkdir()
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    options = ["--no-deps", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", f"--python={python}", "install", "-qq", *options, str(wheel)]
    subprocess.run(command, check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    # After the wheel's own packages; and .pth files of that folder, such as the clone's, are not read.
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('platlib')}\n")

    def call(*arguments: str | Path) -> str:
        process = subprocess.run(
            arguments,
            cwd=away,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    places = "import adabench.harness, adabench.usecases.gcn._sampler as s, adaps._core as c, autoada\n"
    said = call(
        python, "-c", places + "for m in (adabench, adabench.harness, autoada, c, s): print(m.__file__)"
    )
    assert [file for file in said.splitlines() if not Path(file).is_relative_to(site)] == []
    program = environment / "bin" / "adabench"
    study = ["-u", "ctr[rows=2000,epochs=1]", "-b", "autoada-automatic", "--nodes", "2", "-r", "1"]
    assert "session: adabench-results/" in call(program, "run", *study)
    (records,) = away.glob("adabench-results/*/runs.jsonl")
    (run,) = map(json.loads, records.read_text().splitlines())
    assert run["status"] == "ok"
    assert (run["nodes"], run["usecase"]) == (2, "ctr")


def applicable(lines: list[str], python: str) -> list[Requirement]:
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return [r for r in requirements if r.marker is None or r.marker.evaluate({"python_version": python})]
