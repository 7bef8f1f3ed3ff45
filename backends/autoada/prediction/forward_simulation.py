"""Runs a model's shadow on a batch and collects the accesses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autoada.prediction.batch_structure import copied
from autoada.prediction.interrupts import EnoughSeen, ForeignWrite, UnknownValueRead
from autoada.prediction.meta_model import MetaModel
from autoada.prediction.result import Access, Draw
from autoada.prediction.rng_snapshot import RngSnapshot, SimulationRng
from autoada.prediction.source_location import is_internal, source_line, user_location
from autoada.prediction.speculation import Speculation
from autoada.prediction.symbolic_forward import SymbolicForward
from autoada.prediction.unknown_values import Recorder

Call = Callable[[nn.Module, Any], Any]
"""``call(model, batch)``: how a training loop hands a batch to its model."""


SAVES_FOR_BACKWARD = "Inference tensors cannot be saved for backward"
"""What torch says where forward prepares a backward pass, as checkpointing does."""


@dataclass(frozen=True)
class Outcome:
    """What one simulation found, and how it ended."""

    accesses: tuple[Access, ...]
    draws: Mapping[int, Draw]
    early: bool = False
    stopped: str | None = None
    cause: BaseException | None = None
    waits: bool = False
    rng: RngSnapshot | None = None
    dense_reads: tuple[tuple[str, str], ...] = ()


class ForwardSimulation:
    """Ghost forwards of one model, one batch at a time and in batch order.

    Parameters
    ----------
    model : nn.Module
        The live model; it is only read.
    tables : mapping of int to str
        ``id(parameter)`` -> qualified name.
    call : callable
        ``call(model, batch)``.
    """

    def __init__(self, model: nn.Module, tables: Mapping[int, str], call: Call) -> None:
        self._model = model
        self._tables = tables
        self._call = call
        self._generator = torch.Generator().manual_seed(torch.initial_seed() % 2**63)
        self._rng = SimulationRng()
        self._protect = True
        self._gradients = True
        self.clones_batch = False
        """Whether forward writes into its batch, so that simulations get a copy."""
        self.meta_model = MetaModel(model, tables)
        self.speculation = Speculation(possible=not self.meta_model.compiled)

    @property
    def generator(self) -> torch.Generator:
        """The private source of random draws."""
        return self._generator

    @property
    def model(self) -> nn.Module:
        """The live model."""
        return self._model

    def renew(self) -> None:
        """Take a fresh shadow from the live model."""
        self.meta_model = MetaModel(self._model, self._tables)

    def run(
        self,
        batch: Any,
        *,
        stop_after: int = 0,
        recorder: Callable[[Any], Recorder] | None = None,
        explain: bool = False,
    ) -> Outcome:
        """Simulate the forward of `batch`.

        `recorder` makes a fresh recorder for the copy of the batch that the forward sees; the simulation is
        started over when a write has to be redirected first.
        """
        while True:
            seen = copied(batch, _clone) if self.clones_batch else copied(batch)
            mode = SymbolicForward(
                self.meta_model,
                self._generator,
                stop_after=stop_after,
                protect=self._protect,
                recorder=None if recorder is None else recorder(seen),
                explain=explain,
                speculation=self.speculation,
            )
            try:
                return self._attempt(mode, seen)
            except ForeignWrite as write:
                self._redirect(write.storage)
            except _NothingToSave:
                self._gradients = False

    def _attempt(self, mode: SymbolicForward, batch: Any) -> Outcome:
        early, stopped, waits = False, None, False
        cause: BaseException | None = None
        try:
            # forward may ask whether gradients are wanted
            with (
                self._rng.kept(),
                torch.inference_mode(),
                torch.set_grad_enabled(self._gradients),
                mode,
            ):
                self._call(self.meta_model.module, batch)
        except EnoughSeen:
            early = True
        except UnknownValueRead as escape:
            stopped, cause, waits = str(escape), escape, self.speculation.waits_for(escape.place)
        except (
            Exception
        ) as error:  # the user's code, on ghosts: reported with its place, and training goes on
            if self._gradients and SAVES_FOR_BACKWARD in str(error):
                raise _NothingToSave from error
            where = _innermost(error)
            stopped, cause = f"{type(error).__name__}: {error}, at {where}{source_line(where)}", error
        return Outcome(
            tuple(mode.accesses),
            mode.draws,
            early,
            stopped,
            cause,
            waits,
            self._rng.start,
            tuple(mode.dense_reads.items()),
        )

    def _redirect(self, storage: int) -> None:
        """Make sure that the write which was just refused goes to a copy from now on."""
        if self.meta_model.adopt(storage):
            return
        if self.clones_batch:  # memory of neither the batch nor the model
            self._protect = False
        self.clones_batch = True


class _NothingToSave(Exception):
    """Forward has to be told that no gradients are wanted."""


def _clone(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


def _innermost(error: BaseException) -> str:
    """``file:line`` of the user's frame that is nearest to where `error` was raised."""
    where = user_location()
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not is_internal(name):
            where = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where
