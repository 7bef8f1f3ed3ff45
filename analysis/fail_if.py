"""Conditions that make a comparison a regression, such as ``ratio_low > 1.03``."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from adabench.analysis.compare import Comparison
from adabench.results.record import RecordError


@dataclass(frozen=True)
class Condition:
    """Condition that makes a comparison a regression, such as ``ratio_low > 1.03``.

    An undefined bound never fulfils the condition, so check first whether there is a verdict.
    """

    text: str
    terms: tuple[tuple[str, Callable[[float, float], bool], float], ...]

    def __call__(self, comparison: Comparison) -> bool:
        return all(holds(float(getattr(comparison, name)), bound) for name, holds, bound in self.terms)


_OPERATORS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_NAMES = ("ratio", "ratio_low", "ratio_high", "p", "n")


def parse_condition(text: str) -> Condition:
    """Parse comparisons of ratio, ratio_low, ratio_high, p and n with numbers, joined by ``and``.

    Raises
    ------
    RecordError
        If a part is not of that form.
    """
    terms = []
    for part in text.split(" and "):
        match = re.fullmatch(
            r"\s*(\w+)\s*(>=|<=|>|<)\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e-?[0-9]+)?)\s*", part
        )
        if match is None or match[1] not in _NAMES:
            raise RecordError(
                f"{part.strip()!r} is not a condition: compare one of {', '.join(_NAMES)} with a number, "
                "such as ratio_low > 1.03"
            )
        terms.append((match[1], _OPERATORS[match[2]], float(match[3])))
    return Condition(text, tuple(terms))
