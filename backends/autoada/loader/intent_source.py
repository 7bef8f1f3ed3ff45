"""Sources of the keys of a loader's batches: functions of the user, or predictions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from autoada.loader.loop_recording import LoopRecorder, call_all
from autoada.parameters.table_parameter import TableParameter
from autoada.prediction.argument_recording import ArgumentRecorder, Prepare
from autoada.prediction.batch_structure import on_host
from autoada.prediction.operations import name_of
from autoada.prediction.predictor import STRIKES, IntentPredictor
from autoada.prediction.result import Access, Prediction
from autoada.prediction.row_set import Expected, rows_of_reads
from autoada.prediction.source_location import source_line, user_location
from autoada.prediction.tables import find_tables
from autoada.training.training_state import TrainingState

KeyFunction = Callable[[Any], Any]
Keys = KeyFunction | Mapping[Any, KeyFunction]

SMALL_TABLE = 4096
"""Maximum number of rows of a table that is announced in full if its rows cannot be predicted."""

_PREPARE = (
    "rows are pulled on demand: give AdaDataLoader a `prepare=` function that turns a batch into "
    "(args, kwargs) of the model's call"
)

_ELSEWHERE = (
    "random numbers can be predicted if the model's forward, the data set or its collate_fn draws them, and "
    "other tensors if AdaDataLoader's `prepare=` makes them from the batch"
)

_TOGETHER = (
    "rows are pulled on demand: wrap the loaders whose batches a step takes together, as in "
    "AdaDataLoader(zip(first, second))"
)

_SEVERAL = (
    "the model is called more than once per batch: only the {} rows are announced ({}, at {}); pass all "
    "inputs to one call if possible, or give AdaDataLoader `keys=`"
)

_log = logging.getLogger("autoada")


class IntentSource:
    """Finds the rows of batches. By default, they depend only on the batch."""

    recording: ArgumentRecorder | None = None
    """Recording of the loop between the model's calls, if there is one."""

    def expected(self, batch: Any) -> Expected | None:
        """Return the rows that the forward pass of `batch` will read; None while they are not known."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return a short description of how rows are found."""
        raise NotImplementedError

    def mark_in_use(self, batch: Any, alone: bool) -> None:
        """Begin the use of `batch`; `alone` is whether no other loader's batch is used at the same clock."""

    def call_begins(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Observe a call of the model; return whether all batches have to be predicted again."""
        return False

    def call_ends(self, counts: bool) -> bool:
        """Observe the end of a call; return whether all batches have to be predicted again."""
        return False

    def mark_done(self, expected: Expected | None, calls: int) -> bool:
        """End the use of a batch after a number of calls; return whether to predict the queue again."""
        return False

    def abandon(self) -> None:
        """End the loop, perhaps in the middle of a batch."""


class HandWrittenKeys(IntentSource):
    """Finds rows with the user's functions.

    `keys` is described in `AdaDataLoader`.
    """

    def __init__(self, state: TrainingState, keys: Keys) -> None:
        self._state = state
        self._keys = keys

    def expected(self, batch: Any) -> Expected:
        keys = self._keys
        ids = keys(batch) if callable(keys) else {table: function(batch) for table, function in keys.items()}
        if not isinstance(ids, Mapping):
            raise TypeError(
                f"keys gave a {type(ids).__name__}: it must give a mapping of table names to row ids"
            )
        private = {id(rows): rows.clone() for rows in ids.values()}
        named = {table_name(self._state, table): private[id(rows)] for table, rows in ids.items()}
        reads = ((name, self._state.tables[name].rows_of(rows)) for name, rows in named.items())
        return Expected(rows_of_reads(reads, self._state.keys_of))

    def describe(self) -> str:
        return "keys by hand"


class PredictedKeys(IntentSource):
    """Finds rows by access prediction.

    `prepare` replaces the recording of the model's call, if there is one.
    """

    def __init__(self, state: TrainingState, prepare: Prepare | None = None) -> None:
        self._state = state
        self._loop = LoopRecorder(prepare)
        self._told: set[str] = set()
        self._on_demand: list[str] = []
        self.predictor = self._make_predictor()

    @property
    def recording(self) -> ArgumentRecorder | None:  # type: ignore[override]
        return self._loop.recording

    def expected(self, batch: Any) -> Expected | None:
        calls = self._loop.calls
        if calls is None:
            return None
        prediction = self.predictor.predict(self._on_host(batch))
        self._report(prediction)
        reads = [(access.table, access.ids) for access in prediction.accesses if access.ids is not None]
        whole = frozenset(access.table for access in prediction.accesses if self._may_read_all(access))
        rows = rows_of_reads(reads, self._keys_of)
        return Expected(rows, prediction, len(calls), whole, self.predictor.around(prediction))

    def mark_in_use(self, batch: Any, alone: bool) -> None:
        self._loop.mark_in_use(batch, alone)

    def call_begins(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return self._learned(self._loop.call_begins(target, args, kwargs))

    def call_ends(self, counts: bool) -> bool:
        if counts and self._state.calls == 2 and not self._loop.where:
            self._loop.where = user_location()
        return self._learned(self._loop.call_ends(counts))

    def mark_done(self, expected: Expected | None, calls: int) -> bool:
        changed = self._loop.mark_done(calls, self._state.first_target)
        self._warn_of_obstacle(calls)
        return self._learned(changed) or self._was_wrong(expected, calls)

    def abandon(self) -> None:
        self._loop.end_recording()
        self.predictor.restart_draws()

    def describe(self) -> str:
        if self._loop.calls is None:
            return "rows pulled on demand"
        demanded = f"; pulled on demand: {'; '.join(self._on_demand)}" if self._on_demand else ""
        return f"rows predicted {self.predictor.describe()}{demanded}"

    def explain(self, batch: Any) -> str:
        """Return the predictor's description of the reads of `batch`."""
        if self._loop.calls is None:
            reason = self._loop.obstacle or "the way from batch to model is recorded in the first steps"
            return f"nothing is predicted: {reason}"
        return "\n  ".join([self.predictor.explain(self._on_host(batch)), *sorted(self._told)])

    def _keys_of(self, table: str, ids: Tensor) -> Tensor | None:
        try:
            return self._state.keys_of(table, ids)
        except IndexError:
            return None  # If a row does not exist, the forward pass raises the error when it reads the row.

    def _make_predictor(self) -> IntentPredictor:
        module = self._state.module
        # A part of the model may have been removed or renamed since the model was wrapped.
        tables = {p.store.name: p for p in module.parameters() if isinstance(p, TableParameter)}
        self._left_out = find_tables(module).keys() - tables.keys()
        predictor = IntentPredictor(module, tables, self._call)
        if self._state.access.node.workers > 1:
            predictor.foresee_no_draws()
        return predictor

    def _call(self, model: nn.Module, batch: Any) -> Any:
        assert self._loop.calls is not None
        call_all(self._loop.calls, model, batch)

    def _learned(self, changed: bool) -> bool:
        """If the calls for a batch have changed, begin with a new predictor; return whether they have."""
        if changed:
            self.predictor = self._make_predictor()
        return changed

    def _was_wrong(self, expected: Expected | None, calls: int) -> bool:
        """Return whether the batch read other rows than a certain prediction."""
        if expected is None or expected.prediction is None or calls < expected.calls:
            return False
        exact = self.predictor.observe(expected.prediction, self._state.reads)
        if self._loop.numbers_vary and self.predictor.strikes == STRIKES:
            self._loop.give_up(
                "rows depend on a number that is not in the batch and differs from call to call"
            )
            self._warn_of_obstacle(calls)
        wrong = not exact and expected.prediction.stopped is None
        return self.predictor.learned() or wrong

    def _on_host(self, batch: Any) -> Any:
        return on_host(batch) if not self._state.access.transfer.direct else batch

    def _warn_of_obstacle(self, calls: int) -> None:
        known = self._loop.calls
        if not self._loop.settled:
            return
        if known is None:
            self._warn_once(
                f"how a batch becomes the model's arguments, at {self._call_place}, cannot be recorded "
                f"({self._loop.obstacle}); {_PREPARE if self._loop.takes_one_loader else _TOGETHER}"
            )
        elif calls > len(known) and self._loop.obstacle is not None:
            which = "first call's" if len(known) == 1 else f"first {len(known)} calls'"
            self._warn_once(_SEVERAL.format(which, self._loop.obstacle, self._call_place))

    def _may_read_all(self, access: Access) -> bool:
        """Return whether any row of the table may be read: it is read in full, or small and unpredictable."""
        return access.kind == "full" or (
            access.kind == "unpredictable" and self._state.tables[access.table].shape[0] <= SMALL_TABLE
        )

    def _report(self, prediction: Prediction) -> None:
        for access in prediction.accesses:
            if access.kind == "rows":
                continue
            where = f"{access.where}{source_line(access.where)}"
            if access.kind == "full":
                self._warn_once(
                    f"{access.table!r} is read in full, at {where}: all of its rows are announced for such "
                    "batches; if a batch needs only some rows, look up these rows"
                )
            elif self._may_read_all(access):
                self._warn_once(
                    f"rows of {access.table!r} depend on parameters{self._unknown()}, at {where}: "
                    "all are announced"
                )
            else:
                self._warn_once(
                    f"rows of {access.table!r} depend on parameters{self._unknown()}, at {where}: they are "
                    "pulled on demand; if you know which rows may be read, give AdaDataLoader `keys=`",
                    f"{access.table!r} depends on parameters, at {where}",
                )
        for name, where in prediction.dense_reads:
            if name in self._left_out:
                continue  # A warning has named the reason why it has no place in the server.
            self._warn_once(
                f"all of {name!r} is sent in every step, because it is not a table, but only rows of it are "
                f"read, at {where}{source_line(where)}: give AdaModel `tables=[{name!r}]`"
            )
        if prediction.stopped is not None and not prediction.waits:
            self._warn_once(
                f"prediction stopped, and later rows are pulled on demand: {prediction.stopped}; let only "
                "the batch determine which rows forward reads, or give AdaDataLoader `keys=`",
                prediction.stopped,
            )

    @property
    def _call_place(self) -> str:
        """Return the place where the loop calls the model, with its source line."""
        return f"{self._loop.where}{source_line(self._loop.where)}"

    def _unknown(self) -> str:
        """Return the unpredictable inputs other than parameters on which rows may depend, as text."""
        recorded = self._loop.recorded or ()
        names = ", ".join(dict.fromkeys(name for call in recorded for name in call.prepare.unknown))
        text = "" if self.predictor.foresees_draws else " or on unpredictable random numbers"
        if names:
            call = f"{names} of the call at {self._call_place}"
            text += f" or on values that are not made from the batch ({call}; {_ELSEWHERE})"
        return text

    def _warn_once(self, message: str, on_demand: str | None = None) -> None:
        if message not in self._told:
            self._told.add(message)
            _log.warning(message)
            if on_demand is not None:
                self._on_demand.append(on_demand)


def table_name(state: TrainingState, table: Any) -> str:
    """Return the qualified name of a table that is given by this name, its module's name, or its module."""
    if isinstance(table, nn.Module):
        found = next((name for name, module in state.module.named_modules() if module is table), None)
        if found is None:
            raise ValueError(f"the module {name_of(type(table))} is not part of the model")
        table = found
    for name in (table, f"{table}.weight" if table else "weight"):
        if name in state.tables:
            return str(name)
    raise ValueError(f"the model has no table {table!r}; it has {', '.join(state.tables)}")
