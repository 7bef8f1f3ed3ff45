"""All cases by library."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from adabench.backends.external._shared import is_installed

from .case import Case


@dataclass(frozen=True)
class Library:
    """The module of a library's cases, and the package that they need.

    Attributes
    ----------
    module : str
        The module of the cases, in this folder.
    package : str or None
        The package that is imported; None for our own models.
    """

    module: str
    package: str | None

    @property
    def installed(self) -> bool:
        """Whether the cases can be trained here."""
        return self.package is None or is_installed(self.package)

    def cases(self) -> tuple[Case, ...]:
        """The cases; only training them imports the library."""
        cases: tuple[Case, ...] = importlib.import_module(f".{self.module}", __package__).CASES
        return cases


LIBRARIES = {
    "own": Library("own_models", None),
    "torch_geometric": Library("geometric_models", "torch_geometric"),
    "torchfm": Library("torchfm_models", "torchfm"),
    "deepctr_torch": Library("deepctr_models", "deepctr_torch"),
    "torch_rechub": Library("rechub_models", "torch_rechub"),
    "recbole": Library("recbole_models", "recbole"),
    "pykeen": Library("pykeen_models", "pykeen"),
    "transformers": Library("transformers_models", "transformers"),
    "x_transformers": Library("x_transformers_models", "x_transformers"),
}
