"""Calls of PyTorch's operations with a table, or a view of one, in place of one tensor.

The calls come from PyTorch's own list of operations, `op_db`.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

SAMPLES = 3
"""Maximum samples of one operation that `cases_of` uses by default."""
CANDIDATES = 40
"""Samples of one operation among which `cases_of` chooses by default."""

UNINITIALISED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}
"""Operations whose results have arbitrary values."""


def name_of(operation: Any) -> str:
    """Name of an operation and of its variant in PyTorch's list."""
    variant = operation.variant_test_name
    return f"{operation.name}.{variant}" if variant else str(operation.name)


OPERATIONS: dict[str, Any] = {
    name_of(operation): operation for operation in op_db if torch.float32 in operation.supported_dtypes("cpu")
}
"""Operations on float32 tensors in host memory, by `name_of`."""


@dataclass(frozen=True)
class Placement:
    """A tensor as a table, or as a view of a table.

    Attributes
    ----------
    name : str
        Name of the kind of view.
    of : callable
        Returns the values of the table, given the values of the tensor.
    view : callable
        Returns the tensor, given the table and the tensor's shape.
    """

    name: str
    of: Callable[[Tensor], Tensor]
    view: Callable[[Tensor, torch.Size], Tensor]


def _framed(values: Tensor) -> Tensor:
    """The rows between two others."""
    frame = torch.full((1, *values.shape[1:]), 0.5)
    return torch.cat([frame, values, frame])


TABLE = Placement("table", lambda values: values, lambda table, _: table)
ROWS = Placement("rows", _framed, lambda table, _: table[1:-1])
TRANSPOSED = Placement("transposed", lambda values: values.t(), lambda table, _: table.t())
ROW = Placement("row", lambda values: _framed(values.unsqueeze(0)), lambda table, _: table[1])
COLUMN = Placement("column", lambda values: _framed(values.unsqueeze(0)).t(), lambda table, _: table[:, 1])
RESHAPED = Placement(
    "reshaped",
    lambda values: values.reshape(len(values), -1) if values.numel() else values.reshape(0, 1),
    lambda table, shape: table.view(shape),
)
ELEMENT = Placement("element", lambda values: _framed(values.view(1, 1)), lambda table, _: table[1, 0])


def _placements(shape: torch.Size) -> tuple[Placement, ...]:
    """The ways to put a tensor of this shape into a table that has rows and columns."""
    if len(shape) == 0:
        return (ELEMENT,)
    if len(shape) == 1:
        return (ROW, COLUMN) if shape[0] else ()
    if len(shape) > 2:
        return (RESHAPED,) if shape.numel() else ()
    if shape[1] == 0:
        return ()
    return (TABLE, ROWS, TRANSPOSED) if shape[0] else (ROWS,)


@dataclass(frozen=True)
class Call:
    """One call of an operation with plain tensors.

    Attributes
    ----------
    function : callable
        The operation.
    arguments : tuple of tuple and dict
        Positional and named arguments.
    """

    function: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def leaves(self) -> list[Any]:
        """All arguments and elements of arguments, in order."""
        return pytree.tree_leaves(self.arguments)

    def tensors(self) -> list[int]:
        """Positions of plain float32 tensors among the leaves."""
        return [
            position
            for position, leaf in enumerate(self.leaves())
            if isinstance(leaf, Tensor) and leaf.dtype is torch.float32 and leaf.layout is torch.strided
        ]

    def run(
        self, replaced: Sequence[int], table: Tensor, gradients: bool, **more: Any
    ) -> tuple[Any, list[Tensor]]:
        """Result of the call with copies of all tensors but the replaced ones, and these copies."""
        leaves, structure = pytree.tree_flatten(self.arguments)
        copies = []
        for index, leaf in enumerate(leaves):
            if index in replaced:
                leaves[index] = table
            elif isinstance(leaf, Tensor):
                leaves[index] = copy = leaf.detach().clone()
                if gradients and (copy.is_floating_point() or copy.is_complex()):
                    copies.append(copy.requires_grad_())
        positional, named = pytree.tree_unflatten(leaves, structure)
        torch.manual_seed(0)
        return self.function(*positional, **named, **more), copies


@dataclass(frozen=True)
class Case:
    """A use of a table by one call; it observes the same of a plain tensor and of a table.

    Attributes
    ----------
    use : str
        The use: "read", "in place", "out", "write to the result" or "second derivative".
    label : str
        The call and the placement, for messages.
    values : Tensor
        Values of the table before the call.
    observe : callable
        Makes the call with a parameter and returns everything that it changes.
    direct : bool
        Whether the table itself is an argument, and no view of it.
    """

    use: str
    label: str
    values: Tensor
    observe: Callable[[Tensor], Any]
    direct: bool = False


def cases_of(name: str, everything: bool = False) -> Iterator[Case]:
    """The cases of one operation.

    Parameters
    ----------
    name : str
        Name of the operation among `OPERATIONS`.
    everything : bool
        Whether each sample is used. By default the first `SAMPLES` samples are used that differ from each
        other in the dimensions of their tensors or in the names of their arguments. Samples with a matrix
        come first. Samples after the first `CANDIDATES` are not considered.
    """
    operation = OPERATIONS[name]
    torch.manual_seed(0)
    samples = operation.sample_inputs("cpu", torch.float32)
    chosen = list(samples) if everything else _distinct(itertools.islice(samples, CANDIDATES))
    for number, sample in enumerate(chosen):
        yield from _cases_of_sample(operation, sample, number, everything)


def _distinct(samples: Iterator[Any]) -> list[Any]:
    found: dict[Any, Any] = {}
    for sample in samples:
        leaves = pytree.tree_leaves(((sample.input, *sample.args), sample.kwargs))
        dimensions = tuple(
            (leaf.dim(), leaf.numel() > 0) if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves
        )
        found.setdefault((dimensions, *sample.kwargs), sample)
    return sorted(found.values(), key=lambda sample: not _has_matrix(sample))[:SAMPLES]


def _has_matrix(sample: Any) -> bool:
    leaves: list[Any] = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return any(isinstance(leaf, Tensor) and leaf.dim() == 2 and leaf.numel() > 0 for leaf in leaves)


def _cases_of_sample(operation: Any, sample: Any, number: int, everything: bool) -> Iterator[Case]:
    arguments = ((sample.input, *sample.args), dict(sample.kwargs))
    call = Call(operation.op, arguments)
    comparable = operation.name not in UNINITIALISED
    first = number == 0 or everything
    for replaced in _replacements(call):
        values = call.leaves()[replaced[0]].detach()
        for placement in _placements(values.shape) if len(replaced) == 1 else _placements(values.shape)[:1]:
            label = f"sample {number}, tensors {replaced} of shape {tuple(values.shape)} as {placement.name}"
            table = placement.of(values).contiguous()
            observers = _Observers(call, replaced, values.shape, placement, comparable)
            yield Case("read", label, table, observers.read, placement is TABLE)
            if placement is TABLE and first and operation.supports_gradgrad:
                yield Case("second derivative", label, table, observers.second_derivative)
            if first:
                yield Case("write to the result", label, table, observers.write_to_result)
            if 0 in replaced and (inplace := operation.inplace_variant) is not None:
                observers = replace(observers, call=Call(inplace, arguments))
                yield Case("in place", label, table, observers.in_place)
            if placement is TABLE and first and 0 in replaced and (method := operation.method_variant):
                observers = replace(observers, call=Call(method, arguments))
                yield Case("read", f"method, {label}", table, observers.read)
    if operation.supports_out:
        yield from _cases_of_out(call, number, comparable)


def _replacements(call: Call) -> Iterator[tuple[int, ...]]:
    """Positions that are replaced together: each tensor, and all tensors of the shape of the first."""
    leaves, positions = call.leaves(), call.tensors()
    yield from ((position,) for position in positions)
    alike = tuple(one for one in positions if leaves[one].shape == leaves[positions[0]].shape)
    if len(alike) > 1:
        yield alike


def _cases_of_out(call: Call, number: int, comparable: bool) -> Iterator[Case]:
    try:
        with torch.no_grad():
            result, _ = call.run((), torch.empty(0), False)
    except Exception:  # PyTorch has samples that it refuses itself
        return
    outputs = [result] if isinstance(result, Tensor) else list(result) if isinstance(result, tuple) else []
    if not all(isinstance(one, Tensor) and one.layout is torch.strided for one in outputs):
        return
    for index, output in enumerate(outputs):
        if output.dtype is not torch.float32:
            continue
        for placement in _placements(output.shape):
            label = f"sample {number}, result {index} of shape {tuple(output.shape)} as {placement.name}"
            table = torch.full_like(placement.of(output.detach()).contiguous(), 0.25)
            alike = tuple(one for one in call.tensors() if call.leaves()[one].shape == output.shape)
            out = _Out(call, outputs, isinstance(result, tuple), index, placement, comparable)
            yield Case("out", label, table, out.write)
            if alike and placement is TABLE:
                label = f"{label}, also tensors {alike}"
                table = call.leaves()[alike[0]].detach().contiguous()
                yield Case("out", label, table, replace(out, replaced=alike).write)


@dataclass(frozen=True)
class _Out:
    """Makes a call with a table as one of its results."""

    call: Call
    outputs: list[Tensor]
    several: bool
    index: int
    placement: Placement
    comparable: bool
    replaced: Sequence[int] = ()

    def write(self, table: Tensor) -> Any:
        """Result of the call and the table that it has changed."""
        with torch.no_grad():
            out = [torch.empty_like(one) for one in self.outputs]
            given = table if self.placement is TABLE else table.detach()
            out[self.index] = self.placement.view(given, self.outputs[self.index].shape)
            result, _ = self.call.run(self.replaced, table, False, out=tuple(out) if self.several else out[0])
            changed = table.detach().clone()
        return (result, changed) if self.comparable else (_shapes(result), _shapes(changed))


@dataclass(frozen=True)
class _Observers:
    """Makes a call with a table and returns its effects."""

    call: Call
    replaced: Sequence[int]
    shape: torch.Size
    placement: Placement
    comparable: bool

    def read(self, table: Tensor) -> Any:
        """Result, gradients, the unchanged table and the state of the random generator."""
        result, others, attempt = self._read(table)
        effects = {"attempt": attempt, "result": result if self.comparable else _shapes(result)}
        # For infinite values, the gradients of subclasses of Tensor follow other formulas in PyTorch.
        finite = self.call.leaves()[self.replaced[0]].isfinite().all()
        loss = _loss(result) if self.comparable and finite else None
        if loss is not None and loss.requires_grad:
            loss.backward()
            effects["gradient"] = table.grad
            effects["other gradients"] = [other.grad for other in others]
        effects["table"] = table
        effects["generator"] = torch.get_rng_state()
        return effects

    def _read(self, table: Tensor) -> tuple[Any, list[Tensor], str]:
        """Result of the call, with gradients of as many tensors as the operation allows."""
        for attempt in ("all gradients", "gradient of the table"):
            try:
                return *self.call.run(self.replaced, self._placed(table), attempt == "all gradients"), attempt
            except RuntimeError:
                continue
        with torch.no_grad():
            result, others = self.call.run(self.replaced, self._placed(table), False)
            detached = pytree.tree_map(
                lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, result
            )
            return detached, others, "no gradients"

    def second_derivative(self, table: Tensor) -> Any:
        """First and second derivative for the table."""
        result, _ = self.call.run(self.replaced, self._placed(table), True)
        loss = _loss(result)
        if loss is None or not loss.requires_grad:
            return None
        (first,) = torch.autograd.grad(loss, [table], create_graph=True, allow_unused=True)
        if first is None or not first.requires_grad:
            return first
        (second,) = torch.autograd.grad(first.square().sum(), [table], allow_unused=True)
        return first, second

    def write_to_result(self, table: Tensor) -> Any:
        """The table after each result of the call has been set to a constant."""
        with torch.no_grad():
            result, _ = self.call.run(self.replaced, self._placed(table), False)
            for index, leaf in enumerate(pytree.tree_leaves(result)):
                if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                    leaf.fill_(index + 2)
            return table.detach().clone()

    def in_place(self, table: Tensor) -> Any:
        """Result of the call and the table that it has changed."""
        with torch.no_grad():
            result, _ = self.call.run(self.replaced, self._placed(table), False)
            changed = table.detach().clone()
        effects = (result, changed) if self.comparable else (_shapes(result), _shapes(changed))
        return *effects, torch.get_rng_state()

    def _placed(self, table: Tensor) -> Tensor:
        return self.placement.view(table, self.shape)


def _loss(result: Any) -> Tensor | None:
    """A weighted sum of all differentiable results."""
    terms = []
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            dense = leaf if leaf.layout is torch.strided else leaf.to_dense()
            real = torch.view_as_real(dense) if dense.is_complex() else dense
            weights = torch.linspace(0.5, 1.5, real.numel(), dtype=real.dtype)
            terms.append((real.reshape(-1) * weights).sum())
    return sum(terms[1:], terms[0]) if terms else None


def _shapes(result: Any) -> Any:
    """The result with shapes and dtypes in place of tensors."""
    return pytree.tree_map_only(Tensor, lambda leaf: (tuple(leaf.shape), str(leaf.dtype)), result)
