"""``adabench predict``: seconds of runs, predicted from recorded runs or from other tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from adabench.analysis.tracking import working
from adabench.harness.cli.options import Results, results_root, shown, study_from, takes_study, terminal_width
from adabench.harness.cli.terminal import tell
from adabench.harness.errors import UsageError, unknown
from adabench.harness.study.study import Study

if TYPE_CHECKING:
    import pandas as pd

    from adabench.harness.estimate.recorded import Expected

_SHOWN_GROUPS, _FEWEST_GROUPS = 12, 3
_MOST_FEATURES = 256
"""Number of columns of a table from which seconds are predicted; 300 take more than a minute."""


_PREDICTED = ("predicted", "low", "high", "extrapolated")
"""Columns that the output of ``--at`` adds."""


@takes_study(without=("target", "quick"))
def predict(
    study: Study,
    results: Results = None,
    judge: Annotated[
        bool, typer.Option("--judge", help="Measure the errors: predict each recorded cell from the others.")
    ] = False,
    own: Annotated[
        bool,
        typer.Option("--own", help="Learn only from your own sessions, not from the sessions in the clone."),
    ] = False,
    table: Annotated[
        Path | None, typer.Option(help="Measurements as csv: features, and a column of seconds.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of --table that contains the seconds.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="COLUMN[,…]", help="Columns to learn from; by default all other columns."),
    ] = None,
    leave_out: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN[,…]",
            help="Also measure errors for groups that are left out: rows with equal values in these "
            "columns, such as nodes.",
        ),
    ] = None,
    at: Annotated[
        Path | None, typer.Option(help="Predict for the rows of this csv, instead of judging.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output csv: the rows of --at, with predictions.")
    ] = None,
) -> None:
    """Predict the time of runs by simulation and recorded runs.

    It also predicts the seconds of any table.

    A study is described as for `run`. A regression learns from your own sessions and from the sessions in the
    clone. With --table each row is held out once, a fifth of all rows at a time, and predicted from the
    remaining rows. With --at the rows of another table are predicted.
    """
    if leave_out is not None and at is not None:
        raise UsageError(f"--leave-out {leave_out}: nothing is judged with --at; leave one out")
    if out is not None and at is None:
        raise UsageError(f"--out {out}: it is the file for the predictions of --at; give both, or neither")
    if table is None:
        of_tables = {"--target": target, "--features": features, "--leave-out": leave_out, "--at": at}
        for name, value in of_tables.items():
            if value is not None:
                raise UsageError(f"{name} {value}: it requires --table; give both, or neither")
        _predict_runs(study, results_root(results), judge, own)
        return
    if target is None:
        raise UsageError(f"--table {table}: name its column of seconds with --target")
    usual = study_from(None, "default", {"seed": "0"}, None)
    if judge or own or msgspec.structs.replace(study, seed=0) != usual:
        raise UsageError(
            f"--table {table}: no runs are predicted with it; leave out --judge, --own and the study"
        )
    from adabench.analysis.regression import RegressionError

    try:
        measured = _Measured.read(table, target, features, study.seed)
        if at is None:
            measured.judge(_columns(leave_out, measured.frame, table))
        else:
            measured.predict(at, out)
    except RegressionError as error:
        raise UsageError(f"{table}: {error}") from error


def _predict_runs(study: Study, root: Path, judge: bool, own: bool) -> None:
    from adabench.analysis.load import cell_labels
    from adabench.analysis.regression import LEVEL, RegressionError, judgement_lines
    from adabench.analysis.tables import fitted
    from adabench.harness.estimate.predict import FEWEST_CELLS, FEWEST_RUNS, Predictor, Records, reference
    from adabench.harness.estimate.recorded import WIDEST
    from adabench.harness.study.plan import cells_of, planned_runs

    records = Records.read([root, *([] if own else reference())], root)
    for reason, count in records.left_out.most_common():
        tell(f"{count:,} runs are left out: {reason}")
    if not records.are_enough:
        raise UsageError(
            f"{len(records.cells)} runs of {len(set(records.cells))} cells in {root} can be learned from; "
            f"at least {FEWEST_RUNS} runs of {FEWEST_CELLS} cells are needed"
        )
    of = f"{len(records.cells):,} runs of {len(set(records.cells)):,} cells"
    try:
        if judge:
            tell(f"{of}; runs of one cell are {records.scatter():.1%} off their median, at the median")
            for line in judgement_lines(records.judged(study.seed)):
                tell(line)
            return
        with working("loading use cases and their data"):
            planned = [run for run in planned_runs(cells_of(study), study, 1) if run.phase == "measured"]
        with working("learning from recorded runs"):
            predictor = Predictor(records, root)
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
            f"{one.low:.1f} to {one.high:.1f}" if one.high <= WIDEST * one.low else _no_interval(one),
        ]
        for run, one in zip(planned, found, strict=True)
    ]
    tell(f"learned from {of}; intervals should contain {LEVEL:.0%} of measured times")
    names = ["use case", "backend", "nodes x workers", "network", "seconds", "interval"]
    tell(fitted(names, rows, terminal_width(), keys=2))
    _tell_extrapolations([one.extrapolated for one in found], "runs")


def _no_interval(one: Expected) -> str:
    if one.extrapolated:
        return "extrapolated, no interval"
    return (
        "not known: too few cells" if math.isnan(one.low) else f"not known: {one.low:.3g} to {one.high:.3g}"
    )


def _tell_extrapolations(found: list[list[str]], things: str) -> None:
    """Print one line: the features of some rows that are outside the range of the training rows."""
    beyond = sum(map(bool, found))
    if beyond:
        names = dict.fromkeys(text.partition(" ")[0] for texts in found for text in texts)
        tell(
            f"{beyond:,} of {len(found):,} {things} are extrapolated, no interval: they differ from all "
            f"measured ones in {', '.join(names)}"
        )


@dataclass(frozen=True)
class _Measured:
    """A table of measurements.

    Attributes
    ----------
    frame : DataFrame
        The rows with usable seconds.
    features : list of str
        Columns to learn from.
    target : str
        Column of seconds.
    seed : int
        Seed for folds and trees.
    """

    frame: pd.DataFrame
    features: list[str]
    target: str
    seed: int

    @classmethod
    def read(cls, table: Path, target: str, features: str | None, seed: int) -> _Measured:
        """Read a csv; rows without usable seconds are left out and counted."""
        from adabench.analysis.regression import RegressionError, usable

        frame = _csv(table)
        if target not in frame.columns:
            raise unknown("column", target, frame.columns)
        try:
            good = usable(frame[target])
        except ValueError as error:
            raise UsageError(f"{table}: column {target!r} has words; seconds must be numbers") from error
        if not good.all():
            tell(f"{(~good).sum():,} of {len(good):,} rows are left out: no finite seconds more than 0")
        used = _columns(features, frame, table) or [str(name) for name in frame.columns if name != target]
        if not used:
            raise UsageError(f"{table} has only the column {target!r}: add columns to predict it from")
        if len(used) > _MOST_FEATURES:
            raise UsageError(
                f"{table} has {len(used)} columns to predict from; at most {_MOST_FEATURES} are used: name "
                "them with --features"
            )
        if target in used:
            raise UsageError(f"--features {features}: {target!r} is what is predicted; leave it out")
        if not good.any():
            raise RegressionError("no row is left")
        return cls(frame[good], used, target, seed)

    def judge(self, together: list[str]) -> None:
        """Hold out rows at random, and in groups of rows that are equal in the columns `together`."""
        import numpy as np

        from adabench.analysis.regression import (
            FOLDS,
            RegressionError,
            judged,
            judgement_lines,
            judgement_of,
            parts_at_random,
        )

        grouped = self.frame.groupby(together or self.features, sort=False, dropna=False)
        if together and grouped.ngroups < _FEWEST_GROUPS:
            raise RegressionError(
                f"{grouped.ngroups} groups are too few to hold one out: {_FEWEST_GROUPS} are needed"
            )
        rows, seconds = self.frame[self.features], self.frame[self.target].to_numpy(dtype=float)
        parts = parts_at_random(len(rows), FOLDS, self.seed)
        lines = [(f"1/{FOLDS} of the rows", judged(rows, seconds, parts, seed=self.seed)[0])]
        if together:
            groups = grouped.ngroup().to_numpy()
            whole, said = judged(rows, seconds, groups, groups, seed=self.seed)
            lines.append((f"each {', '.join(together)}", whole))
            stacked = np.stack([said.seconds, said.low, said.high])
            every = list(self.frame.groupby(together, dropna=False).indices.values())
            for own in every if len(every) <= _SHOWN_GROUPS else []:
                name = ", ".join(f"{column} {self.frame[column].iloc[own[0]]}" for column in together)
                lines.append((name, judgement_of(seconds[own], stacked[:, own])))
        for line in judgement_lines(lines):
            tell(line)

    def predict(self, at: Path, out: Path | None) -> None:
        """Predict the rows of another csv."""
        from adabench.analysis.regression import LEVEL, Regression, RegressionError

        wanted = _csv(at)
        for name in _PREDICTED:
            if name in wanted.columns:
                raise UsageError(f"{at} has a column {name!r}, which the output adds: rename it")
        with working("learning from the table"):
            learned = Regression.fit(self.frame[self.features], self.frame[self.target], seed=self.seed)
        try:
            found = learned.predict(wanted)
        except RegressionError as error:
            raise UsageError(f"{at}: {error}") from error
        texts = ["; ".join(one) for one in found.extrapolated]
        told: dict[str, Any] = dict(
            zip(_PREDICTED, (found.seconds, found.low, found.high, texts), strict=True)
        )
        tell(f"learned from {len(self.frame):,} rows; intervals should contain {LEVEL:.0%} of measured times")
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


def _csv(file: Path) -> pd.DataFrame:
    import zlib

    import pandas as pd

    try:
        return pd.read_csv(file).reset_index(drop=True)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, zlib.error) as error:
        raise UsageError(f"{file} is no CSV file with a header line: {str(error).splitlines()[0]}") from error


def _columns(given: str | None, frame: pd.DataFrame, table: Path) -> list[str]:
    names = [] if given is None else [name.strip() for name in given.split(",")]
    for name in names:
        if name not in frame.columns:
            raise UsageError(f"{table} has no column {name!r}: there is {', '.join(map(str, frame.columns))}")
    return names
