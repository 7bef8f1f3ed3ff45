"""Outputs of operations on unknown values, from a memo or from torch's meta kernels.

Many of torch's meta kernels are Python and take 50 to 800 µs, so outputs are remembered by the shapes, dtypes
and plain values of the arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autoada.prediction.operations import Arguments, Keywords, TorchFunction, name_of
from autoada.prediction.unknown_values import UnknownValues, form_of, forms_in, unknowns_in

_PACKING = {"_pack_padded_sequence", "_pad_packed_sequence"}
"""Operations whose integer outputs depend only on real lengths."""
_MEMO_LIMIT = 4096
_memo: dict[Any, Any] = {}


class MetaOutputs:
    """Computes the outputs of operations."""

    def __init__(self, values: UnknownValues) -> None:
        self._values = values

    def __call__(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        """Run the operation on meta tensors, or on zeros if torch has no meta kernel."""
        key = None if "out" in kwargs else _key((func, args, tuple(kwargs.items())))
        try:
            known = _memo.get(key)
        except TypeError:  # An argument is unhashable.
            known = key = None
        if known is not None:
            return unknowns_in(known)
        meta_args = self._values.as_meta(args)
        meta_kwargs = {name: self._values.as_meta(value) for name, value in kwargs.items()}
        if meta_kwargs.get("device") is not None:
            meta_kwargs["device"] = torch.device("meta")
        try:
            output = func(*meta_args, **meta_kwargs)
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            # A kernel that needs real integers may give another shape next time.
            return self._run_on_zeros(func, args, kwargs, error)
        found = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        own = all(tensor.is_meta and all(tensor is not value for value in meta_args) for tensor in found)
        if own and key is not None:
            if len(_memo) >= _MEMO_LIMIT:
                _memo.clear()
            _memo[key] = forms_in(output)
        return output

    def _run_on_zeros(self, func: TorchFunction, args: Arguments, kwargs: Keywords, error: Exception) -> Any:
        """Run with zeros without memory: torch has no meta kernel, or the shape depends on real integers."""

        def zeros(value: Any) -> Any:
            if isinstance(value, Tensor) and self._values.is_unknown(value):
                return torch.zeros((), dtype=value.dtype, device="cpu").expand(tuple(value.shape))
            return value

        keep_integers = name_of(func) in _PACKING

        def unknowns(value: Any) -> Any:
            if isinstance(value, Tensor) and (value.is_floating_point() or not keep_integers):
                return form_of(value).unknown()
            return value

        try:
            output = func(*pytree.tree_map(zeros, args), **pytree.tree_map(zeros, kwargs))
        except Exception:
            raise error from None  # The kernel's own error is more helpful than the error about zeros.
        return pytree.tree_map(unknowns, output)


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (value.shape, value.dtype)
    if type(value) in (list, tuple):
        return tuple(_key(item) for item in value)
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    return (type(value), value)
