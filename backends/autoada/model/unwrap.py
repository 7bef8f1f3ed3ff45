"""Back to plain PyTorch."""

from __future__ import annotations

import copy

from torch import nn

from autoada.model.wrapper import AdaModel


def unwrap(model: AdaModel) -> nn.Module:
    """A plain copy of the wrapped model with the server's present weights; the wrapped model can train on.

    Every table is gathered whole, so the copy has to fit into memory. It blocks until all rows are here, and
    any worker may call it alone.

    Parameters
    ----------
    model : AdaModel
        Open; nothing of it changes.
    """
    if not isinstance(model, AdaModel):
        raise TypeError(f"model is a {type(model).__name__}: unwrap takes an AdaModel")
    return copy.deepcopy(model)
