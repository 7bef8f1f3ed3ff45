"""Outputs of operations on unknown values, from a memo or from torch's meta kernels.

Many of torch's meta kernels are Python and take 50 to 800 µs, so outputs are remembered by the shapes, dtypes
and plain values of the arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autoada.prediction.operations import Arguments, Keywords, TorchFunction, name_of, with_device
from autoada.prediction.unknown_values import UnknownValues, form_of, forms_in, unknowns_in

_PACKING = {"_pack_padded_sequence", "_pad_packed_sequence"}
"""Operations whose integer outputs depend only on real lengths."""
_MEMO_LIMIT = 4096
_memo: dict[Any, Any] = {}


def meta_output(values: UnknownValues, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
    """Return the output of an operation on meta tensors, or on zeros if torch has no meta kernel."""
    key = None if kwargs.get("out") is not None else _key((func, args, tuple(kwargs.items())))
    try:
        known = _memo.get(key)
    except TypeError:  # An argument is unhashable.
        known = key = None
    if known is not None:
        return unknowns_in(known)
    meta_args = values.as_meta(args)
    given = with_device(kwargs, torch.device("meta"))
    meta_kwargs = {name: values.as_meta(value) for name, value in given.items()}
    try:
        output = func(*meta_args, **meta_kwargs)
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        # A kernel that needs real integers may give another shape next time.
        return _output_of_zeros(values, func, args, kwargs, error)
    found = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    own = all(tensor.is_meta and all(tensor is not value for value in meta_args) for tensor in found)
    if own and key is not None:
        if len(_memo) >= _MEMO_LIMIT:
            _memo.clear()
        _memo[key] = forms_in(output)
    return output


def _output_of_zeros(
    values: UnknownValues, func: TorchFunction, args: Arguments, kwargs: Keywords, error: Exception
) -> Any:
    """Run with zeros without memory: torch has no meta kernel, or the shape depends on real integers."""

    def zeros(tensor: Tensor) -> Tensor:
        if not values.is_unknown(tensor):
            return tensor
        return torch.zeros((), dtype=tensor.dtype, device="cpu").expand(tensor.shape)

    def unknown_output(tensor: Tensor) -> Tensor:
        is_known = name_of(func) in _PACKING and not tensor.is_floating_point()
        return tensor if is_known else form_of(tensor).unknown()

    try:
        given, named = pytree.tree_map_only(Tensor, zeros, (args, kwargs))
        output = func(*given, **named)
    except Exception:
        raise error from None  # The kernel's own error is more helpful than the error about zeros.
    return pytree.tree_map_only(Tensor, unknown_output, output)


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (value.shape, value.dtype)
    if type(value) in (list, tuple):
        return tuple(_key(item) for item in value)
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    return (type(value), value)
