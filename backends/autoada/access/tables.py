"""Which parameters of a model are tables."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


def find_tables(model: nn.Module, names: Iterable[str] | None = None) -> dict[str, nn.Parameter]:
    """The tables of `model` by qualified name.

    Parameters
    ----------
    model : nn.Module
        Any model.
    names : iterable of str, optional
        Names of parameters that are tables although no embedding module owns them. The weights of all
        `nn.Embedding` and `nn.EmbeddingBag` modules are tables in any case.

    Returns
    -------
    dict of str to nn.Parameter
        In the order of ``model.named_parameters()``; a tied parameter once, under its first name.

    Raises
    ------
    ValueError
        If there is no parameter of a given name, or it has less than two dimensions.
    """
    owned = {
        id(module.weight) for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    }
    by_name = dict(model.named_parameters(remove_duplicate=False))
    for name in names or ():
        if name not in by_name:
            raise ValueError(f"the model has no parameter {name!r}; it has {', '.join(by_name)}")
        if by_name[name].dim() < 2:
            raise ValueError(
                f"the parameter {name!r} has {by_name[name].dim()} dimension; a table has at least two"
            )
        owned.add(id(by_name[name]))
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in owned}
