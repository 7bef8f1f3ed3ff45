from pathlib import Path

import pytest

from adabench.harness.errors import UsageError
from adabench.harness.session.plan_text import too_short
from adabench.harness.study import plan
from adabench.harness.study.study import built_in_studies, load_study, parse_target

GOOD = """
usecases = ["ctr[dim=8]"]
backends = ["prefetch", "single"]
nodes = [1, 2]
repeats = 4
timeout = "5m"
data = "criteo"
[params.ctr]
dim = 16
epochs = [1, 2]
[options.prefetch]
lookahead = 10
[targets.ctr]
auc = 0.74
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "study.toml"
    file.write_text(text)
    return file


def test_a_study_file_over_defaults(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, GOOD), "study", {})
    # Values in the selection take precedence over the table.
    assert study.usecases[0].values == {"dim": ["8"], "epochs": [1, 2]}
    assert study.backends[0].values == {"lookahead": [10]}
    assert [(one.nodes, one.workers) for one in study.settings] == [(1, 1), (2, 1)]
    assert (study.repeats, study.timeout) == (4, 300)
    assert study.data == {"ctr": str((tmp_path / "criteo").resolve())}
    assert study.targets == {"ctr": {"auc": 0.74}}


def test_the_command_line_over_a_study_file(tmp_path: Path) -> None:
    overrides = {
        "backends": "prefetch,manual",
        "nodes": "3",
        "repeats": "7",
        "network": "lan",
        "data": "here",
    }
    study = load_study(write(tmp_path, GOOD), "study", overrides)
    assert [selected.name for selected in study.backends] == ["prefetch", "manual"]
    assert [(one.nodes, one.network) for one in study.settings] == [(3, "lan")]
    assert study.repeats == 7
    assert study.data == {"ctr": str(Path("here").resolve())}


NAMES = [f"u{number}" for number in range(50_000)]
MANY = list(range(1, 201))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("usecases = [", "is not TOML"),
        ('usecase = ["ctr"]', "unknown key 'usecase': did you mean 'usecases'"),
        ("usecases = []", "usecases: at least one name is needed"),
        ("usecases = [3]", "usecases: 3 is not a text"),
        ('usecases = ["ctr"]\nbackends = ["prefetch[lookahead"]', "backends: the brackets of"),
        ('usecases = ["ctr"]\nnodes = 0', "nodes: 0 is too small"),
        ('usecases = ["ctr"]\nnodes = [1, -2]', "nodes: -2 is too small"),
        ('usecases = ["ctr"]\nrepeats = "often"', "repeats: 'often' is not a whole number"),
        ('usecases = ["ctr"]\nrepeats = 1.5', "repeats: 1.5 is not a whole number"),
        ('usecases = ["ctr"]\nworkers = []', "workers: at least one value is needed"),
        ('usecases = ["ctr"]\nnetwork = "wan"', "network: unknown network 'wan'"),
        ('usecases = ["ctr"]\ntimeout = "soon"', "timeout: 'soon' is not a duration"),
        ('usecases = ["ctr"]\nwarmup = "yes"', "warmup: 'yes' is neither true nor false"),
        ('usecases = ["ctr"]\ninterleaved = 1', "interleaved: 1 is neither true nor false"),
        ('usecases = ["ctr"]\nturn_steps = 8', "turn_steps: 8 is the length of a turn, but the runs"),
        ('usecases = ["ctr"]\nseed = -1', "seed: -1 is too small"),
        (
            'usecases = ["ctr"]\n[params.ctrr]\ndim = 3',
            "params: unknown name among usecases 'ctrr': did you mean 'ctr'",
        ),
        ('usecases = ["ctr"]\n[params.ctr]\ndim = []', "params: ctr.dim is an empty list"),
        ('usecases = ["ctr"]\nparams = 3', "params: 3 is not a table"),
        ('usecases = ["ctr"]\n[options]\nmanual = 3', "options: manual = 3 is not a table of parameters"),
        ('usecases = ["ctr"]\n[targets]\nctr = 3', "targets: ctr = 3 is not a table"),
        ('usecases = ["ctr"]\n[targets.ctr]\nauc = "high"', "targets: ctr.auc = 'high' is not a number"),
        ('usecases = ["ctr"]\n[data]\ngcn = "x"', "data: unknown use case 'gcn'"),
        ('usecases = ["ctr", "ctr"]', "usecases: 'ctr' is listed twice"),
        pytest.param("usecases = " + 10_000 * "[", "is nested too deeply", id="nested"),
        pytest.param(f"usecases = {NAMES}", "at most 10000 names, and this one has 50000", id="names"),
        pytest.param(
            f"usecases = ['ctr']\nnodes = {MANY}\nworkers = {MANY}",
            "at most 10000 combinations, and this one has 40000",
            id="combinations",
        ),
        pytest.param("#" + 2**20 * "x", "is longer than 1 MiB", id="long"),
    ],
)
def test_a_broken_study_file_is_one_sentence_with_file_and_key(
    tmp_path: Path, text: str, message: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_study(file, "study", {})
    assert str(file) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_targets() -> None:
    assert parse_target("auc=0.74") == {"auc": 0.74}
    for text in ("auc", "auc=", "auc=high"):
        with pytest.raises(UsageError, match="is not of the form metric=value"):
            parse_target(text)


def test_every_study_of_the_project_is_sound() -> None:
    studies = built_in_studies()
    assert "default" in studies
    for name, file in studies.items():
        assert load_study(file, name, {}).name == name


MEASURES = {"predictions", "scale"}
"""Studies whose runs are compared with predictions or only simulated, and not compared with each other."""


def test_every_study_of_the_project_can_reach_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Neither the data nor the policies that are built from them change the number of cells.
    monkeypatch.setattr(plan, "_resolved", lambda cells, seed: cells)
    studies = built_in_studies()
    for name in sorted(set(studies) - MEASURES):
        study = load_study(studies[name], name, {})
        cells = plan.cells_of(study)
        study = plan.with_repeats(study, cells)
        assert too_short(plan.planned_runs(cells, study), study.repeats) is None, name
