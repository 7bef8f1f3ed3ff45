"""The image that the Dockerfile describes trains a model. Where Docker does not run, the test is skipped."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def image() -> str:
    try:
        answers = docker("info").returncode == 0
    except OSError:
        answers = False
    if not answers:
        pytest.skip("Docker does not run here")
    build = docker("build", "--quiet", ".")
    assert build.returncode == 0, build.stderr
    return build.stdout.strip()


def test_the_image_trains_on_two_nodes(image: str) -> None:
    study = ["-u", "ctr[rows=2000,epochs=1]", "-b", "autoada-automatic", "--nodes", "2", "-r", "1"]
    done = docker("run", "--rm", image, "run", *study)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "block 1/1 ctr autoada-automatic: ok" in done.stdout + done.stderr
