"""The page of several hosts gives options that exist, and its scripts are scripts."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import typer

from adabench.harness.cli.main import app

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "hosts.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Every ``adabench …`` that a block of the page starts."""
    blocks = re.findall(r"^ *```(?:console|bash|yaml|python)\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    found = re.findall(r"adabench (run [^'\"\n]*)", "\n".join(blocks))
    return [shlex.split(line) for line in found]


def test_every_command_is_one_of_this_version() -> None:
    assert len(commands()) >= 4
    group: Any = typer.main.get_command(app)
    for name, *arguments in commands():
        with group.commands[name].make_context(name, list(arguments)) as context:
            assert context.params["launcher"] == "torchrun"
            assert context.params["study"] == Path("study.toml")


def test_every_script_is_one() -> None:
    scripts = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, "")
        for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "ADAPS_SECRET_FILE"):
            assert f"{name}=" in script
