"""Access programs of a model, learned from recorded simulations and dropped if one may be wrong."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from autoada.prediction.batch_structure import Signature, common, fits, signature
from autoada.prediction.compiled_program import CompiledProgram
from autoada.prediction.result import Access

AGREEING = 3
"""Number of recorded batches with the same program before it is used for other shapes."""
CONFIRMED = 2
"""Number of recorded batches of one signature with the same program before it is used for this signature."""
GIVE_UP = 12
"""Number of recordings after which a model whose programs keep changing is simulated without program."""
SIGNATURES = 64


class AccessProgram(NamedTuple):
    """A compiled program, and the accesses with the ids that it computes, in order."""

    compiled: CompiledProgram
    accesses: tuple[Access, ...]

    def same_as(self, other: AccessProgram) -> bool:
        """Return whether both programs are equivalent."""
        mine, others = ([(a.table, a.kind) for a in r.accesses] for r in (self, other))
        return self.compiled.key == other.compiled.key and mine == others


class ProgramCache:
    """Programs of one model."""

    def __init__(self) -> None:
        self.refused: str | None = None
        """Reason why no program is used, now or in general."""
        self._general: tuple[Signature, AccessProgram] | None = None
        self._recent: tuple[Signature, AccessProgram] | None = None
        self._by_signature: OrderedDict[Signature, tuple[AccessProgram, int]] = OrderedDict()
        self._recorded = 0
        self.used = 0
        """Number of batches that were predicted by a program."""

    def find(self, batch: Any) -> AccessProgram | None:
        """Return the program for `batch`, if there is one."""
        found = next((each for each in (self._recent, self._general) if each and fits(batch, each[0])), None)
        if found is None and self._by_signature:
            shape = signature(batch)
            program, confirmations = self._by_signature.get(shape, (None, 0))
            if program is not None and confirmations >= CONFIRMED:
                found = self._recent = (shape, program)  # A check is faster than the signature of each batch.
        return found[1] if found is not None else None

    def learn(self, batch: Any, program: AccessProgram) -> None:
        """Learn the program that was recorded for `batch`."""
        if program.compiled.obstacle is not None:
            self.refuse(program.compiled.obstacle)
            return
        shape = signature(batch)
        known, confirmations = self._by_signature.get(shape, (program, 0))
        if not known.same_as(program):
            self.refuse("batches of the same shape take different ways through forward")
            return
        self._recorded += 1
        self._by_signature[shape] = (program, confirmations + 1)
        if len(self._by_signature) > SIGNATURES:
            self._by_signature.popitem(last=False)
        shapes = [shape for shape, (other, _) in self._by_signature.items() if other.same_as(program)]
        shape_of_all = common(shapes) if len(shapes) >= AGREEING else None
        if shape_of_all is not None:
            self._general = (shape_of_all, program)
        if self._general is None and self._recorded > GIVE_UP and self.used < self._recorded:
            self.refuse("the way from batch to ids changes with every shape")

    def refuse(self, reason: str) -> None:
        """Use no program from now on."""
        self.refused = reason
        self.forget()

    def forget(self) -> None:
        """Begin again after a wrong prediction."""
        self._general = self._recent = None
        self._by_signature.clear()
        self._recorded = self.used = 0
