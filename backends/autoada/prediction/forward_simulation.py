"""Runs a model's meta model on a batch and collects the accesses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autoada.prediction.batch_structure import copied
from autoada.prediction.meta_model import MetaModel
from autoada.prediction.random_generators import SimulationRng
from autoada.prediction.result import Prediction
from autoada.prediction.source_location import source_line, user_location
from autoada.prediction.speculation import Speculation
from autoada.prediction.symbolic_forward import SymbolicForward
from autoada.prediction.trace import Trace
from autoada.prediction.unknown_values import ForeignWrite, UnknownValueRead

Call = Callable[[nn.Module, Any], Any]
"""Function ``call(model, batch)`` with which a training loop passes a batch to its model."""

SAVES_FOR_BACKWARD = "Inference tensors cannot be saved for backward"
"""Message of torch if forward prepares a backward pass, for example by checkpointing."""


class ForwardSimulation:
    """Runs symbolic forwards of one model, one batch at a time and in the order of the batches."""

    def __init__(self, model: nn.Module, tables: Mapping[int, str], call: Call) -> None:
        self.model = model
        self._tables = tables
        self._call = call
        self.rng = SimulationRng()
        """State of the global generators at the start of simulations."""
        self._protect = True
        self._gradients = True
        self.clones_batch = False
        """Whether forward writes into its batch, so that simulations receive a copy."""
        self.meta_model = MetaModel(model, tables)
        self.speculation = Speculation(possible=not self.meta_model.compiled)

    def renew(self) -> None:
        """Create a new meta model from the live model."""
        self.meta_model = MetaModel(self.model, self._tables)

    def of_next_forward(self) -> ForwardSimulation:
        """Return a simulation of the live model and generators, which does not change this one."""
        other = copy.copy(self)
        other.rng, other.speculation = copy.deepcopy((self.rng, self.speculation))
        other.rng.next = None
        other.renew()
        return other

    def run(
        self, batch: Any, *, record: bool = False, explain: bool = False
    ) -> tuple[Prediction, Trace | None]:
        """Simulate the forward of `batch`; with `record`, also return the trace of its real operations.

        If a write has to be redirected first, the simulation starts again with a new trace.
        """
        start = self.rng.next
        state = self.meta_model.state()
        adopted: set[int] = set()
        while True:
            seen = copied(batch, _clone) if self.clones_batch else copied(batch)
            trace = Trace(seen) if record else None
            forward = SymbolicForward(
                self.meta_model,
                self.speculation,
                self.rng,
                protect=self._protect,
                trace=trace,
                explain=explain,
            )
            written: int | None = None
            try:
                prediction = self._attempt(forward, seen)
                if not self._starts_again(forward, prediction):
                    return prediction, trace
            except ForeignWrite as write:
                written = write.storage
            self.rng.next = start
            self.meta_model.restore(state)
            for storage in adopted:
                self.meta_model.adopt(storage)
            if written is not None:
                if self.meta_model.adopt(written):
                    adopted.add(written)
                else:
                    self._redirect()

    def _starts_again(self, forward: SymbolicForward, prediction: Prediction) -> bool:
        """Return whether the simulation needs other settings, and change them."""
        if self._gradients and SAVES_FOR_BACKWARD in str(prediction.cause):
            self._gradients = False  # The model must see that no gradients are wanted.
            return True
        if forward.draws and forward.left_draws and not self.rng.draws_all:
            self.rng.draws_all = True
            return True
        unfinished = prediction.stopped is not None and not prediction.waits
        if forward.draws and unfinished and self.rng.foresees_draws:
            self.rng.foresees_draws = False  # The draws of the following batches are also unknown.
            return True
        return False

    def _attempt(self, forward: SymbolicForward, batch: Any) -> Prediction:
        stopped, waits = None, False
        cause: BaseException | None = None
        try:
            # The model may ask whether gradients are wanted.
            with self.rng.kept(), torch.inference_mode(), torch.set_grad_enabled(self._gradients), forward:
                self._call(self.meta_model.module, batch)
        except UnknownValueRead as read:
            stopped, cause, waits = str(read), read, self.speculation.waits_for(read.place)
        except Exception as error:  # It is reported with its place in the user's code; training continues.
            where = user_location(error)
            stopped, cause = f"{type(error).__name__}: {error}, at {where}{source_line(where)}", error
        on_host = self.rng.drew_on_host
        if on_host and not self.rng.foresees_draws:
            return Prediction((), stopped="forward draws from the generators of NumPy or Python")
        return Prediction(
            tuple(forward.values.accesses),
            "simulation",
            stopped,
            forward.draws > 0 or on_host,
            cause=cause,
            waits=waits,
            dense_reads=tuple(forward.values.dense_reads.items()),
        )

    def _redirect(self) -> None:
        """Let a write to memory that is not the model's go to a copy from now on."""
        if self.clones_batch:  # The memory belongs to neither the batch nor the model.
            self._protect = False
        self.clones_batch = True


def _clone(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf.copy()
    with torch.inference_mode():
        return leaf.clone()
