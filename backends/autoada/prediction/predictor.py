"""Predicts the accesses of a batch by the cheapest way that is known to be exact."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from autoada.prediction.accesses import Access, Prediction, Tier, source_line
from autoada.prediction.compiled_program import NotRecorded, Program
from autoada.prediction.program_cache import Programs, Recording
from autoada.prediction.rng_snapshot import ReplayStreams
from autoada.prediction.simulation import Call, Outcome, Simulation
from autoada.prediction.speculation import Watch
from autoada.prediction.tables import find_tables
from autoada.prediction.torch_draws import Replay
from autoada.prediction.trace import Tape

VERIFIED = 3
"""Batches whose check must have passed before simulations stop after the last lookup."""
STRIKES = 3
"""Wrong predictions after which only full simulations are used."""

_log = logging.getLogger("autoada")


class IntentPredictor:
    """Says which rows the forward pass of a batch will read, from the model's own code.

    A batch is simulated (`autoada.prediction.symbolic_forward`); when simulations turn out to be regular,
    stopped after the last lookup, or replaced by a program of the few operations that lead from batch to ids.
    Neither the model nor its buffers, the batch or a global random stream is changed. One prediction at a
    time, in batch order.

    Parameters
    ----------
    model : nn.Module
        The live model.
    tables : iterable of str, optional
        Qualified names of parameters that are tables, beside the weights of all embedding modules.
    call : callable, optional
        ``call(model, batch)``: how the training loop hands a batch to the model; default ``model(batch)``.
        What it does after the model's forward pass does not matter.

    Raises
    ------
    ValueError
        If the model has no such parameter.
    """

    def __init__(
        self, model: nn.Module, tables: Iterable[str] | None = None, call: Call | None = None
    ) -> None:
        self._tables = find_tables(model, tables)
        names = {id(parameter): name for name, parameter in self._tables.items()}
        self._simulation = Simulation(model, names, call or _call_with_batch)
        self._programs = Programs()
        self._counts: list[int] = []
        self._stop_after = 0
        self._strikes = 0
        self._irregular = False
        self._draws = False
        self._afresh = False
        """Whether a simulation begins with the state of the live model, not with that of the one before."""
        # simulations inside a region that Dynamo traces would be compiled
        self._simulate = torch.compiler.disable(self._simulation.run)

    @property
    def tables(self) -> dict[str, nn.Parameter]:
        """The tables by qualified name."""
        return dict(self._tables)

    @property
    def strikes(self) -> int:
        """How many predictions were wrong."""
        return self._strikes

    @property
    def refused(self) -> str | None:
        """Why no access program is used; None while there is one or may be one."""
        return self._programs.refused

    def predict(self, batch: Any) -> Prediction:
        """The accesses of the forward pass of `batch`."""
        if self._programs.refused is None:
            recording = self._programs.find(batch)
            if recording is not None:
                return self._by_program(recording, batch)
        if self._afresh:
            self._simulation.renew()
        if self._programs.refused is not None and not self._draws:
            return self._prediction(self._simulate(batch, stop_after=self._stop_after))
        return self._record(batch)

    def observe(self, prediction: Prediction, real: Sequence[tuple[str, Tensor | None]]) -> bool:
        """Check a prediction against what the real forward read.

        Parameters
        ----------
        prediction : Prediction
            What `predict` gave for the batch.
        real : sequence of (str, Tensor or None)
            Table and int64 row ids of each read, in order; None stands for a whole table.

        Returns
        -------
        bool
            Whether every access was predicted exactly. If not, cheaper tiers are dropped and the shadow is
            taken anew from the live model; batches in flight should be predicted again.
        """
        agree = _agree(prediction.accesses, real)
        guesses = self._simulation.guesses
        if not agree and prediction.stopped is None and guesses.used:
            guesses.wrong()
            self._start_over()
        elif not agree and prediction.complete:
            self._strike(prediction.accesses, real)
        else:
            guesses.right(needed=prediction.tier != "program")
        if not agree:
            return False
        if prediction.tier == "simulation" and prediction.stopped is None:
            self._counts = [*self._counts, len(prediction.accesses)][-VERIFIED:]
            regular = len(self._counts) == VERIFIED and len(set(self._counts)) == 1
            if regular and not self._irregular and self._strikes < STRIKES and not self._draws:
                self._stop_after = self._counts[-1]
        return True

    def around(self, prediction: Prediction) -> AbstractContextManager[Any]:
        """What the real forward passes of the batch of `prediction` have to run in, one after the other.

        It gives them the draws that rows depend on, and notes the values that simulations ask for.
        """
        contexts: list[AbstractContextManager[Any]] = [Watch(self._simulation.guesses)]
        if prediction.replay:
            contexts.insert(0, Replay(prediction.draws))
        if prediction.streams is not None:
            contexts.insert(0, ReplayStreams(prediction.streams))
        return Together(*contexts) if len(contexts) > 1 else contexts[0]

    def learned(self) -> bool:
        """Whether real forward passes, since this was asked last, gave values that predictions wait for."""
        news = self._simulation.guesses.news()
        if news:
            self._simulation.renew()  # batches in flight are simulated again, from where the model is
        return news

    def explain(self, batch: Any) -> str:
        """For each access of `batch`: table, rows, and where in the user's source it is."""
        outcome = self._simulate(batch, explain=True)
        text = str(Prediction(outcome.accesses, stopped=outcome.stopped, draws=outcome.draws))
        return f"{text}\n  {self._program_for(batch)}"

    def describe(self) -> str:
        """The tier in use, in a few words."""
        if self._programs.refused is None:
            return "by access program" if self._programs.used else "by simulation"
        tier = "by early exit" if self._stop_after else "by simulation"
        return f"{tier} ({self._programs.refused})"

    def _program_for(self, batch: Any) -> str:
        if self._programs.refused is not None:
            return f"no access program: {self._programs.refused}"
        if self._programs.find(batch) is not None:
            return "access program in use for batches of this shape"
        return "access program not yet learned for batches of this shape"

    def _by_program(self, recording: Recording, batch: Any) -> Prediction:
        try:
            computed, draws = recording.program(batch, self._simulation.generator)
        except Exception as error:  # the user's operations, on this batch's values
            outcome = self._simulate(batch)
            if outcome.stopped is None:
                self._programs.refuse(f"the program failed where the model does not: {error}")
            return self._prediction(outcome)
        ids = iter(computed)
        accesses = tuple(
            [
                Access(table, next(ids) if kind == "rows" else None, kind, where)
                for table, _, kind, where in recording.accesses
            ]
        )
        return Prediction(accesses, "program", draws=draws, replay=bool(draws))

    def _record(self, batch: Any) -> Prediction:
        tapes: list[Tape] = []

        def recorder(seen: Any) -> Tape:
            tapes.append(Tape(seen))
            return tapes[-1]

        before = self._simulation.shadow.plain_attributes()
        outcome: Outcome = self._simulate(batch, stop_after=self._stop_after, recorder=recorder)
        if self._simulation.shadow.plain_attributes() != before:
            self._irregular = True
            self._programs.refuse("forward changes numbers or strings that its modules hold")
        if outcome.streams is not None:
            self._irregular = True
            self._programs.refuse("forward draws from the generators of NumPy or Python")
        tape = tapes[-1]
        self._irregular |= tape.reads_values
        self._draws |= bool(outcome.draws)
        try:
            rows = [access.ids for access in outcome.accesses if access.ids is not None]
            program = Program(tape, rows, clone_leaves=self._simulation.clones_batch)
        except NotRecorded as reason:
            self._programs.refuse(str(reason))
            return self._prediction(outcome, replay=bool(outcome.draws))
        if outcome.waits:
            return self._prediction(outcome, replay=bool(outcome.draws))
        if outcome.stopped is not None:
            self._programs.refuse(f"the simulation stopped: {outcome.stopped}")
        elif self._programs.refused is None:
            accesses = tuple(access._replace(ids=None) for access in outcome.accesses)
            self._programs.learn(batch, Recording(program, accesses))
        # a branch on a value may depend on any draw
        deciding = set(outcome.draws) if tape.reads_values else program.draw_numbers
        return self._prediction(outcome, replay=bool(deciding), deciding=deciding)

    def _prediction(
        self, outcome: Outcome, *, replay: bool = False, deciding: set[int] | None = None
    ) -> Prediction:
        draws = {n: d for n, d in outcome.draws.items() if deciding is None or n in deciding}
        tier: Tier = "early exit" if outcome.early else "simulation"
        return Prediction(
            outcome.accesses,
            tier,
            outcome.stopped,
            draws,
            replay,
            outcome.cause,
            outcome.waits,
            outcome.streams,
            outcome.dense_reads,
        )

    def _start_over(self) -> None:
        self._stop_after = 0
        self._counts.clear()
        self._programs.forget()
        self._simulation.renew()

    def _strike(self, predicted: Sequence[Access], real: Sequence[tuple[str, Tensor | None]]) -> None:
        self._strikes += 1
        self._start_over()
        # what forward leaves in its modules is followed from batch to batch, unless the loop resets it
        self._afresh = not self._afresh
        if self._strikes == STRIKES:
            self._programs.refuse(f"{STRIKES} predictions were wrong")
        if self._strikes <= STRIKES:
            _log.warning(
                "a prediction of accesses was wrong (%d%s): %s; missing rows are pulled on demand; have the "
                "batch alone decide what forward reads, or give AdaDataLoader `keys=`",
                self._strikes,
                ", not told any more" if self._strikes == STRIKES else "",
                self._difference(predicted, real),
            )

    def _difference(self, predicted: Sequence[Access], real: Sequence[tuple[str, Tensor | None]]) -> str:
        """The first read that was not the one that was foreseen, and where."""
        same = 0
        while same < min(len(predicted), len(real)) and _agree(
            predicted[same : same + 1], real[same : same + 1]
        ):
            same += 1
        if same < len(real):
            name, ids = real[same]
            found = f"{name!r} was read in full" if ids is None else f"rows of {name!r} were read"
        else:
            found = "nothing more was read"
        if same < len(predicted):
            where = predicted[same].where
            other = "other rows of " if same < len(real) and predicted[same].table == real[same][0] else ""
            return (
                f"{found} where {other}{predicted[same].table!r} was foreseen, at {where}{source_line(where)}"
            )
        where = predicted[-1].where if predicted else _beginning(self._simulation.model)
        return f"{found} after all that was foreseen, which ends at {where}{source_line(where)}"


class Together(AbstractContextManager[None]):
    """Several contexts as one, which may be entered again and again."""

    def __init__(self, *contexts: AbstractContextManager[Any]) -> None:
        self._contexts = contexts

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)


def _beginning(model: nn.Module) -> str:
    """``file:line`` of the model's forward."""
    code = getattr(model.forward, "__code__", None)
    return "?" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _call_with_batch(model: nn.Module, batch: Any) -> Any:
    return model(batch)


def _agree(predicted: Sequence[Access], real: Sequence[tuple[str, Tensor | None]]) -> bool:
    """Whether the accesses are the same; rows that cannot be predicted may be any."""
    if len(predicted) != len(real):
        return False
    for access, (table, ids) in zip(predicted, real, strict=True):
        if access.table != table or (access.kind == "full") != (ids is None):
            return False
        if access.ids is None or access.ids is ids:  # the lookup itself has compared the latter
            continue
        if ids is None or access.ids.shape != ids.shape or not torch.equal(access.ids, ids.cpu()):
            return False
    return True
