"""Back to plain PyTorch."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from autoada.model.call_interception import without_hooks
from autoada.model.wrapper import AdaModel
from autoada.parameters.table_parameter import TableParameter


def unwrap(model: AdaModel) -> nn.Module:
    """A plain copy of the wrapped model with the server's present weights; the wrapped one goes on training.

    Every table is gathered whole, so the copy has to fit into memory. It blocks until all rows are here, and
    any worker may call it alone.

    Parameters
    ----------
    model : AdaModel
        Open; nothing of it changes.
    """
    if not isinstance(model, AdaModel):
        raise TypeError(f"model is a {type(model).__name__}: unwrap takes an AdaModel")
    state = model.state_dict()
    copies: dict[int, Any] = {}
    for name, parameter in model.module.named_parameters():
        if isinstance(parameter, TableParameter):
            copies[id(parameter)] = nn.Parameter(
                state[name].to(parameter.table.device), requires_grad=parameter.requires_grad
            )
    return without_hooks(copy.deepcopy(model.module, copies))
