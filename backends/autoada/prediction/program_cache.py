"""Access programs of a model, learned from recorded simulations and dropped if one may be wrong."""

from __future__ import annotations

from collections import OrderedDict, deque
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

    @property
    def key(self) -> Any:
        """Key that is equal for equivalent programs."""
        return self.compiled.key, [(access.table, access.kind) for access in self.accesses]


class ProgramCache:
    """Programs of one model."""

    def __init__(self) -> None:
        self.refused: str | None = None
        """Reason why no program is used, now or in general."""
        self._usable: deque[tuple[Signature, AccessProgram]] = deque(maxlen=SIGNATURES)
        """Programs in use, with the properties of the batches that they fit; the newest first."""
        self._by_signature: OrderedDict[Signature, tuple[AccessProgram, int]] = OrderedDict()
        self._recorded = 0
        self.used = 0
        """Number of batches with a program."""

    def find(self, batch: Any) -> AccessProgram | None:
        """Return the program for `batch`, if there is one."""
        found = next((program for shape, program in self._usable if fits(batch, shape)), None)
        self.used += found is not None
        return found

    def learn(self, batch: Any, program: AccessProgram) -> None:
        """Learn the program that was recorded for `batch`."""
        if program.compiled.obstacle is not None:
            self.refuse(program.compiled.obstacle)
            return
        shape = signature(batch)
        known, confirmations = self._by_signature.get(shape, (program, 0))
        if known.key != program.key:
            self.refuse("batches of the same shape take different ways through forward")
            return
        self._recorded += 1
        self._by_signature[shape] = (program, confirmations + 1)
        if len(self._by_signature) > SIGNATURES:
            self._by_signature.popitem(last=False)
        if confirmations + 1 >= CONFIRMED:
            self._usable.appendleft((shape, program))
        shapes = [other for other, (same, _) in self._by_signature.items() if same.key == program.key]
        general = common(shapes) if len(shapes) >= AGREEING else None
        if general is not None:
            self._usable.appendleft((general, program))
        elif self._recorded > GIVE_UP and self.used < self._recorded:
            self.refuse("the way from batch to ids changes with every shape")

    def refuse(self, reason: str) -> None:
        """Use no program from now on."""
        self.refused = reason
        self.forget()

    def forget(self) -> None:
        """Begin again after a wrong prediction."""
        self._usable.clear()
        self._by_signature.clear()
        self._recorded = self.used = 0
