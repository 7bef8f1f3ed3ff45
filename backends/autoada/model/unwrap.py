"""Conversion of a wrapped model to a plain model."""

from __future__ import annotations

import copy

from torch import nn

from autoada.model.wrapper import AdaModel


def unwrap(model: AdaModel) -> nn.Module:
    """Return a plain copy of the wrapped model with the current weights. The wrapped model can train on.

    All rows of every table are gathered, so the copy has to fit into memory. The call blocks until all rows
    have arrived. A single worker may call it.

    Parameters
    ----------
    model : AdaModel
        Wrapped model, which must be open. It does not change.
    """
    if not isinstance(model, AdaModel):
        raise TypeError(f"model is a {type(model).__name__}: unwrap takes an AdaModel")
    return copy.deepcopy(model)
