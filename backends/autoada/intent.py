"""Where a loader's keys come from: the user's functions, or prediction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from autoada.access.accesses import Prediction, source_line
from autoada.access.batches import on_host
from autoada.access.binding import Binding, Prepare, Recording
from autoada.access.operations import name_of
from autoada.access.predictor import IntentPredictor
from autoada.access.program import NotRecorded
from autoada.model import AdaModel
from autoada.rows import Expected, rows_of_reads

KeyFunction = Callable[[Any], Any]
Keys = KeyFunction | Mapping[Any, KeyFunction]

RECORDED_CALLS = 3
"""Batches whose way to the model is recorded; two of them have to agree."""
SMALL_TABLE = 4096
"""A table of at most this many rows is announced in full where its rows cannot be predicted."""

_PREPARE = (
    "rows are pulled on demand: give AdaDataLoader a `prepare=` function that turns a batch into "
    "(args, kwargs) of the model's call"
)

_log = logging.getLogger("autoada")


class KeySource(Protocol):
    """Finds the rows of batches."""

    def expected(self, batch: Any) -> Expected | None:
        """What the forward pass of `batch` will read; None while that is not known yet."""
        ...

    def hand_out(self, batch: Any) -> None:
        """The batch goes to the training loop."""
        ...

    def returned(self, expected: Expected | None) -> bool:
        """The loop is done with a batch; whether batches in the queue have to be asked about again."""
        ...

    def abandon(self) -> None:
        """The loop has ended, maybe in the middle of a batch."""
        ...

    def describe(self) -> str:
        """How rows are found, in a few words."""
        ...


class HandWrittenKeys:
    """Rows by the user's functions.

    Parameters
    ----------
    model : AdaModel
        Whose tables are meant.
    keys : callable or mapping
        ``keys(batch)`` -> ``{table: ids}``, or a mapping of tables to functions ``f(batch)`` -> ids. A
        table is given as the parameter's qualified name, the qualified name of the module that owns it, or
        the module.
    """

    def __init__(self, model: AdaModel, keys: Keys) -> None:
        self._model = model
        self._function = keys if callable(keys) else _combined(keys)

    def expected(self, batch: Any) -> Expected:
        ids: Mapping[Any, Tensor] = self._function(batch)
        if not isinstance(ids, Mapping):
            raise TypeError(
                f"keys gave a {type(ids).__name__}: it must give a mapping of table names to row ids"
            )
        return Expected(
            rows_of_reads(
                ((table_name(self._model, table), rows) for table, rows in ids.items()), self._model.keys_of
            )
        )

    def hand_out(self, batch: Any) -> None:
        pass

    def returned(self, expected: Expected | None) -> bool:
        return False

    def abandon(self) -> None:
        pass

    def describe(self) -> str:
        return "keys by hand"


class PredictedKeys:
    """Rows by access prediction.

    Parameters
    ----------
    model : AdaModel
        The model whose forward is simulated.
    prepare : callable, optional
        ``prepare(batch)`` -> ``(args, kwargs)`` of the model's call, where that cannot be recorded.
    """

    def __init__(self, model: AdaModel, prepare: Prepare | None = None) -> None:
        self._model = model
        self._prepare = prepare
        self._given = prepare is not None
        self._bindings: list[Binding] = []
        self._recording: Recording | None = None
        self._recorded = 0
        self._told: set[str] = set()
        self.predictor = IntentPredictor(model.module, list(model.tables), self._call)

    def expected(self, batch: Any) -> Expected | None:
        if self._prepare is None:
            return None
        prediction = self.predictor.predict(self._in_reach(batch))
        self._report(prediction)
        reads = [(access.table, access.ids) for access in prediction.accesses if access.ids is not None]
        return Expected(rows_of_reads(reads, self._model.keys_of), prediction)

    def hand_out(self, batch: Any) -> None:
        if self._prepare is None and self._recorded < RECORDED_CALLS:
            self._recording = Recording(batch)
            self._model.listen(self._called)
            self._recording.start()

    def returned(self, expected: Expected | None) -> bool:
        self._end_recording()
        if expected is None or expected.prediction is None:
            return self._prepare is not None  # it has just become known
        if self._model.calls == 0:
            return False
        if self._model.calls > 1:
            self._tell("the model is called more than once a batch: only the first call's rows are announced")
        prediction = expected.prediction
        exact = self.predictor.observe(prediction, self._model.reads)
        return not exact and prediction.complete

    def abandon(self) -> None:
        self._end_recording()

    def describe(self) -> str:
        if self._prepare is None:
            return "rows pulled on demand"
        return "rows predicted" + (
            f" by simulation ({self.predictor.refused})" if self.predictor.refused else ""
        )

    def explain(self, batch: Any) -> str:
        """The predictor's account of `batch`."""
        if self._prepare is None:
            return "nothing is predicted yet: the way from batch to model is recorded in the first steps"
        return self.predictor.explain(self._in_reach(batch))

    def _in_reach(self, batch: Any) -> Any:
        return on_host(batch) if not self._model.transfer.direct else batch

    def _call(self, model: nn.Module, batch: Any) -> Any:
        assert self._prepare is not None
        args, kwargs = self._prepare(batch)
        return model(*args, **kwargs)

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recording = self._recording
        assert recording is not None
        self._end_recording()
        self._recorded += 1
        try:
            binding = recording.arguments(args, kwargs)
        except NotRecorded as reason:
            self._tell(f"how a batch becomes the model's arguments cannot be recorded ({reason}); {_PREPARE}")
            return
        self._bindings.append(binding)
        if sum(other.key == binding.key for other in self._bindings) > 1:
            self._prepare = binding
        elif self._recorded == RECORDED_CALLS:
            self._tell(f"every batch becomes the model's arguments in another way; {_PREPARE}")

    def _end_recording(self) -> None:
        if self._recording is not None:
            self._recording.stop()
            self._recording = None
            self._model.listen(None)

    def _report(self, prediction: Prediction) -> None:
        for access in prediction.accesses:
            if access.kind == "rows":
                continue
            where = f"{access.where}{source_line(access.where)}"
            if access.kind == "full":
                self._model.keep(access.table)
                self._tell(f"{access.table!r} is read in full, at {where}: every worker keeps all of it")
            elif self._model.tables[access.table].shape[0] <= SMALL_TABLE:
                self._model.keep(access.table)
                self._tell(f"rows of {access.table!r} depend on parameters, at {where}: all are kept near")
            else:
                self._tell(f"rows of {access.table!r} depend on parameters, at {where}: pulled on demand")
        if prediction.stopped is not None:
            self._tell(f"prediction could not go on, later rows are pulled on demand: {prediction.stopped}")

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            _log.warning(message)


def table_name(model: AdaModel, table: Any) -> str:
    """The qualified parameter name of a table given by that name, by its module's name, or as a module."""
    if isinstance(table, nn.Module):
        found = next((name for name, module in model.module.named_modules() if module is table), None)
        if found is None:
            raise ValueError(f"the module {name_of(type(table))} is not part of the model")
        table = found
    for name in (table, f"{table}.weight" if table else "weight"):
        if name in model.tables:
            return str(name)
    raise ValueError(f"the model has no table {table!r}; it has {', '.join(model.tables)}")


def _combined(functions: Mapping[Any, KeyFunction]) -> KeyFunction:
    return lambda batch: {table: function(batch) for table, function in functions.items()}
