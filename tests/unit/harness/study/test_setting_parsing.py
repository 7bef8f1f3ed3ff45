"""A run setting is declared once and is there everywhere: studies, command line, plan, processes, record."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main

from adabench.harness.cli.main import app
from adabench.harness.cli.options import study_from
from adabench.harness.errors import UsageError
from adabench.harness.run.spec import RunSpec
from adabench.harness.session.plan_text import plan_text
from adabench.harness.study.plan import cells_of, planned_runs
from adabench.harness.study.setting_parsing import SETTINGS
from adabench.harness.study.study import load_study
from adabench.results.record import PlannedRun, Run
from adabench.results.run_settings import RunSettings
from tests.records import make_run

# Field -> a value that is not the default, as the command line and as a study file write it, and as it is.
EXAMPLES: dict[str, tuple[list[str], str, Any]] = {
    "nodes": (["--nodes", "3"], "nodes = [3]", 3),
    "workers": (["--workers", "2"], "workers = 2", 2),
    "network": (["--network", "lan"], 'network = ["lan"]', "lan"),
    "pinned": (["--pinned"], "pinned = true", True),
    "interleaved": (["--interleaved"], "interleaved = true", True),
    "turn_steps": (["--interleaved", "--turn-steps", "7"], "interleaved = true\nturn_steps = 7", 7),
    "node_percent": (["--node-percent", "75"], "node_percent = 75", 75),
    "last_node_percent": (["--last-node-percent", "25"], "last_node_percent = 25", 25),
}
ALONE = ("interleaved", "turn_steps")
"""Settings that a single run, such as one of `profile`, cannot have."""

TRAIN = ["-u", "ctr[rows=2000]", "-b", "manual", "-r", "1"]
STUDY = 'usecases = ["ctr[rows=2000]"]\nbackends = ["manual"]\nrepeats = 1\n'


def options_of(command: str) -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return {parameter.name: parameter for parameter in group.commands[command].params}


def test_every_field_has_an_example_here() -> None:
    assert tuple(EXAMPLES) == RunSettings.__struct_fields__ == tuple(SETTINGS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_is_in_studies_on_the_command_line_in_the_plan_and_recorded(
    name: str, tmp_path: Path, said: Any
) -> None:
    arguments, line, value = EXAMPLES[name]

    file = tmp_path / "s.toml"
    file.write_text(STUDY + line)
    study = load_study(file, "s", {})
    assert [getattr(one, name) for one in study.settings] == [value]

    for command in ("run", "plan", "profile"):
        options = options_of(command)
        assert (name in options) == (command != "profile" or name not in ALONE)
        assert name not in options or options[name].help == SETTINGS[name].about.help
    code, out, err = said("plan", *TRAIN, *arguments, "--results", str(tmp_path))
    assert (code, err) == (0, "")
    assert out.replace("ctr-", "").splitlines()[1:] == plan_text(study, tmp_path).splitlines()[1:]
    assert name in out or str(value) in out

    (cell,) = cells_of(study)
    (usual,) = cells_of(load_study(None, "s", {"usecases": "ctr[rows=2000]", "backends": "manual"}))
    assert cell.id != usual.id
    (planned,) = planned_runs([cell], study)
    run = make_run("manual", 0, **planned.settings())
    for one, kind in ((planned, PlannedRun), (run, Run)):
        recorded = msgspec.json.decode(msgspec.json.encode(one))
        assert recorded[name] == value
        assert getattr(msgspec.convert(recorded, kind), name) == value
    assert issubclass(RunSpec, RunSettings)


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_limits_are_told_where_it_is_given(name: str) -> None:
    setting = SETTINGS[name]
    wrong = {
        bool: {"maybe": "'maybe' is neither true nor false"},
        str: {"wan": "unknown network 'wan'"},
        int: {
            "x": "'x' is not a whole number",
            str(setting.least - 1): f"it has to be at least {setting.least}",
            str(setting.most + 1): f"it can be at most {setting.most}",
        },
    }
    for value, sentence in wrong[setting.kind].items():
        with pytest.raises(UsageError, match=f"^option {name}: .*{sentence}"):
            study_from(None, None, {"usecases": ["ctr"], name: value}, None)


def test_records_of_before_a_setting_are_read() -> None:
    older = msgspec.json.decode(msgspec.json.encode(make_run("manual", 0)))
    for name in ("pinned", "interleaved", "turn_steps", "node_percent", "last_node_percent"):
        del older[name]
    assert msgspec.convert(older, Run) == make_run("manual", 0)
