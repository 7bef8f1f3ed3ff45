"""Every public name in the reference has a docstring that describes its arguments or fields."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

MODULES = [
    "adaps",
    "adaps.checkpoint",
    "adaps.policy",
    "autoada",
    "adabench.backends.interface",
    "adabench.backends.policies.interface",
    "adabench.usecases.interface",
    "adabench.results.record",
    "adabench.results.run_settings",
]


class Documented(NamedTuple):
    """A public object, and the arguments or fields that its docstring has to name."""

    name: str
    doc: str
    arguments: tuple[str, ...]


def public(module_name: str) -> Iterator[Documented]:
    """All public classes and functions of a module, and what its classes define themselves."""
    module = importlib.import_module(module_name)
    own = [name for name, value in vars(module).items() if _is_own(value, module_name)]
    for name in getattr(module, "__all__", own):
        value = getattr(module, name)
        where = f"{module_name}.{name}"
        if inspect.isclass(value):
            described = "\n".join(_doc(base) for base in value.__mro__ if base.__module__ == value.__module__)
            yield Documented(where, described, _fields(value))
            for member, defined in vars(value).items():
                inherited = any(
                    member in vars(base) and _doc(vars(base)[member]) for base in value.__mro__[1:]
                )
                if not member.startswith("_") and not inherited:
                    yield from _member(f"{where}.{member}", defined)
        elif inspect.isroutine(value):
            yield Documented(where, _doc(value), _arguments(value))


def _is_own(value: Any, module_name: str) -> bool:
    described = inspect.isclass(value) or inspect.isfunction(value)
    return described and value.__module__ == module_name and not value.__name__.startswith("_")


def _member(where: str, defined: Any) -> Iterator[Documented]:
    if isinstance(defined, (classmethod, staticmethod)):
        defined = defined.__func__
    if isinstance(defined, property):
        yield Documented(where, _doc(defined), ())
    elif inspect.isroutine(defined):
        yield Documented(where, _doc(defined), _arguments(defined))


def _doc(value: Any) -> str:
    """The docstring, without the signature that pybind11 puts before it."""
    doc = inspect.cleandoc(getattr(value, "__doc__", None) or "")
    if re.match(r"\w+\(.*\)( -> .*)?$", doc.split("\n")[0]):
        doc = doc.partition("\n")[2].strip()
    return doc


def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:  # functions of pybind11
        (signature,) = re.findall(r"\((.*)\) -> ", (function.__doc__ or "").split("\n")[0])
        names = re.findall(r"(\w+): ", signature)
    return tuple(name for name in names if name not in ("self", "cls"))


def _fields(value: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value) if not field.name.startswith("_"))
    if issubclass(value, msgspec.Struct):
        inherited = getattr(value.__base__, "__struct_fields__", ())  # its own docstring describes them
        return tuple(name for name in value.__struct_fields__ if name not in inherited)
    if issubclass(value, tuple):
        return tuple(getattr(value, "_fields", ()))
    own = vars(value).get("__init__")
    if not inspect.isfunction(own) or "_no_init" in own.__name__ or issubclass(value, BaseException):
        return ()  # a protocol's __init__ is only a placeholder
    return _arguments(own)


def _told(doc: str) -> set[str]:
    """Names in a section of parameters or attributes, and names in backticks."""
    listed = re.findall(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: : |$)", doc, re.MULTILINE)
    return {name.strip("* ") for names in listed for name in names.split(",")} | set(
        re.findall(r"`(\w+)`", doc)
    )


@pytest.mark.parametrize("module", MODULES)
def test_every_argument_and_field_is_described(module: str) -> None:
    found = list(public(module))
    assert len(found) > 1
    assert [
        f"{one.name}: {name}" for one in found for name in one.arguments if name not in _told(one.doc)
    ] == []
