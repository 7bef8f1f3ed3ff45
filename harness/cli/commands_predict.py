"""``adabench predict``: seconds of runs by those that are recorded, and of foreign tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from adabench.harness.cli.options import Results, results_root, shown, study_from, takes_study, terminal_width
from adabench.harness.cli.terminal import tell
from adabench.harness.errors import UsageError, unknown
from adabench.harness.study.study import Study

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from adabench.analysis.regression import Model

__all__ = ["predict"]

_SHOWN_EXTRAPOLATIONS, _SHOWN_GROUPS = 10, 12


@takes_study(without=("target",))
def predict(
    study: Study,
    results: Results = None,
    judge: Annotated[
        bool,
        typer.Option("--judge", help="Say how good that is: predict each recorded cell by the others."),
    ] = False,
    own: Annotated[
        bool,
        typer.Option("--own", help="Learn of your own sessions only, not of those that come with the clone."),
    ] = False,
    table: Annotated[
        Path | None, typer.Option(help="Measurements as csv instead: features, and a column of seconds.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Which column of --table is the seconds.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="COLUMN[,…]", help="What to learn of; by default all other columns."),
    ] = None,
    leave_out: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN[,…]",
            help="Judge by holding out all rows alike in these, too, such as one shape of a cluster.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="linear, quadratic, trees or process; by default what turns out best.")
    ] = None,
    at: Annotated[
        Path | None, typer.Option(help="Predict for the rows of this csv, instead of judging.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write these as csv, with what was predicted.")
    ] = None,
) -> None:
    """Predict how long runs will take, by the playground and by what is recorded; or seconds of any table.

    A study is described as for `run`. What is recorded are your own sessions and those that come with the
    clone. With --table every row is held out once, a fifth of all at a time, and predicted by what is learned
    of the others: by ordinary least squares (linear), by a ridge on squares and products (quadratic), by
    trees, and, where they are few, by a Gaussian process; with --at the rows of another table are predicted.
    """
    from adabench.analysis.regression import RegressionError

    if leave_out is not None and at is not None:
        raise UsageError(f"--leave-out {leave_out}: nothing is judged with --at; leave one out")
    if out is not None and at is None:
        raise UsageError(f"--out {out}: what is predicted for --at is written there; give both, or neither")
    _known_model(model)
    of_tables = {"--target": target, "--features": features, "--leave-out": leave_out, "--at": at}
    if table is None:
        for name, value in of_tables.items():
            if value is not None:
                raise UsageError(f"{name} {value}: that is about a table; give --table, too, or leave it out")
        _predict_runs(study, results_root(results), judge, own, cast("Model | None", model))
        return
    if target is None:
        raise UsageError(f"--table {table}: say with --target which of its columns is the seconds")
    if (
        judge
        or own
        or msgspec.structs.replace(study, seed=0) != study_from(None, "default", {"seed": "0"}, None)
    ):
        raise UsageError(
            f"--table {table}: no runs are predicted with it; leave out --judge, --own and the study"
        )
    seed = study.seed
    try:
        frame, used = _read(table, target, features)
        if at is None:
            _judge(frame, used, target, _columns(leave_out, frame, table), model, seed)
        else:
            _predict_at(frame, used, target, model, at, out, seed)
    except RegressionError as error:
        raise UsageError(f"{table}: {error}") from error


def _predict_runs(study: Study, root: Path, judge: bool, own: bool, model: Model | None) -> None:
    from adabench.analysis.load import cell_labels
    from adabench.analysis.regression import LEVEL, RegressionError, judgement_lines
    from adabench.analysis.tables import fitted
    from adabench.harness.estimate.predict import FEWEST_CELLS, FEWEST_RUNS, Predictor, Records, reference
    from adabench.harness.study.plan import cells_of, planned_runs

    records = Records.read([root, *([] if own else reference())], root)
    for reason, count in records.left_out.most_common():
        tell(f"{count:,} runs are left out: {reason}")
    if not records.are_enough:
        raise UsageError(
            f"{len(records.cells)} runs of {len(set(records.cells))} cells in {root} can be learned of; "
            f"it takes {FEWEST_RUNS} of {FEWEST_CELLS}"
        )
    of = f"{len(records.cells):,} runs of {len(set(records.cells)):,} cells"
    try:
        if judge:
            tell(f"{of}; runs of one cell are {records.scatter():.1%} off their median, at the median")
            for line in judgement_lines(records.judged(model, study.seed)):
                tell(line)
            return
        cells = cells_of(study)
        planned = [run for run in planned_runs(cells, study, 1) if run.phase == "measured"]
        predictor = Predictor(records, root, model)
        found = predictor.expected(planned, study.data)
    except RegressionError as error:
        raise UsageError(str(error)) from error
    labels = cell_labels(planned)
    rows = [
        [
            run.usecase,
            labels[run.cell],
            f"{run.nodes} x {run.workers}",
            run.network,
            f"{one.seconds:.1f}",
            f"{one.low:.1f} to {one.high:.1f}",
        ]
        for run, one in zip(planned, found, strict=True)
    ]
    tell(f"learned of {of} by {predictor.model}; intervals are to hold {LEVEL:.0%}")
    tell(
        fitted(
            ["use case", "backend", "nodes x workers", "network", "seconds", "interval"],
            rows,
            terminal_width(),
        )
    )
    _tell_extrapolations([one.extrapolated for one in found], "runs")


def _tell_extrapolations(found: list[list[str]], things: str) -> None:
    beyond = sum(map(bool, found))
    if not beyond:
        return
    tell(f"{beyond:,} of {len(found):,} {things} are unlike all that was learned of; no interval is sure:")
    different = dict.fromkeys(text for texts in found for text in texts)
    for text in list(different)[:_SHOWN_EXTRAPOLATIONS]:
        tell(f"  {text}")
    if len(different) > _SHOWN_EXTRAPOLATIONS:
        tell(f"  and {len(different) - _SHOWN_EXTRAPOLATIONS} more")


def _known_model(model: str | None) -> None:
    from adabench.analysis.regression import MODELS

    if model is not None and model not in MODELS:
        raise unknown("model", model, MODELS)


def _read(table: Path, target: str, features: str | None) -> tuple[pd.DataFrame, list[str]]:
    """The rows that can be learned of, and the columns that are features."""
    from adabench.analysis.regression import RegressionError, usable

    frame = _csv(table)
    if target not in frame.columns:
        raise unknown("column", target, frame.columns)
    try:
        good = usable(frame[target])
    except ValueError as error:
        raise UsageError(f"{table}: column {target!r} has words in it; seconds are numbers") from error
    if not good.all():
        tell(f"{(~good).sum():,} of {len(good):,} rows are left out: no finite seconds more than 0")
    used = _columns(features, frame, table) or [str(name) for name in frame.columns if name != target]
    if target in used:
        raise UsageError(f"--features {features}: {target!r} is what is predicted; leave it out")
    if not good.any():
        raise RegressionError("no row is left")
    return frame[good].reset_index(drop=True), used


def _csv(file: Path) -> pd.DataFrame:
    import zlib

    import pandas as pd

    try:
        return pd.read_csv(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zlib.error) as error:
        raise UsageError(f"{file} is no csv with a head: {str(error).splitlines()[0]}") from error


def _columns(given: str | None, frame: pd.DataFrame, table: Path) -> list[str]:
    names = [] if given is None else [name.strip() for name in given.split(",")]
    for name in names:
        if name not in frame.columns:
            raise UsageError(f"{table} has no column {name!r}: there is {', '.join(map(str, frame.columns))}")
    return names


def _judge(
    frame: pd.DataFrame, used: list[str], target: str, together: list[str], model: str | None, seed: int
) -> None:
    import numpy as np

    from adabench.analysis.regression import (
        FOLDS,
        judged,
        judgement_lines,
        judgement_of,
        models_for,
        parts_at_random,
    )

    rows, seconds = frame[used], frame[target].to_numpy(dtype=float)
    groups = None
    if together:
        groups = frame.groupby(together, sort=False, dropna=False).ngroup().to_numpy()
    lines = []
    for kind in models_for(rows) if model is None else (cast("Model", model),):
        at_random = judged(rows, seconds, parts_at_random(len(rows), FOLDS, seed), kind, seed=seed)[0]
        lines.append((f"1/{FOLDS} of the rows", kind, at_random))
        if groups is not None:
            whole, said = judged(rows, seconds, groups, kind, groups, seed=seed)
            lines.append((f"each {', '.join(together)}", kind, whole))
            for name, own in _named_groups(frame, together):
                stacked = np.stack([said.seconds[own], said.low[own], said.high[own]])
                lines.append((name, kind, judgement_of(seconds[own], stacked)))
    order = list(dict.fromkeys(held_out for held_out, _, _ in lines))
    for line in judgement_lines(sorted(lines, key=lambda one: order.index(one[0]))):
        tell(line)


def _named_groups(frame: pd.DataFrame, together: list[str]) -> list[tuple[str, npt.NDArray[np.intp]]]:
    """The rows of each group, if there are few enough to tell them one by one."""
    import numpy as np

    found = frame.groupby(together, dropna=False).indices
    if len(found) > _SHOWN_GROUPS:
        return []
    return [
        (", ".join(f"{name} {frame[name].iloc[rows[0]]}" for name in together), np.asarray(rows))
        for rows in found.values()
    ]


def _predict_at(
    frame: pd.DataFrame,
    used: list[str],
    target: str,
    model: str | None,
    at: Path,
    out: Path | None,
    seed: int,
) -> None:
    from adabench.analysis.regression import LEVEL, Regression

    wanted = _csv(at)
    learned = Regression.fit(frame[used], frame[target], cast("Model | None", model), seed=seed)
    found = learned.predict(wanted)
    told: dict[str, Any] = {
        "predicted": found.seconds,
        "low": found.low,
        "high": found.high,
        "extrapolated": ["; ".join(texts) for texts in found.extrapolated],
    }
    tell(f"learned of {len(frame):,} rows by {learned.model}; intervals are to hold {LEVEL:.0%}")
    _tell_extrapolations(found.extrapolated, "rows")
    result = wanted.assign(**told)
    if out is None:
        tell(result.to_csv(index=False, float_format="%.6g").rstrip("\n"))
        return
    try:
        result.to_csv(out, index=False)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror or error}") from error
    tell(shown(out))
