"""Selection of the parameters of a model that are tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from autoada.hash_embedding import HashEmbedding

LARGE = 1024
"""Minimum number of rows at which a parameter that is read by rows should be a table."""
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag, HashEmbedding)


def find_tables(model: nn.Module, names: Iterable[str] | None = None) -> dict[str, nn.Parameter]:
    """Return the tables of `model` by qualified name.

    Parameters
    ----------
    model : nn.Module
        Model with the parameters.
    names : iterable of str, optional
        Names of parameters that are tables although no embedding module owns them. The weights of all
        `nn.Embedding`, `nn.EmbeddingBag` and `HashEmbedding` modules are tables in any case.

    Returns
    -------
    dict of str to nn.Parameter
        Tables in the order of ``model.named_parameters()``. A tied parameter occurs once, under its first
        name. A parameter without elements is no table.

    Raises
    ------
    ValueError
        If there is no parameter of a given name, or it has less than two dimensions.
    """
    owned = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, _EMBEDDINGS) and not parametrize.is_parametrized(module, "weight")
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
    return {name: p for name, p in model.named_parameters() if id(p) in owned and p.numel() > 0}


def hash_embeddings(model: nn.Module) -> dict[str, HashEmbedding]:
    """Return the `HashEmbedding` modules of `model` by the qualified names of their weights.

    Raises
    ------
    ValueError
        If another module uses the weight of such a module: its row numbers mean other rows.
    """
    found: dict[int, HashEmbedding] = {}
    for module in model.modules():
        if isinstance(module, HashEmbedding) and not parametrize.is_parametrized(module, "weight"):
            found.setdefault(id(module.weight), module)
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(path, recurse=False):
            first = found.get(id(parameter))
            if first is not None and getattr(module, "id_map", None) is not first.id_map:
                raise ValueError(
                    f"{name!r} is also the weight of a HashEmbedding, which alone can number its rows: use "
                    "this module in both places"
                )
    return {name: found[id(p)] for name, p in model.named_parameters() if id(p) in found}


def hidden_tables(model: nn.Module, tables: Iterable[str] = ()) -> dict[str, str]:
    """Return remedies for large embedding weights that cannot be tables, by qualified name."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            kind = getattr(module, "original_name", "")
            if kind in {each.__name__ for each in _EMBEDDINGS} and len(module.weight) >= LARGE:
                found[f"{path}.weight".removeprefix(".")] = (
                    "TorchScript reads it without any Python call: give AdaModel the module before it is "
                    "scripted, or look rows up in a parameter that is given as `tables=[…]`"
                )
        elif isinstance(module, _EMBEDDINGS) and parametrize.is_parametrized(module, "weight"):
            originals: Any = module.parametrizations["weight"]  # type: ignore[index]
            prefix = f"{path}.parametrizations.weight".removeprefix(".")
            for name, parameter in originals.named_parameters(prefix, recurse=False):
                if parameter.dim() > 1 and len(parameter) >= LARGE:
                    found[name] = (
                        "its parametrization reads all of it: look rows up in a parameter that is given as "
                        "`tables=[…]`, and apply the parametrization to these"
                    )
    return {name: reason for name, reason in found.items() if name not in set(tables)}
