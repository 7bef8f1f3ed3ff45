"""The command as a separate process, with third-party plugins; test_tutorials.py tests scaffolded ones."""

from typing import Any


def test_broken_plugins_are_found_out(adabench: Any) -> None:
    done = adabench("check", "usecase", "fake-line")
    assert done.returncode == 1
    assert "FAILED keys() names the rows that the loss reads" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_mistake_ends_with_two_and_no_traceback(adabench: Any) -> None:
    done = adabench("run", "-u", "fake-line", "-b", "single", "--nodes", "0")
    assert done.returncode == 2
    assert done.stderr == "error: option nodes: 0 is too small: it has to be at least 1\n"


def test_help_shows_brackets_as_they_are_written(adabench: Any) -> None:
    assert "ctr[dim=8,16]" in adabench("run", "--help").stdout
