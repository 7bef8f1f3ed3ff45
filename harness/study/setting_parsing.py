"""Settings of runs in studies and on the command line, derived from the fields of `RunSettings`."""

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from adabench.harness.errors import UsageError
from adabench.harness.study.syntax import as_list, between, checked_text, combinations, parse_networks, switch
from adabench.results.run_settings import RunSettings, Setting

_TEXTS: dict[str, Callable[[str], list[str]]] = {"network": parse_networks}
"""Settings that are texts -> function that parses one or several values from a text."""


@dataclass(frozen=True)
class DeclaredSetting:
    """A field of `RunSettings`.

    Attributes
    ----------
    name : str
        Name of the setting.
    kind : type
        Type of the value: ``int``, ``bool`` or ``str``.
    least, most : int
        Limits of an ``int``, both included.
    default : object
        Value in studies without this setting.
    about : Setting
        Declaration of the setting.
    """

    name: str
    kind: type
    least: int
    most: int
    default: Any
    about: Setting

    def read(self, value: Any) -> list[Any]:
        """The checked values that a study file or the command line gives, at least one."""
        values = [value]
        if self.about.several:
            split = self.kind is int and isinstance(value, str)
            values = value.split(",") if split else as_list(value)
        if not values:
            raise UsageError("at least one value is needed")
        if self.kind is bool:
            return [switch(one) for one in values]
        if self.kind is int:
            return [between(self.least, one, self.most) for one in values]
        return [found for one in values for found in _TEXTS[self.name](checked_text(one))]

    def check(self, given: Mapping[str, list[Any]]) -> None:
        """Refuse values that require another setting; `given` has the values of all settings."""
        needed, meant = self.about.needs, [value for value in given[self.name] if value]
        if needed is not None and meant and not any(given[needed]):
            raise UsageError(f"{meant[0]} {self.about.because}: also set {needed}")


def combined_settings(values: Mapping[str, list[Any]]) -> list[RunSettings]:
    """Every combination of one value per setting."""
    return [RunSettings(**chosen) for chosen in combinations(values)]


def _declared() -> Iterator[DeclaredSetting]:
    hints = typing.get_type_hints(RunSettings, include_extras=True)
    for field in msgspec.structs.fields(RunSettings):
        kind, *notes = typing.get_args(hints[field.name])
        (about,) = (note for note in notes if isinstance(note, Setting))
        limits = next((note for note in notes if isinstance(note, msgspec.Meta)), msgspec.Meta())
        default = about.default if field.default is msgspec.NODEFAULT else field.default
        least, most = int(limits.ge or 0), int(limits.le or 0)
        yield DeclaredSetting(field.name, kind, least, most, default, about)


SETTINGS = {one.name: one for one in _declared()}
"""Name -> setting, in the order of display."""
