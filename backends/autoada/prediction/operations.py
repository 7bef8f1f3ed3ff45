"""Kinds of torch functions that a simulation treats differently."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

TorchFunction = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]
CallArguments = tuple[Arguments, Keywords]


class CallMode(TorchFunctionMode):
    """Mode that handles calls of torch functions with `call`."""

    def call(self, func: TorchFunction, args: Arguments, kwargs: Keywords) -> Any:
        """Return the output of ``func(*args, **kwargs)``."""
        raise NotImplementedError

    def __torch_function__(
        self, func: TorchFunction, types: Any, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        return self.call(func, args, kwargs or {})


class Kind(IntEnum):
    """Treatment of a torch function in a simulation."""

    GENERAL = 0
    METADATA = 1  # returns a shape, a dtype or a text, …, and never a value
    DEVICE = 2
    VALUE = 3  # returns a value to Python
    ALIAS = 4  # returns the same memory under another name
    INPLACE = 5
    SET_ITEM = 6
    GET_ITEM = 7
    RANDOM = 8
    STOCHASTIC = 9  # draws without giving ids, such as dropout
    NORMALIZE = 10  # batch statistics
    MOVE = 11
    EMBEDDING = 12
    BAG = 13
    INDEX_SELECT = 14
    IGNORED = 15  # attribute writes on tensors, backward
    GRADIENT = 16
    DATA_SHAPED = 17  # the output's shape depends on values
    FINITE = 18  # checks for NaN or infinity


def kind_of(function: TorchFunction) -> Kind:
    """Return the kind of `function`, which is computed once."""
    kind = _CACHE.get(function)
    if kind is None:
        kind = _CACHE[function] = _classify(function)
    return kind


def name_of(function: TorchFunction) -> str:
    """Return the name of `function` for messages."""
    return getattr(function, "__name__", None) or str(function)


def dtype_of_move(function: TorchFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the dtype that a call of kind `MOVE` requests; None if it only requests a device."""
    dtype = kwargs.get("dtype")
    if dtype is None and name_of(function) in ("to", "type_as"):
        given = next((a for a in args[1:] if isinstance(a, (torch.dtype, Tensor))), kwargs.get("other"))
        dtype = given.dtype if isinstance(given, Tensor) else given
    return dtype


def with_device(kwargs: Keywords, device: torch.device) -> Keywords:
    """Return the arguments of a call that creates its output on `device`, if they name a device."""
    return kwargs if kwargs.get("device") is None else {**kwargs, "device": device}


def with_first(args: Arguments, kwargs: Keywords) -> CallArguments:
    """Return the arguments of a function that changes its first one, which is then not given by name."""
    if args:
        return args, kwargs
    name = next((name for name in ("input", "tensor", "self") if name in kwargs), next(iter(kwargs)))
    return (kwargs[name],), {key: value for key, value in kwargs.items() if key != name}


def functions(*names: str) -> set[TorchFunction]:
    """Return every torch function with one of the names, in any namespace."""
    spaces = (torch, Tensor, F, torch._C._nn, torch._C._VariableFunctions, torch.special, nn.init)
    found = (getattr(space, name, None) for name in names for space in spaces)
    return {function for function in found if callable(function)}


SHAPE_INPLACE = {
    "resize_", "unsqueeze_", "squeeze_", "transpose_", "t_", "swapdims_", "swapaxes_", "as_strided_", "set_",
    "resize_as_",
}  # fmt: skip

_VALUE_NAMES = {
    "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "numpy", "__array__", "__contains__",
    "equal", "allclose", "is_nonzero", "__complex__",
}  # fmt: skip
_METADATA_NAMES = {
    "size", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "stride",
    "storage_offset", "is_contiguous", "get_device", "__len__", "ndimension", "type", "is_signed",
    "is_same_size", "is_inference", "result_type", "is_tensor", "register_hook", "retain_grad", "can_cast",
    "is_storage", "sym_size", "register_post_accumulate_grad_hook", "data_ptr", "is_pinned", "is_shared",
    "is_conj", "is_neg", "dim_order", "_is_view", "untyped_storage", "__repr__",
    "__format__", "__str__",
}  # fmt: skip
_VALUE_ATTRIBUTES = {"T", "mT", "H", "mH", "real", "imag", "data"}
_MOVE_NAMES = {"to", "cuda", "cpu", "type_as", "pin_memory"}
_AUGMENTED = {f"__i{name[2:]}" for name in dir(Tensor) if hasattr(Tensor, f"__i{name[2:]}")}

_BY_SET: Sequence[tuple[Collection[Any], Kind]] = (
    ({torch.autograd.grad}, Kind.GRADIENT),
    (functions("embedding"), Kind.EMBEDDING),
    (functions("embedding_bag"), Kind.BAG),
    (functions("index_select"), Kind.INDEX_SELECT),
    (functions(
        "rand", "randn", "randint", "randperm", "normal", "multinomial", "bernoulli", "poisson", "rand_like",
        "randn_like", "randint_like", "random_", "uniform_", "normal_", "bernoulli_", "exponential_",
        "geometric_", "log_normal_", "cauchy_", "kaiming_uniform_",
    ), Kind.RANDOM),
    (functions(
        "dropout", "alpha_dropout", "feature_dropout", "dropout1d", "dropout2d", "dropout3d",
        "feature_alpha_dropout", "gumbel_softmax", "rrelu",
    ), Kind.STOCHASTIC),
    (functions("batch_norm", "instance_norm"), Kind.NORMALIZE),
    (functions("isfinite", "isnan", "isinf"), Kind.FINITE),
    (functions("contiguous", "detach", "requires_grad_"), Kind.ALIAS),
    (functions(
        "nonzero", "unique", "unique_consecutive", "masked_select", "bincount", "argwhere", "_unique2"
    ), Kind.DATA_SHAPED),
)  # fmt: skip
_BY_NAME: dict[str, Kind] = {
    "__set__": Kind.IGNORED,
    "__delete__": Kind.IGNORED,
    "backward": Kind.IGNORED,
    "__getitem__": Kind.GET_ITEM,
    "__setitem__": Kind.SET_ITEM,
    **dict.fromkeys(_VALUE_NAMES, Kind.VALUE),
    **dict.fromkeys(_METADATA_NAMES, Kind.METADATA),
    **dict.fromkeys(_MOVE_NAMES, Kind.MOVE),
    **dict.fromkeys(_AUGMENTED, Kind.INPLACE),
}
_CACHE: dict[TorchFunction, Kind] = {}


def _classify(function: TorchFunction) -> Kind:
    if function == Tensor.data.__get__:  # type: ignore[attr-defined]  # Tables replace the property.
        return Kind.ALIAS
    name = getattr(function, "__name__", "")
    for members, kind in _BY_SET:
        if function in members:
            return kind
    if name == "__get__":
        attribute = getattr(function.__self__, "__name__", "")  # type: ignore[attr-defined]
        if attribute == "device":
            return Kind.DEVICE
        return Kind.GENERAL if attribute in _VALUE_ATTRIBUTES else Kind.METADATA
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name.endswith("_") and not name.endswith("__"):
        return Kind.INPLACE
    return Kind.GENERAL
