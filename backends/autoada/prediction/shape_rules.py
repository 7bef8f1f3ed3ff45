"""Shape rules: the outputs of operations on unknown values, without running the operations.

Many of torch's meta kernels are Python and take 50–800 µs, a recurrent layer 80 ms. A rule takes a few.
Each rule gets the operation's arguments and returns the output without data, or None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from autoada.prediction.operations import functions

Rule = Callable[..., Any]
Shape = tuple[int, ...]

_NUMBERS = (int, float, bool)


def unknown(shape: Iterable[int], dtype: torch.dtype) -> Tensor:
    """A tensor that has a shape and a dtype but no data."""
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def broadcast(*shapes: Sequence[int]) -> Shape | None:
    """The shape that `shapes` broadcast to, None if they do not."""
    result = tuple(shapes[0])
    for shape in shapes[1:]:
        if result == tuple(shape):
            continue
        long, short = (result, tuple(shape)) if len(result) >= len(shape) else (tuple(shape), result)
        merged = list(long)
        offset = len(long) - len(short)
        for i, size in enumerate(short):
            if merged[offset + i] == 1:
                merged[offset + i] = size
            elif size not in (1, merged[offset + i]):
                return None
        result = tuple(merged)
    return result


def _promoted(a: Tensor, b: Any) -> torch.dtype:
    if type(b) in _NUMBERS and (a.dtype.is_floating_point or (type(b) is int and a.dtype is not torch.bool)):
        return a.dtype
    if isinstance(b, Tensor) and a.dtype is b.dtype:
        return a.dtype
    return torch.result_type(a, b)


def _elementwise(a: Any, b: Any, **keywords: Any) -> Tensor | None:
    if keywords and set(keywords) != {"alpha"}:
        return None
    if not isinstance(a, Tensor):
        a, b = b, a
    if isinstance(b, Tensor):
        shape = broadcast(a.shape, b.shape)
    elif type(b) in _NUMBERS:
        shape = tuple(a.shape)
    else:
        return None
    return None if shape is None else unknown(shape, _promoted(a, b))


def _division(a: Any, b: Any, *, rounding_mode: str | None = None) -> Tensor | None:
    result = _elementwise(a, b) if rounding_mode is None else None
    if result is None or result.dtype.is_floating_point or result.dtype.is_complex:
        return result
    return unknown(result.shape, torch.get_default_dtype())


def _comparison(a: Any, b: Any) -> Tensor | None:
    if not isinstance(a, Tensor):
        a, b = b, a
    shape = broadcast(a.shape, b.shape) if isinstance(b, Tensor) else tuple(a.shape)
    return None if shape is None else unknown(shape, torch.bool)


def _where(condition: Tensor, a: Any = None, b: Any = None) -> Tensor | None:
    if a is None or b is None:
        return None
    first, other = (a, b) if isinstance(a, Tensor) else (b, a)
    if not isinstance(first, Tensor):
        return None
    shape = broadcast(*(x.shape for x in (condition, a, b) if isinstance(x, Tensor)))
    return None if shape is None else unknown(shape, _promoted(first, other))


def _masked_fill(a: Tensor, mask: Tensor, value: Any) -> Tensor | None:
    shape = broadcast(a.shape, mask.shape)
    return None if shape is None else unknown(shape, a.dtype)


def _reduced(a: Tensor, dim: Any, keepdim: bool) -> Shape:
    if dim is None or dim == ():
        return (1,) * a.dim() if keepdim else ()
    dims = {d % a.dim() for d in ((dim,) if isinstance(dim, int) else dim)}
    return tuple(1 if i in dims else size for i, size in enumerate(a.shape) if keepdim or i not in dims)


def _sum(a: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    natural = a.dtype if a.dtype.is_floating_point or a.dtype.is_complex else torch.int64
    return unknown(_reduced(a, dim, keepdim), dtype or natural)


def _mean(a: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    return unknown(_reduced(a, dim, keepdim), dtype or a.dtype)


def _argument(a: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return unknown(_reduced(a, dim, keepdim), torch.int64)


def _concatenation(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    parts = [t for t in tensors if t.shape != (0,)]  # torch ignores legacy empty tensors
    first = parts[0]
    if any(t.dtype is not first.dtype or t.dim() != first.dim() for t in parts):
        return None
    shape = list(first.shape)
    shape[dim] = sum(t.shape[dim] for t in parts)
    return unknown(shape, first.dtype)


def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    first = tensors[0]
    if any(t.dtype is not first.dtype for t in tensors):
        return None
    shape = list(first.shape)
    shape.insert(dim if dim >= 0 else dim + first.dim() + 1, len(tensors))
    return unknown(shape, first.dtype)


def _like_first(a: Tensor, *_: Any, **__: Any) -> Tensor:
    return unknown(a.shape, a.dtype)


def _clamp(a: Tensor, *bounds: Any, **named: Any) -> Tensor | None:
    if any(isinstance(bound, Tensor) for bound in (*bounds, *named.values())):
        return None
    return unknown(a.shape, a.dtype) if a.dtype.is_floating_point else None


def _power(a: Any, exponent: Any) -> Tensor | None:
    if not isinstance(a, Tensor) or isinstance(exponent, Tensor) or not a.dtype.is_floating_point:
        return None
    return unknown(a.shape, a.dtype)


def _loss(output: Tensor, target: Tensor, *positional: Any, **keywords: Any) -> Tensor | None:
    if positional or keywords.get("reduction", "mean") == "none":
        return None
    return unknown((), output.dtype)


def _dot_product_attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
    return unknown(query.shape[:-1] + value.shape[-1:], query.dtype)


def _pairwise_distance(a: Tensor, b: Tensor, *_: Any, **__: Any) -> Tensor | None:
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    return None if batch is None else unknown((*batch, a.shape[-2], b.shape[-2]), a.dtype)


def _topk(a: Tensor, k: int, dim: int = -1, *_: Any, **__: Any) -> Any:
    shape = list(a.shape)
    shape[dim] = k
    return torch.return_types.topk((unknown(shape, a.dtype), unknown(shape, torch.int64)))


def _recurrent(states: int) -> Rule:
    def rule(*args: Any) -> Any:
        if len(args) != 9:
            return None
        packed = not isinstance(
            args[3], bool
        )  # (data, batch_sizes, hx, …) instead of (input, hx, weights, bias, …)
        data, initial = (args[0], args[2]) if packed else (args[0], args[1])
        bidirectional = args[8] if packed else args[7]
        hidden = initial[0] if states == 2 else initial
        output = unknown((*data.shape[:-1], hidden.shape[-1] * (2 if bidirectional else 1)), data.dtype)
        if states == 1:
            return output, unknown(hidden.shape, hidden.dtype)
        return (output, *(unknown(state.shape, state.dtype) for state in initial))

    return rule


def _table(entries: Iterable[tuple[Rule, tuple[str, ...]]]) -> dict[Callable[..., Any], Rule]:
    return {function: rule for rule, names in entries for function in functions(*names)}


RULES: dict[Callable[..., Any], Rule] = _table(
    (
        (
            _elementwise,
            (
                "add", "sub", "mul", "multiply", "subtract", "maximum", "minimum", "__add__", "__radd__",
                "__sub__", "__rsub__", "__mul__", "__rmul__",
            ),
        ),
        (_division, ("div", "divide", "true_divide", "__truediv__", "__rtruediv__", "__rdiv__", "__div__")),
        (
            _comparison,
            (
                "eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__",
                "__ge__",
            ),
        ),
        (_where, ("where",)),
        (_masked_fill, ("masked_fill",)),
        (_sum, ("sum", "nansum")),
        (_mean, ("mean", "logsumexp", "amax", "amin")),
        (_argument, ("argmax", "argmin")),
        (_concatenation, ("cat", "concat", "concatenate")),
        (_stack, ("stack",)),
        (_power, ("pow", "__pow__")),
        (
            _like_first,
            (
                "scatter", "scatter_add", "index_add", "scatter_reduce", "index_copy", "index_put", "celu",
                "mish", "__neg__",
            ),
        ),
        (_clamp, ("clamp", "clip", "clamp_min", "clamp_max")),
        (
            _loss,
            (
                "binary_cross_entropy_with_logits", "binary_cross_entropy", "mse_loss", "l1_loss",
                "smooth_l1_loss", "huber_loss", "kl_div", "cross_entropy", "nll_loss",
            ),
        ),
        (_dot_product_attention, ("scaled_dot_product_attention",)),
        (_pairwise_distance, ("cdist",)),
        (_topk, ("topk",)),
    )
)  # fmt: skip
for _name, _states in (("gru", 1), ("lstm", 2), ("rnn_tanh", 1), ("rnn_relu", 1)):
    RULES[getattr(torch._C._VariableFunctions, _name)] = _recurrent(_states)
    RULES[getattr(torch._VF, _name)] = _recurrent(_states)
