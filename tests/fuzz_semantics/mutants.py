"""Mistakes that random programs must find; each replaces a part of the correct code.

``python -m tests.fuzz_semantics.mutants`` prints the number of programs after which each mistake is found.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoada.loader.data_loader import AdaDataLoader
from autoada.model.wrapper import AdaModel
from autoada.optimizer.schedules import Schedules
from autoada.parameters import table_gradients, table_parameter, table_tensor
from autoada.parameters.dense_buffer import DenseParameters
from autoada.parameters.remote_table import RemoteTable
from autoada.parameters.server_rows import ServerRows
from autoada.parameters.table_gradients import GradientRows, RowGradient, TableGradients
from autoada.parameters.table_parameter import TableParameter
from autoada.parameters.table_tensor import TableTensor
from tests.fuzz_semantics.grammar import random_program
from tests.fuzz_semantics.outcome import compared, quiet, run, without_bugs
from tests.fuzz_semantics.program import compiled

__all__ = ["MUTANTS", "programs_until_found"]

Patch = contextlib.AbstractContextManager[Any]
MUTANTS: dict[str, Callable[[], Patch]] = {}
MOST = 2000
"""Number of programs within which each mutant is found."""


def mutant(make: Callable[[], Patch]) -> Callable[[], Patch]:
    MUTANTS[make.__name__] = make
    return make


def replaced(owner: Any, name: str, change: Callable[..., Any]) -> Patch:
    """Have `change`, which is given the original and the arguments, run in place of a function."""
    original = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *args, **kwargs: change(original, *args, **kwargs))


def lookup_without(**options: Any) -> Patch:
    """Lookups by modules ignore options."""
    original = table_parameter._LOOKUPS[F.embedding]

    def lookup(*args: Any, **kwargs: Any) -> Any:
        names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
        return original(**{**dict(zip(names, args, strict=False)), **kwargs, **options})

    return mock.patch.dict(table_parameter._LOOKUPS, {F.embedding: lookup})


@mutant
def padding_trains() -> Patch:
    """The padding row of an embedding gets a gradient."""
    return lookup_without(padding_idx=None)


@mutant
def norm_is_not_limited() -> Patch:
    """The rows of an embedding with ``max_norm`` are not shortened."""
    return lookup_without(max_norm=None)


@mutant
def frequency_does_not_scale() -> Patch:
    """``scale_grad_by_freq`` is ignored."""
    return lookup_without(scale_grad_by_freq=False)


@mutant
def bag_counts_padding() -> Patch:
    """The padding of an embedding bag is a part of the bag."""
    original = table_parameter._LOOKUPS[F.embedding_bag]

    def bag(*args: Any, **kwargs: Any) -> Any:
        return original(*args[:10], **{**kwargs, "padding_idx": None})

    return mock.patch.dict(table_parameter._LOOKUPS, {F.embedding_bag: bag})


@mutant
def writes_are_lost() -> Patch:
    """Values that are written to rows do not arrive."""
    return mock.patch.object(RemoteTable, "write", return_value=None)


@mutant
def last_row_of_a_write_is_lost() -> Patch:
    """A write of several rows leaves out the last one."""

    def write(original: Any, table: RemoteTable, ids: Tensor, rows: Tensor) -> None:
        kept = max(1, len(ids) - 1)
        original(table, ids[:kept], rows[:kept])

    return replaced(RemoteTable, "write", write)


@mutant
def view_begins_at_the_first_element() -> Patch:
    """A view that begins in the middle of a row is moved to the row's beginning."""

    def view(tensor: TableTensor, rows: Tensor) -> Tensor:
        return rows.as_strided(tensor.place.size(), tensor.place.stride(), 0)

    return mock.patch.object(TableTensor, "view_of", view)


@mutant
def changes_through_views_are_lost() -> Patch:
    """An operation that changes a view in place does not change the table."""
    return mock.patch.object(table_tensor._Memory, "write_back", return_value=None)


@mutant
def view_is_a_row_off() -> Patch:
    """A view touches the rows before its own."""

    def numbers(original: Any, tensor: TableTensor) -> Tensor:
        found: Tensor = original(tensor)
        return found - 1 if int(found[0]) > 0 else found

    return replaced(TableTensor, "row_numbers", numbers)


@mutant
def rows_are_stale() -> Patch:
    """Rows that were read once are not read again."""
    return mock.patch.object(RemoteTable, "forget_rows", return_value=None)


@mutant
def gradient_counts_twice() -> Patch:
    """The gradients of tables are pushed twice as large."""
    return replaced(TableGradients, "collect", lambda original, self, scale: original(self, 2 * scale))


@mutant
def dense_gradient_counts_twice() -> Patch:
    """The gradients of other parameters are pushed a second time."""

    def push(original: Any, self: DenseParameters) -> None:
        steps = list(self._steps)
        original(self)
        self._steps = steps
        original(self)

    return replaced(DenseParameters, "push", push)


@mutant
def last_row_of_a_gradient_is_lost() -> Patch:
    """A gradient's last row is not pushed."""

    def rows(original: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        ids, values = original(gradient)
        return ids[:-1], values[:-1]

    return replaced(table_gradients, "rows_of", rows)


@mutant
def gradient_is_dropped_by_the_step() -> Patch:
    """After a step a table has no gradient."""

    def take(original: Any, self: TableGradients) -> Any:
        taken = original(self)
        if (parameter := self.follow()) is not None:
            parameter.grad = None
        return taken

    return replaced(TableGradients, "take", take)


@mutant
def gradient_rows_are_added() -> Patch:
    """A write into a gradient is added to its previous values."""

    def write(original: Any, self: GradientRows, ids: Tensor, rows: Tensor) -> None:
        before = self.sparse
        original(self, ids, rows)
        self.sparse = self.sparse + before

    return replaced(GradientRows, "write", write)


def without_effect(operations: set[Any]) -> Patch:
    """Operations on a table's gradient leave it as it is."""

    def by_values(original: Any, func: Any, args: Any, kwargs: Any) -> Any:
        return args[0] if func in operations else original(func, args, kwargs)

    return replaced(table_gradients, "_by_values", by_values)


@mutant
def gradient_is_not_zeroed() -> Patch:
    """``grad.zero_()`` leaves a table's gradient as it is."""
    zero = {torch.ops.aten.zero_.default, torch.ops.aten._foreach_zero_.default}
    return without_effect(zero)


@mutant
def scaling_a_gradient_is_lost() -> Patch:
    """``grad.mul_(factor)`` leaves a table's gradient as it is."""
    scaling = {torch.ops.aten.mul_.Tensor, torch.ops.aten._foreach_mul_.Tensor}
    return without_effect(scaling)


@mutant
def view_of_rows_has_a_gradient_of_the_first_row() -> Patch:
    """The gradient of a view such as ``weight[3]`` goes to the first rows of the table."""

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        place, rows = ctx.place, gradient.new_zeros(len(ctx.numbers), *ctx.shape[1:])
        rows.as_strided(place.size(), place.stride(), place.storage_offset() % ctx.shape[1]).copy_(gradient)
        return table_gradients.row_sparse(ctx.numbers - ctx.numbers[0], rows, ctx.shape), None

    return mock.patch.object(table_parameter._View, "backward", staticmethod(backward))


def replacing_hooks(change: Callable[[Any], Any]) -> Patch:
    """Change each hook of a table."""
    original = table_parameter._with_whole_shape
    return mock.patch.object(
        table_parameter, "_with_whole_shape", lambda parameter, hook: original(parameter, change(hook))
    )


@mutant
def hooks_are_not_called() -> Patch:
    """Hooks of tables are not called."""
    return replacing_hooks(lambda hook: lambda gradient: None)


@mutant
def result_of_a_hook_is_dropped() -> Patch:
    """Hooks of tables are called, and their result is ignored."""

    def without_result(hook: Any) -> Any:
        def called(gradient: Tensor) -> None:
            hook(gradient)

        return called

    return replacing_hooks(without_result)


def replacing(change: Callable[[nn.Parameter], None]) -> Patch:
    """Change parameters before they become tables."""
    from autoada.model import wrapper

    def replace(original: Any, module: Any, parameters: Any, tables: Any) -> None:
        for parameter in parameters.values():
            change(parameter)
        original(module, parameters, tables)

    return replaced(wrapper, "replace_parameters", replace)


@mutant
def earlier_hooks_are_dropped() -> Patch:
    """Hooks that were registered before the model was wrapped are not called."""
    return replacing(lambda parameter: setattr(parameter, "_backward_hooks", None))


@mutant
def earlier_accumulation_hooks_are_dropped() -> Patch:
    """Post-accumulate hooks that were registered before the model was wrapped are not called."""
    return replacing(lambda parameter: setattr(parameter, "_post_accumulate_grad_hooks", None))


@mutant
def pending_gradients_are_dropped() -> Patch:
    """Gradients from before the model was wrapped do not count."""
    return replacing(lambda parameter: setattr(parameter, "grad", None))


@mutant
def random_number_is_consumed() -> Patch:
    """A call of the wrapped model draws a random number."""

    def forward(original: Any, *args: Any, **kwargs: Any) -> Any:
        torch.rand(1)
        return original(*args, **kwargs)

    return replaced(AdaModel, "forward", forward)


@mutant
def last_batch_is_lost() -> Patch:
    """A loader leaves out the last batch."""

    def run(original: Any, *args: Any) -> Iterator[Any]:
        yield from list(original(*args))[:-1]

    return replaced(AdaDataLoader, "_run", run)


@mutant
def first_batch_comes_twice() -> Patch:
    """A loader gives its first batch twice."""

    def run(original: Any, *args: Any) -> Iterator[Any]:
        for number, batch in enumerate(original(*args)):
            yield batch
            if number == 0:
                yield batch

    return replaced(AdaDataLoader, "_run", run)


@mutant
def schedules_are_ignored() -> Patch:
    """The learning rate stays as it was when the model was wrapped."""
    return mock.patch.object(Schedules, "follow", return_value=None)


@mutant
def copies_are_of_zeros() -> Patch:
    """A deep copy of a table has no values."""

    def copied(self: Tensor, memo: dict[int, Any]) -> Any:
        zeros = torch.zeros(self.shape, dtype=self.dtype)
        return memo.setdefault(id(self), nn.Parameter(zeros, self.requires_grad))

    return mock.patch.object(TableParameter, "__deepcopy__", copied)


@mutant
def state_is_not_loaded() -> Patch:
    """``load_state_dict`` of the wrapped model leaves tables as they are."""

    def write(original: Any, self: RemoteTable, *args: Any, **options: Any) -> None:
        if not self.rows.is_loading:
            original(self, *args, **options)

    return replaced(RemoteTable, "write", write)


@mutant
def idle_rows_stay() -> Patch:
    """Momentum and weight decay do not change rows without a gradient."""
    made = ServerRows.__init__

    def make(self: ServerRows, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.applies_missed_steps = False

    return mock.patch.object(ServerRows, "__init__", make)


@mutant
def frozen_table_trains() -> Patch:
    """A table that was frozen before the model was wrapped has gradients."""
    original = TableParameter.of

    def of(table: RemoteTable, requires_grad: bool) -> Any:
        return original(table, requires_grad=True)

    return mock.patch.object(TableParameter, "of", of)


@mutant
def sparse_gradients_look_dense() -> Patch:
    """The gradient of a table of a module with ``sparse=True`` is dense."""
    return mock.patch.object(
        TableParameter,
        "has_sparse_gradient",
        property(lambda self: False, lambda self, value: None),
        create=True,
    )


@mutant
def new_data_of_a_dense_parameter_is_lost() -> Patch:
    """A dense parameter that is given other memory keeps its values."""

    def follow(self: DenseParameters) -> None:
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.data = view

    return mock.patch.object(DenseParameters, "_follow_parameters", follow)


@mutant
def earlier_data_follows_new_data() -> Patch:
    """A view of a table that was made before the table is given other data has these data."""
    return mock.patch.object(RemoteTable, "end_views", return_value=None)


@mutant
def new_data_of_a_gradient_is_lost() -> Patch:
    """A table's gradient that is given other data keeps its values."""
    return mock.patch.object(RowGradient, "take_data", return_value=None)


def programs_until_found(
    mutants: dict[str, Callable[[], Patch]], seeds: Iterator[int]
) -> Iterator[tuple[str, int, int, str]]:
    """Yield each mutant that is found, with the number of programs, the seed and the difference."""
    left = dict(mutants)
    for number, seed in enumerate(seeds, 1):
        program = random_program(seed)
        function = compiled(program.source())
        plain = without_bugs(program, function)
        if plain is None:
            continue
        for name, make in list(left.items()):
            with make():
                outcome = compared(plain, run(function, wrapped=True))
            if outcome.is_bug:
                del left[name]
                yield name, number, seed, f"{outcome.kind}: {outcome.detail}"
        if not left:
            return


def main() -> int:
    quiet()
    left = set(MUTANTS)
    for name, number, seed, detail in programs_until_found(MUTANTS, iter(range(MOST))):
        left.discard(name)
        print(f"{number:6d} programs: {name} (seed {seed}): {detail[:110]}", flush=True)
    for name in sorted(left):
        print(f"not found: {name}")
    print(f"{len(MUTANTS) - len(left)} of {len(MUTANTS)} mutants found within {MOST} programs")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
