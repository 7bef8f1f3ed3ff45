"""Speculation on values that depend on parameters and reach Python: each is assumed not to change."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoada.prediction.batch_structure import same_values
from autoada.prediction.operations import Arguments, CallMode, Keywords, Kind, TorchFunction, kind_of, name_of
from autoada.prediction.source_location import user_location
from autoada.prediction.unknown_values import forms_in

WRONG = 3
"""Number of wrong speculations, minus forgiven ones, after which speculation ends."""
FORGIVEN_AFTER = 32
"""Number of right predictions that compensate for a wrong one."""
SETTLED = 8
"""Number of forward passes without new values after which the real forward is not observed any more."""
PATIENCE = 8
"""Maximum number of forward passes without the value that a simulation waits for."""
LARGEST = 4096
"""Maximum number of values of a list or array that is stored."""
BOOLEAN_INDEX = "boolean index"
_MASKS = (torch.bool, torch.uint8)
_transformed = torch._C._functorch.is_functorch_wrapped_tensor

Place = tuple[str, str]
"""Name of an operation, and ``file:line`` of the user's source."""

_log = logging.getLogger("autoada")


class Places:
    """Counts how often each place was passed in one forward."""

    def __init__(self) -> None:
        self._passed: Counter[Place] = Counter()

    def next(self, name: str) -> tuple[Place, int]:
        """Return the place of the current operation, and the number of earlier passes of this place."""
        place = (name, user_location())
        number = self._passed[place]
        self._passed[place] += 1
        return place, number


class Speculation:
    """Stores the last value of the real forward at each place where simulations need a value.

    Every prediction is compared with the reads of the real forward, so a wrong value is detected. The batch
    with the wrong value has no correct intent.
    """

    def __init__(self, possible: bool = True) -> None:
        self.possible = possible
        """Whether values are assumed. After `WRONG` wrong speculations they are not."""
        self.used = False
        """Whether a simulation has used an assumed value since the last wrong one."""
        self._expects_finite = True
        self._values: dict[Place, list[Any]] = {}
        self._asked: dict[Place, int] = {}
        self.watching = False
        """Whether values of the real forward are recorded."""
        self._news = False
        self._quiet = 0
        self._passes = 0
        self._wrong = 0
        self._right = 0

    def value_at(self, place: Place, number: int) -> Any:
        """Return the last value of the real forward at this place; None if it is unknown."""
        if not self.possible:
            return None
        values = self._values.get(place)
        if not values:
            self.watching = True
            self._asked.setdefault(place, self._passes)
            return None
        self.used = True
        return values[min(number, len(values) - 1)]

    def expects_finite(self, place: Place) -> bool:
        """Return whether a check of unknown values at this place is assumed to find only finite ones."""
        if self._expects_finite and self.possible:
            self.used = True
            self._asked.setdefault(place, self._passes)
        return self._expects_finite

    def waits_for(self, place: Place) -> bool:
        """Return whether the value at this place may still become known."""
        return self.possible and self._passes - self._asked.get(place, self._passes) < PATIENCE

    def note(self, place: Place, number: int, value: Any) -> None:
        """Record the `value` of the real forward at a place."""
        values = self._values.setdefault(place, [])
        if place in self._asked and (number >= len(values) or not same_values(values[number], value)):
            self._quiet = 0
            self._news |= not values
        values[number:] = [value]

    def right(self, *, needed: bool) -> None:
        """Count a prediction that was right or stopped; `needed` is whether simulations read values."""
        self._passes += 1
        self._right += 1
        if self._right % FORGIVEN_AFTER == 0:
            self._wrong = max(0, self._wrong - 1)
        self._quiet = self._quiet + 1 if needed else SETTLED
        if self._quiet >= SETTLED:
            self.watching = False

    def news(self) -> bool:
        """Return whether values for which simulations wait have arrived since the last call."""
        news, self._news = self._news, False
        return news

    def wrong(self) -> None:
        """Count a wrong prediction with assumed values."""
        self._passes += 1
        self._wrong += 1
        self._right = 0
        self._expects_finite = False
        self._values.clear()
        self._asked = dict.fromkeys(self._asked, self._passes)
        self.used, self.watching, self._quiet = False, True, 0
        places = ", ".join(f"`{name}` at {where}" for name, where in self._asked)
        if self._wrong >= WRONG:
            self.possible = self.watching = False
            _log.warning(
                "forward reads rows by values that depend on parameters (%s), which were assumed wrongly %d "
                "times: prediction stops there from now on, later rows are pulled on demand; decide by the "
                "batch alone where possible",
                places,
                self._wrong,
            )
        elif self._wrong == 1:
            _log.warning(
                "a prediction was wrong because of a value that depends on parameters (%s); missing rows are "
                "pulled on demand; decide by the batch alone where possible",
                places,
            )


class Watch(CallMode):
    """Context of the real forward passes of one batch, which records values that simulations need."""

    def __init__(self, speculation: Speculation) -> None:
        super().__init__()
        self._speculation = speculation
        self._places = Places()
        self._entered = False

    def __enter__(self) -> Watch:
        self._entered = self._speculation.watching
        if self._entered:
            super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        if self._entered:
            self._entered = False
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def call(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        output = func(*args, **kwargs)
        kind = kind_of(func)
        if kind is Kind.VALUE:
            self._note(name_of(func), _copied(output))
        elif kind is Kind.DATA_SHAPED:
            self._note(name_of(func), forms_in(output))
        elif kind is Kind.GET_ITEM:
            for part in args[1] if type(args[1]) is tuple else args[1:]:
                if isinstance(part, Tensor) and part.dtype in _MASKS and not _transformed(part):
                    self._note(BOOLEAN_INDEX, int(part.count_nonzero()))
        return output

    def _note(self, name: str, value: Any) -> None:
        place, number = self._places.next(name)
        if value is not None:
            self._speculation.note(place, number, value)


def _copied(value: Any) -> Any:
    """Return a copy that can be returned repeatedly; None if the value is too large to store."""
    if isinstance(value, np.ndarray):
        return value.copy() if value.size <= LARGEST else None
    if isinstance(value, list):
        return value if len(value) <= LARGEST else None
    return value
