"""A user's mistake: one clear sentence, exit code 2, no traceback, nothing recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from adabench.harness.cli.main import main

PLUGINS = Path(__file__).parent / "plugins"
RUN = ("run", "-u", "fake-line", "-b", "single")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "-u", "fake-lime"), "unknown use case 'fake-lime': did you mean 'fake-line'?"),
        (("run", "-u", "fake-line", "-b", "singel"), "unknown backend 'singel': did you mean 'single'?"),
        (
            ("run", "-b", "single"),
            "--backend alone does not say what to train: add --usecase, such as -u ctr",
        ),
        (("run", "--study", "defalt"), "unknown study 'defalt': did you mean 'default'?"),
        (("run", "absent.toml"), "there is no study file absent.toml"),
        (("run", "-u", "fake-line[epoch=1]", "-b", "single"), "did you mean 'epochs'?"),
        (
            ("run", "-u", "fake-line[dim=wide]", "-b", "single"),
            "parameter dim of use case 'fake-line' cannot be 'wide'",
        ),
        (("run", "-u", "fake-line[dim=8", "-b", "single"), "the brackets of 'fake-line[dim=8' do not match"),
        ((*RUN, "--nodes", "0"), "option nodes: 0 is too small: it has to be at least 1"),
        ((*RUN, "--nodes", "-2"), "option nodes: -2 is too small"),
        ((*RUN, "-r", "0"), "option repeats: 0 is too small"),
        ((*RUN, "-r", "-1"), "option repeats: -1 is too small"),
        ((*RUN, "--workers", "two"), "option workers: 'two' is not a whole number"),
        ((*RUN, "--turn-steps", "5"), "option turn_steps: 5 is the length of a turn, but the runs take none"),
        ((*RUN, "--interleaved", "--turn-steps", "-1"), "option turn_steps: -1 is too small"),
        ((*RUN, "--network", "wan"), "option network: unknown network 'wan'"),
        ((*RUN, "--timeout", "soon"), "option timeout: 'soon' is not a duration"),
        ((*RUN, "--data", "nowhere"), "use case 'fake-line': there is no data file"),
        (
            (*RUN, "--target", "auc=0.7"),
            "target 'auc' of use case 'fake-line' is not the metric it is judged by: rmse",
        ),
        ((*RUN, "--target", "rmse"), "target 'rmse' is not of the form metric=value"),
        ((*RUN, "--results", "file"), "the results folder"),
        (("run", "-u", "ctr[rows=1000]", "-b", "manual", "--nodes", "8"), "use case 'ctr': "),
        (
            ("run", "-u", "ctr[rows=99999999999999999999]", "-b", "single"),
            "parameter rows of use case 'ctr' cannot be 99999999999999999999: it has more than 64 bits",
        ),
        (
            ("run", "-u", "ctr[rows=9223372036854775807]", "-b", "single"),
            "rows is 9223372036854775807: no more than",
        ),
        ((*RUN, "--nodes", "99999999999999999999"), "option nodes: 99999999999999999999 is too large"),
        ((*RUN, "-r", "1000000000"), "option repeats: 1000000000 is too large: it can be at most 10000"),
        ((*RUN, "--seed", "99999999999999999999"), "option seed: 99999999999999999999 is too large"),
        ((*RUN, "--timeout", "9" * 400 + "h"), "is not a duration"),
        ((*RUN, "--target", "rmse=nan"), "target 'rmse=nan' can never be told to be reached"),
        (
            ("run", "-u", "fake-line[note=\udcff]", "-b", "single"),
            r"b'fake-line[note=\xff]' is not UTF-8: records can only hold names that are",
        ),
        (("show", "\udce9"), r"b'\xe9' is not UTF-8"),
        (("list", "backend"), "unknown kind 'backend': did you mean 'backends'?"),
        (("show", "nothing"), "no session in adabench-results"),
        (("plot",), "no session in adabench-results"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    (tmp_path / "file").write_text("a file where a folder is expected")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(PLUGINS))
    monkeypatch.setattr(sys, "argv", ["adabench", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert sentence in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("runs.jsonl"))


def test_the_command_itself_ends_with_two_and_no_traceback(adabench: Any) -> None:
    done = adabench(*RUN, "--nodes", "0")
    assert done.returncode == 2
    assert done.stderr == "error: option nodes: 0 is too small: it has to be at least 1\n"


def test_help_shows_brackets_as_they_are_written(adabench: Any) -> None:
    assert "ctr[dim=8,16]" in adabench("run", "--help").stdout
