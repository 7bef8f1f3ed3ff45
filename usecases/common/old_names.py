"""Old module names of plug-in interfaces, which work for one more version."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["forward"]


def forward(old: str, *modules: str, **renamed: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a renamed module. It finds names in the new modules, with a warning.

    Parameters
    ----------
    old : str
        Name of the old module.
    *modules : str
        Modules that now have its names, in the order of the search.
    **renamed : str
        New names of renamed objects.
    """

    def find(name: str) -> Any:
        if not name.startswith("__"):
            new = renamed.get(name, name)
            for module in map(importlib.import_module, modules):
                if hasattr(module, new):
                    warnings.warn(
                        f"{old}.{name} is now {module.__name__}.{new}; the old name will be removed in the "
                        f"next version",
                        DeprecationWarning,
                        stacklevel=2,
                    )
                    return getattr(module, new)
        raise AttributeError(f"module {old!r} has no attribute {name!r}")

    return find
