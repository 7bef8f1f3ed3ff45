"""How long runs will take: by their own cell's, or by the simulator and other recorded runs."""

import io
import itertools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from adabench.harness.cli.options import study_from
from adabench.harness.errors import UsageError
from adabench.harness.estimate import predict
from adabench.harness.estimate.predict import Predictor, Records, physics_of, reference
from adabench.harness.estimate.recorded import Expected, recorded_seconds
from adabench.harness.session.plan_text import plan_text
from adabench.harness.session.progress import SessionProgress
from adabench.harness.study.plan import cells_of, planned_runs
from adabench.results.record import POLICY_LEFT_OUT, Noise, Run, Seconds
from adabench.results.store import SessionStore
from adaps.policy import Policy
from tests.lines import fits_lines
from tests.records import ended, make_run, make_session, plan_of

SMALL = {"rows": 1000, "vocabulary": 50, "dim": 4, "hidden": [8]}
SECONDS_PER_STEP, AROUND = 0.02, 4.0
BATCHES, EPOCHS, BLOCKS = (16, 32, 64, 128), (40, 50, 80), 3
MACHINE = {"cpu": "c", "cores": {"usable": 2}}
CELLS = len(BATCHES) * len(EPOCHS)


def run_of(batch: int, epochs: int, backend: str = "single", block: int = 0, **fields: Any) -> Run:
    """A run with a given time per step, which grows slightly with each block."""
    steps = epochs * (700 // batch)
    train = SECONDS_PER_STEP * steps * (1 + 0.01 * (block - 1))
    made = {
        "run_id": f"{backend}-{batch}-{epochs}-{block}",
        "cell": f"{backend}-{batch}-{epochs}",
        "params": {**SMALL, "batch": batch, "epochs": epochs},
        "seconds": Seconds(train=train, total=AROUND + train),
        "noise": Noise(load1=0.0, probe_seconds=0.004),
    }
    return make_run(backend, block, **{**made, **fields})


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results with twelve cells, and no others: batches of 16 to 128, 40, 50 or 80 epochs."""
    monkeypatch.setattr(predict, "reference", list)
    monkeypatch.setattr(predict, "capture", lambda: MACHINE)
    monkeypatch.setattr(predict, "probe", lambda: (0.0, 0.004))
    fits_lines(monkeypatch)
    root = tmp_path / "results"
    store = SessionStore(root / "s")
    store.create(make_session("s", environment=MACHINE))
    for batch, epochs, block in itertools.product(BATCHES, EPOCHS, range(BLOCKS)):
        store.append(run_of(batch, epochs, block=block))
    return root


def test_physics_is_what_is_known_before_anything_is_measured() -> None:
    alone = physics_of(run_of(64, 1), None, cores=2)
    assert (alone.steps, alone.kilobytes) == (11, 0)
    assert alone.seconds == alone.compute
    there = physics_of(run_of(64, 1, "manual", nodes=2, network="lan"), None, cores=2)
    assert there.steps == 5
    assert there.keys <= 64 * 26
    assert there.seconds > there.compute
    assert there.kilobytes > 0
    crowded = physics_of(run_of(64, 1, "manual", nodes=2, network="lan"), None, cores=1)
    assert crowded.seconds > 1.5 * there.seconds


def test_removed_options_do_not_change_physics() -> None:
    run = run_of(64, 1, "manual", nodes=2, network="lan")
    older = msgspec.structs.replace(run, params={**run.params, "gone": 1})
    assert physics_of(older, None, cores=2) == physics_of(run, None, cores=2)


def test_a_cell_that_is_not_recorded_is_predicted_by_others(recorded: Path) -> None:
    records = Records.read([recorded], recorded)
    assert (len(records.cells), len(set(records.cells)), records.left_out) == (CELLS * BLOCKS, CELLS, {})
    (found,) = Predictor(records, recorded).expected([run_of(48, 60)], {})
    assert found.seconds == pytest.approx(AROUND + SECONDS_PER_STEP * 60 * 14, rel=0.25)
    assert found.low < found.seconds < found.high
    assert found.runs == CELLS * BLOCKS


def test_what_is_unlike_all_recorded_runs_is_told(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "capture", lambda: {**MACHINE, "cpu": "another"})
    predictor = Predictor(Records.read([recorded], recorded), recorded)
    params = {**SMALL, "batch": 64, "epochs": 500, "optimizer": "sgd"}
    (found,) = predictor.expected([run_of(64, 500, "manual", params=params)], {})
    assert "epochs 500, learned from 40 to 80" in found.extrapolated
    assert "backend manual, learned from single" in found.extrapolated
    assert any(text.startswith("machine ") for text in found.extrapolated)
    assert "optimizer sgd, which no recorded run has" in found.extrapolated


def test_runs_whose_parameters_are_no_more_are_left_out_and_counted(recorded: Path) -> None:
    store = SessionStore(recorded / "s")
    store.append(run_of(16, 40, block=3, params={**SMALL, "batch": "many"}))
    store.append(run_of(16, 40, block=4, backend="none"))
    store.append(run_of(16, 40, block=5, noise=None))
    left_out = Records.read([recorded], recorded).left_out
    assert sorted(text.split(":")[0] for text in left_out) == [
        "unknown backend 'none'",
        "use case 'ctr' has other parameters now",
        "without seconds of training, or the probe before it",
    ]


def test_a_session_of_a_busy_machine_is_left_out(recorded: Path) -> None:
    store = SessionStore(recorded / "noisy")
    store.create(make_session("noisy", environment=MACHINE))
    for block, train in enumerate((8.0, 10.0, 13.0)):
        store.append(run_of(16, 20, block=block, seconds=Seconds(train=train, total=train + 1)))
    records = Records.read([recorded], recorded)
    assert len(records.cells) == CELLS * BLOCKS
    said = "session noisy: runs of a cell are 20% off their median, because of other work on the machine"
    assert records.left_out == {said: 3}


def test_what_is_around_a_training_is_learned_apart(recorded: Path) -> None:
    records = Records.read([recorded], recorded)
    assert records.parts.sum(axis=1) == pytest.approx(records.total)
    assert records.parts[:, 1] == pytest.approx(AROUND)


def test_a_recorded_run_is_simulated_under_the_policy_of_its_record(recorded: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.toml"
    params = {**SMALL, "batch": 64, "epochs": 1, "policy": str(file)}

    def of(policy: str | None, block: int = 9) -> Run:
        fields = {"params": params, "nodes": 2, "network": "lan", "policy": policy}
        return run_of(64, 1, "manual", block=block, **fields)

    static, copied = (Policy.uniform(name).text() for name in ("static", "full_replication"))
    asked, answered = (physics_of(of(text), None, cores=2) for text in (static, copied))
    assert asked.kilobytes != answered.kilobytes
    # the record decides, not the current content of the file
    file.write_text(copied, encoding="utf-8")
    assert physics_of(of(static), None, cores=2) == asked
    store = SessionStore(recorded / "s")
    for run in (of(static), of(f"{POLICY_LEFT_OUT}: 5000 characters, sha256:0", 10), of(None, 11)):
        store.append(run)
    left_out = Records.read([recorded], recorded).left_out
    assert left_out == {"their policy was read from a file, and the record does not contain it": 2}
    file.unlink()
    with pytest.raises(UsageError, match=r"found\.toml cannot be read"):
        Predictor(Records.read([recorded], recorded), recorded).expected(plan_of([of(None)]), {})


def test_each_cell_is_simulated_once(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Records.read([recorded], recorded)
    monkeypatch.setattr(predict, "physics_of", None)
    again = Records.read([recorded], recorded)
    assert np.array_equal(first.simulated, again.simulated)
    for damaged in (b"{", b'{"\xff": 1}'):
        (recorded / "physics.json").write_bytes(damaged)
        with pytest.raises(UsageError, match=r"physics\.json is damaged: delete it"):
            Records.read([recorded], recorded)


def test_own_cells_are_expected_to_take_what_they_took(recorded: Path) -> None:
    known, new = run_of(64, 40), run_of(64, 60)
    found = recorded_seconds([known, new], recorded)
    assert list(found) == [known.key]
    assert found[known.key].seconds == run_of(64, 40, block=1).seconds.total  # the median of three
    assert found[known.key].runs == BLOCKS


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ([], "time: not known, because no run of these cells is recorded in "),
        ([10.0, 11.0, 30.0], "time: about 11 s, between 10 s and 30 s, by earlier runs in "),
        (
            [10.0, 11.0, 31.0],
            "time: not known, because earlier runs differ too much: it may be between 10 s and 31 s",
        ),
    ],
    ids=["nothing", "narrow", "wide"],
)
def test_a_plan_has_a_time_only_if_its_cells_are_recorded_and_alike(
    tmp_path: Path, seconds: list[float], text: str
) -> None:
    study = study_from(
        None, None, {"usecases": ["ctr[rows=1000]"], "backends": ["single"], "repeats": "1"}, None
    )
    (planned,) = planned_runs(cells_of(study), study)
    store = SessionStore(tmp_path / "s")
    store.create(make_session("s"))
    other = msgspec.structs.replace(planned, cell="another")
    for block, one in enumerate(seconds):
        store.append(ended(planned, run_id=f"{block}", block=block, seconds=Seconds(total=one)))
        store.append(ended(other, run_id=f"other-{block}", block=block, seconds=Seconds(total=99.0)))
    said = plan_text(study, tmp_path)
    assert text in said
    assert ("adabench predict" in said) == (not seconds)


def test_a_plan_counts_the_runs_whose_time_is_not_known(tmp_path: Path) -> None:
    overrides = {"usecases": ["ctr[rows=1000]"], "backends": ["single", "manual"], "repeats": "1"}
    study = study_from(None, None, overrides, None)
    planned, _ = planned_runs(cells_of(study), study)
    store = SessionStore(tmp_path / "s")
    store.create(make_session("s"))
    store.append(ended(planned, run_id="0", seconds=Seconds(total=10.0)))
    said = plan_text(study, tmp_path)
    assert "time: about 10 s for 1 of 2 runs, between 10 s and 10 s" in said
    assert "not included: 1 run of cells that were never recorded" in said
    assert "(seed 1)" not in said
    assert f"block 1 ctr (seed {study.seed}): " in plan_text(study, tmp_path, verbose=True)


def test_a_run_that_takes_twice_as_long_is_told() -> None:
    out = io.StringIO()
    run = run_of(64, 40)
    expected = Expected(run.seconds.total / 2.1, 1.0, 2.0, 7, [])
    for factor, said in ((1.0, True), (1.1, False)):
        told = Expected(expected.seconds * factor, 1.0, 2.0, 7, [])
        console = Console(file=out, width=200)
        with SessionProgress([run], [], {run.cell: "single"}, console, {run.key: told}) as progress:
            progress.end(run)
        assert ("warning: block 1/1 ctr single took" in out.getvalue()) == said
        out.truncate(0)


def test_runs_are_predicted_and_judged(said: Any, recorded: Path) -> None:
    study = ("-u", "ctr[rows=1000,vocabulary=50,dim=4,hidden=8,batch=48,epochs=60]", "-b", "single")
    given = ("--results", str(recorded))
    code, out, err = said("predict", *study, *given)
    assert (code, err) == (0, "")
    assert out.startswith(
        f"learned from {CELLS * BLOCKS} runs of {CELLS} cells; "
        "intervals should contain 90% of measured times\n"
    )
    assert "no interval" not in out
    code, out, err = said("predict", *study, "-b", "manual", "--nodes", "2", *given)
    assert (code, err) == (0, "")
    told = "1 of 2 runs are extrapolated, no interval: they differ from all measured ones in nodes, "
    assert out.splitlines()[-1].startswith(told)
    assert "backend" in out.splitlines()[-1]
    assert out.count("extrapolated, no interval") == 2  # in the table, and in the last line
    code, out, err = said("predict", *given, "--judge")
    assert (code, err) == (0, "")
    first, head, *lines = out.splitlines()
    count = f"{CELLS * BLOCKS} runs of {CELLS} cells"
    assert first == f"{count}; runs of one cell are 1.0% off their median, at the median"
    assert head.split()[:3] == ["held", "out", "rows"]
    assert [line.split()[:2] for line in lines] == [["cells:", one] for one in ("train", "total")]
    assert said("predict", *given, "--judge", "--own")[1] == out


def test_predictions_that_extrapolate_are_judged_apart(said: Any, recorded: Path) -> None:
    store = SessionStore(recorded / "s")
    for block, backend in itertools.product(range(BLOCKS), ("manual", "prefetch")):
        slow = run_of(64, 40, backend, block)  # nothing else is known of this backend
        seconds = Seconds(train=50.0, total=50.0 + AROUND)
        store.append(msgspec.structs.replace(slow, seconds=seconds))
    code, out, _ = said("predict", "--results", str(recorded), "--judge")
    assert code == 0
    *rows, note = out.splitlines()[2:]
    assert note.startswith("extrapolated rows have no interval")
    lines = [line.split("  ", 1)[0:1] + line.split()[-11:] for line in rows]
    assert [name for name, *_ in lines] == [
        text for one in ("train", "total") for text in (f"cells: {one}", f"{one}, not extrapolated")
    ]
    counts, worst = zip(*((int(rest[0]), float(rest[3])) for _, *rest in lines), strict=True)
    assert counts == (42, 36, 42, 36)
    assert worst[0] > worst[1]


def test_nothing_is_predicted_of_nothing(said: Any, recorded: Path) -> None:
    code, _, err = said("predict", "--results", "none")
    assert (code, err.count("\n")) == (2, 1)
    assert "0 runs of 0 cells in none can be learned from; at least 20 runs of 5 cells are needed" in err


def test_the_clone_has_sessions_to_learn_of() -> None:
    assert [folder.name for folder in reference()] == ["reference"]
