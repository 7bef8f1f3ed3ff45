"""Predicts the accesses of a batch by an access program, or by a simulation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from autoada.prediction.compiled_program import CompiledProgram, NotRecorded
from autoada.prediction.forward_simulation import Call, ForwardSimulation
from autoada.prediction.program_cache import AccessProgram, ProgramCache
from autoada.prediction.result import Access, Prediction
from autoada.prediction.source_location import source_line
from autoada.prediction.speculation import FORGIVEN_AFTER, Watch
from autoada.prediction.tables import find_tables
from autoada.prediction.trace import Trace

STRIKES = 3
"""Number of wrong predictions after which only simulations are used."""
DRIFTS = 3
"""Number of wrong predictions of random draws, minus forgiven ones, after which draws are not predicted."""

_log = logging.getLogger("autoada")


class IntentPredictor:
    """Predicts the rows that the forward pass of a batch will read, from the model's own code.

    A batch is simulated (`autoada.prediction.symbolic_forward`). If simulations are regular, they are
    replaced by a program of the few operations from batch to ids.

    The model, its buffers, the batch and the global random generators do not change. Predictions are made one
    at a time, in the order of the batches.

    Parameters
    ----------
    model : nn.Module
        Live model.
    tables : iterable of str, or mapping of str to nn.Parameter, optional
        Qualified names of parameters that are tables, in addition to the weights of all embedding modules. A
        mapping contains all tables with the names that predictions give them.
    call : callable, optional
        Function ``call(model, batch)`` with which the training loop passes a batch to the model; default
        ``model(batch)``. Its code after the model's forward pass has no effect on predictions.

    Raises
    ------
    ValueError
        If the model has no such parameter.
    """

    def __init__(
        self,
        model: nn.Module,
        tables: Iterable[str] | Mapping[str, nn.Parameter] | None = None,
        call: Call | None = None,
    ) -> None:
        self.tables = dict(tables) if isinstance(tables, Mapping) else find_tables(model, tables)
        """Tables by qualified name."""
        names = {id(parameter): name for name, parameter in self.tables.items()}
        self._simulation = ForwardSimulation(model, names, call or (lambda model, batch: model(batch)))
        self._cache = ProgramCache()
        self.strikes = 0
        """Number of wrong predictions."""
        self._drifts = self._right = 0
        self._afresh = False
        """Whether a simulation begins with the state of the live model, not of the previous simulation."""
        # Dynamo would compile simulations inside a region that it traces.
        self._simulate: Callable[..., tuple[Prediction, Trace | None]] = torch.compiler.disable(
            self._simulation.run
        )

    @property
    def refused(self) -> str | None:
        """Reason why no access program is used; None if there is a program or may be one later."""
        return self._cache.refused

    def predict(self, batch: Any) -> Prediction:
        """Predict the accesses of the forward pass of `batch`. Their ids share no memory with the program."""
        prediction = self._predict(batch)
        private = {
            id(access.ids): access.ids.clone() for access in prediction.accesses if access.ids is not None
        }
        accesses = (
            access if access.ids is None else access._replace(ids=private[id(access.ids)])
            for access in prediction.accesses
        )
        return prediction._replace(accesses=tuple(accesses))

    def _predict(self, batch: Any) -> Prediction:
        program = self._cache.find(batch)
        if program is not None:
            return self._by_program(program, batch)
        if self._afresh:
            self._simulation.renew()
        return self._record(batch) if self._cache.refused is None else self._simulate(batch)[0]

    def observe(self, prediction: Prediction, real: Sequence[tuple[str, Tensor | None]]) -> bool:
        """Check a prediction against the reads of the real forward.

        Parameters
        ----------
        prediction : Prediction
            Prediction for the batch.
        real : sequence of (str, Tensor or None)
            Table and int64 row ids of each read, in order. None as the ids means the whole table.

        Returns
        -------
        bool
            Whether every access was predicted exactly. If not, programs are dropped and the meta model
            is made again from the live model. Batches in flight should then be predicted again.
        """
        agree = _agree(prediction.accesses, real)
        speculation = self._simulation.speculation
        if not agree and prediction.stopped is None and speculation.used:
            speculation.wrong()
            self._start_over()
        elif not agree and prediction.draws and self._simulation.rng.foresees_draws:
            self._drifted()
        elif not agree and prediction.complete:
            self._strike(prediction.accesses, real)
        else:
            speculation.right(needed=prediction.tier != "program")
        if not agree:
            return False
        self._right += 1
        if self._right % FORGIVEN_AFTER == 0:
            self._drifts = max(0, self._drifts - 1)
        return True

    def around(self, prediction: Prediction) -> AbstractContextManager[Any]:
        """Return a context for the real forward passes of the batch of `prediction`.

        The context records the values that simulations need.
        """
        return Watch(self._simulation.speculation)

    def foresee_no_draws(self) -> None:
        """Treat rows that depend on PyTorch's generator as unknown, because other threads draw from it."""
        self._simulation.rng.foresees_draws = self._simulation.rng.follows_torch = False

    @property
    def foresees_draws(self) -> bool:
        """Whether rows that depend on draws from the global generators are predicted."""
        return self._simulation.rng.foresees_draws

    def restart_draws(self) -> None:
        """Let the next prediction begin with the current state of the random generators."""
        self._simulation.rng.next = None

    def learned(self) -> bool:
        """Return whether forward passes since the last call gave values that predictions wait for."""
        news = self._simulation.speculation.news()
        if news:
            self._simulation.renew()  # Batches in flight are simulated again, from the current model.
            self.restart_draws()
        return news

    def explain(self, batch: Any) -> str:
        """Describe each access of `batch` if forward is called next: table, rows, and source line."""
        simulate = torch.compiler.disable(self._simulation.of_next_forward().run)
        prediction, _ = simulate(batch, explain=True)
        return f"{prediction}\n  {self._program_for(batch)}"

    def describe(self) -> str:
        """Return a short description of the tier in use."""
        if self._cache.refused is None:
            return "by access program" if self._cache.used else "by simulation"
        return f"by simulation ({self._cache.refused})"

    def _program_for(self, batch: Any) -> str:
        if self._cache.refused is not None:
            return f"no access program: {self._cache.refused}"
        if self._cache.find(batch) is not None:
            return "access program in use for batches of this shape"
        return "access program not yet learned for batches of this shape"

    def _by_program(self, program: AccessProgram, batch: Any) -> Prediction:
        self._cache.used += 1
        rng = self._simulation.rng
        following = rng.next
        try:
            with rng.kept() if program.compiled.draws else nullcontext():
                computed = program.compiled(batch)
        except Exception as error:  # The user's operations run on the values of this batch.
            rng.next = following
            prediction, _ = self._simulate(batch)
            if prediction.stopped is None:
                self._cache.refuse(f"the program failed where the model does not: {error}")
            return prediction
        ids = iter(computed)
        accesses = tuple(
            [
                Access(table, next(ids) if kind == "rows" else None, kind, where)
                for table, _, kind, where in program.accesses
            ]
        )
        return Prediction(accesses, "program", draws=program.compiled.draws)

    def _record(self, batch: Any) -> Prediction:
        """Simulate, and learn an access program from the trace."""
        before = self._simulation.meta_model.plain_attributes()
        prediction, trace = self._simulate(batch, record=True)
        assert trace is not None
        if self._simulation.meta_model.plain_attributes() != before:
            self._cache.refuse("forward changes numbers or strings that its modules hold")
        if self._simulation.rng.drew_on_host:
            self._cache.refuse("forward draws from the generators of NumPy or Python")
        try:
            rows = [access.ids for access in prediction.accesses if access.ids is not None]
            program = CompiledProgram(trace, rows, clone_leaves=self._simulation.clones_batch)
        except NotRecorded as reason:
            self._cache.refuse(str(reason))
            return prediction
        if prediction.waits:
            return prediction
        if prediction.stopped is not None:
            self._cache.refuse(f"the simulation stopped: {prediction.stopped}")
        elif self._cache.refused is None:
            accesses = tuple(access._replace(ids=None) for access in prediction.accesses)
            self._cache.learn(batch, AccessProgram(program, accesses))
        return prediction

    def _start_over(self) -> None:
        self._cache.forget()
        self._simulation.renew()
        self.restart_draws()

    def _drifted(self) -> None:
        """Begin again with the current generators, because the real draws differed from predictions."""
        self._drifts += 1
        self._start_over()
        if self._drifts == DRIFTS:
            self._simulation.rng.foresees_draws = False
            _log.warning(
                "rows depend on random numbers that forward draws, and they cannot be predicted, because "
                "other code draws from the same generator (or the model's device has another one): these "
                "rows are pulled on demand; let forward draw from a generator that the model holds, such as "
                "self.generator = torch.Generator()"
            )

    def _strike(self, predicted: Sequence[Access], real: Sequence[tuple[str, Tensor | None]]) -> None:
        self.strikes += 1
        self._start_over()
        # Simulations follow the state of modules from batch to batch, unless the loop resets it.
        self._afresh = not self._afresh
        if self.strikes == STRIKES:
            self._cache.refuse(f"{STRIKES} predictions were wrong")
        if self.strikes <= STRIKES:
            _log.warning(
                "a prediction of accesses was wrong (%d%s): %s; missing rows are pulled on demand; let only "
                "the batch determine which rows forward reads, or give AdaDataLoader `keys=`",
                self.strikes,
                ", later ones are not reported" if self.strikes == STRIKES else "",
                self._difference(predicted, real),
            )

    def _difference(self, predicted: Sequence[Access], real: Sequence[tuple[str, Tensor | None]]) -> str:
        """Return the first read that differs from the prediction, with its place."""
        pairs = zip(predicted, real, strict=False)
        both = min(len(predicted), len(real))
        same = next((i for i, (access, read) in enumerate(pairs) if not _agree([access], [read])), both)
        if same < len(real):
            name, ids = real[same]
            found = f"{name!r} was read in full" if ids is None else f"rows of {name!r} were read"
        else:
            found = "nothing more was read"
        if same < len(predicted):
            where = predicted[same].where
            other = "other rows of " if same < len(real) and predicted[same].table == real[same][0] else ""
            expected = f"{other}{predicted[same].table!r} was predicted, at {where}{source_line(where)}"
            return f"{found} where {expected}"
        where = predicted[-1].where if predicted else _beginning(self._simulation.model)
        return f"{found} after all predicted reads, which end at {where}{source_line(where)}"


def _beginning(model: nn.Module) -> str:
    """Return ``file:line`` of the model's forward."""
    code = getattr(model.forward, "__code__", None)
    return "?" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _agree(predicted: Sequence[Access], real: Sequence[tuple[str, Tensor | None]]) -> bool:
    """Return whether the accesses agree. Unpredictable rows agree with any rows."""
    if len(predicted) != len(real):
        return False
    for access, (table, ids) in zip(predicted, real, strict=True):
        if access.table != table or (access.kind == "full") != (ids is None):
            return False
        if access.ids is None or access.ids is ids:  # The lookup itself has compared the rows.
            continue
        if ids is None or access.ids.shape != ids.shape or not torch.equal(access.ids, ids.cpu()):
            return False
    return True
