"""Old module names of plug-in interfaces, which work for one more version."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["forward"]


def forward(old: str, *modules: str, **renamed: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module that has moved: finds each name in its new place, with a warning.

    Parameters
    ----------
    old : str
        Name of the old module.
    *modules : str
        Modules that now have its names, in the order in which they are searched.
    **renamed : str
        New names of those that have changed.
    """

    def find(name: str) -> Any:
        if not name.startswith("__"):
            new = renamed.get(name, name)
            for module in map(importlib.import_module, modules):
                if hasattr(module, new):
                    warnings.warn(
                        f"{old}.{name} is now {module.__name__}.{new}; the old name goes in the next version",
                        DeprecationWarning,
                        stacklevel=2,
                    )
                    return getattr(module, new)
        raise AttributeError(f"module {old!r} has no attribute {name!r}")

    return find
