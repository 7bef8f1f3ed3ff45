"""Checks of parameters."""

import os
from collections.abc import Iterable, Mapping

import msgspec

from adabench.usecases.interface import DataError


def require_sizes(params: msgspec.Struct, names: Iterable[str]) -> None:
    """Raise `ValueError` unless these fields are at least 1. All elements of tuples are checked."""
    for name in names:
        value = getattr(params, name)
        several = isinstance(value, tuple)
        sizes = {f"{name}[{index}]": size for index, size in enumerate(value)} if several else {name: value}
        for where, size in sizes.items():
            if size < 1:
                raise ValueError(f"{where} is {size}: it must be 1 or more")


def require_positive(params: msgspec.Struct, names: Iterable[str]) -> None:
    """Raise `ValueError` unless these fields are positive and finite."""
    for name in names:
        if not 0 < (number := getattr(params, name)) < float("inf"):
            raise ValueError(f"{name} is {number}: it must be a positive number")


def require_weight(params: msgspec.Struct, names: Iterable[str]) -> None:
    """Raise `ValueError` unless these fields are finite and not negative."""
    for name in names:
        if not 0 <= (number := getattr(params, name)) < float("inf"):
            raise ValueError(f"{name} is {number}: it must be 0 or a positive number")


def require_numbered(keys: str, placement: str, by_rows: Iterable[str]) -> None:
    """Raise `ValueError` if keys are hashed and samples are assigned by row numbers, as `by_rows` do."""
    if keys == "hash" and placement in by_rows:
        raise ValueError(
            f"placement is {placement!r}, which needs row numbers: use keys=dense or another one"
        )


def require_choice(params: msgspec.Struct, choices: Mapping[str, Iterable[str]]) -> None:
    """Raise `ValueError` unless each of these fields has one of its valid values."""
    for name, known in choices.items():
        if (value := getattr(params, name)) not in known:
            raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(known)}")


def require_memory(name: str, number: int, bytes_each: float) -> None:
    """Raise `DataError` if data of this many samples, of a parameter, cannot be generated in memory."""
    most = int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // bytes_each)
    if number > most:
        raise DataError(f"{name} is {number}: no more than {most} can be generated in this machine's memory")
