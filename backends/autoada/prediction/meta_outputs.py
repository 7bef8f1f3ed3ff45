"""Outputs of operations on unknown values, from a memo or from torch's meta kernels.

Many of torch's meta kernels are Python and take 50 to 800 µs, so outputs are remembered by the shapes, dtypes
and plain values of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autoada.prediction.operations import Arguments, Keywords, TorchFunction
from autoada.prediction.unknown_values import form_of, forms_in, unknowns_in

_VIEWS = {
    "view", "reshape", "flatten", "transpose", "permute", "unsqueeze", "squeeze", "expand", "t", "chunk",
    "split", "select", "narrow", "unflatten", "movedim", "swapaxes", "expand_as", "view_as", "__get__",
    "new_zeros", "new_empty", "new_ones", "new_full", "long", "float", "int", "bool",
}  # fmt: skip
"""Operations with native meta kernels, which take less than a microsecond and are not memoized."""

_HEALTH_CHECKS = {"isnan": False, "isinf": False, "isfinite": True}
_HEALTH_COMBINATIONS = {"any", "all", "logical_or", "__or__", "bitwise_or"}
_PACKING = {"_pack_padded_sequence", "_pad_packed_sequence"}
"""Operations whose integer outputs depend only on real lengths."""
_MEMO_LIMIT = 4096
_memo: dict[Any, Any] = {}


class MetaOutputs:
    """Computes the shapes of operations' outputs."""

    def __init__(self, is_unknown: Callable[[Tensor], bool], as_meta: Callable[[Any], Any]) -> None:
        self._is_unknown = is_unknown
        self._as_meta = as_meta
        self._health: dict[int, tuple[Tensor, bool]] = {}
        self._fallbacks = 0

    def __call__(self, func: TorchFunction, args: Arguments, kwargs: Keywords, *, memorize: bool) -> Any:
        name = getattr(func, "__name__", "")
        plain = name in _VIEWS or name in _PACKING or name in _HEALTH_CHECKS or name in _HEALTH_COMBINATIONS
        if plain or not memorize or "out" in kwargs:
            return self.run(func, args, kwargs)
        try:
            key = (func, _key(args), tuple((k, _key(v)) for k, v in kwargs.items()))
            known = _memo.get(key)
        except TypeError:  # An argument is unhashable.
            return self.run(func, args, kwargs)
        if known is not None:
            return unknowns_in(known)
        fallbacks = self._fallbacks
        output = self.run(func, args, kwargs)
        if (
            self._fallbacks == fallbacks
        ):  # A kernel that needed real integers may give another shape next time.
            self._memorize(key, output, args)
        return output

    def run(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        """Run the operation on meta tensors, or on zeros if torch has no meta kernel."""
        meta_args = self._as_meta(args)
        meta_kwargs = {key: self._as_meta(value) for key, value in kwargs.items()}
        if meta_kwargs.get("device") is not None:
            meta_kwargs["device"] = torch.device("meta")
        try:
            output = func(*meta_args, **meta_kwargs)
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            output = self._run_on_zeros(func, args, kwargs, error)
        self._follow_health(getattr(func, "__name__", ""), args, output)
        return output

    def health(self, tensor: Tensor) -> bool | None:
        """Return the result of a NaN or infinity check for finite values; None for other operations."""
        known = self._health.get(id(tensor))
        return None if known is None else known[1]

    def _follow_health(self, name: str, args: Arguments, output: Any) -> None:
        if not isinstance(output, Tensor) or output.dtype is not torch.bool:
            return
        source = next((a for a in args if isinstance(a, Tensor)), None)
        answer = _HEALTH_CHECKS.get(name)
        if answer is None and name in _HEALTH_COMBINATIONS and source is not None:
            answer = self.health(source)
        if answer is not None:
            self._health[id(output)] = (output, answer)

    def _memorize(self, key: Any, output: Any, args: Arguments) -> None:
        tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        if all(tensor.is_meta and all(tensor is not value for value in args) for tensor in tensors):
            if len(_memo) >= _MEMO_LIMIT:
                _memo.clear()
            _memo[key] = forms_in(output)

    def _run_on_zeros(self, func: TorchFunction, args: Arguments, kwargs: Keywords, error: Exception) -> Any:
        """Run with zeros without memory: torch has no meta kernel, or the shape depends on real integers."""

        def zeros(value: Any) -> Any:
            if isinstance(value, Tensor) and self._is_unknown(value):
                return torch.zeros((), dtype=value.dtype, device="cpu").expand(tuple(value.shape))
            return value

        keep_integers = getattr(func, "__name__", "") in _PACKING
        self._fallbacks += 1

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
