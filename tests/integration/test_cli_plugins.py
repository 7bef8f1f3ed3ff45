"""A stranger's plugins; those that are scaffolded are in test_tutorials.py."""

from __future__ import annotations

from typing import Any


def test_broken_plugins_are_found_out(adabench: Any) -> None:
    done = adabench("check", "usecase", "fake-line")
    assert done.returncode == 1
    assert "FAILED keys() names the rows that the loss reads" in done.stdout
    assert "Traceback" not in done.stderr
