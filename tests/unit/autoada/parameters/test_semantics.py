"""Programs that do unusual things to a table are equal to plain PyTorch, or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import adaps
import autoada
from autoada.parameters.table_gradients import raw_gradient
from tests.plain_and_wrapped import plain_and_wrapped, train

ROWS, LENGTH, STEPS = 10, 3, 4
Write = Callable[[Any], Any]


class Bags(nn.Module):
    """A table that is looked up, and a dense layer."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.emb = nn.Embedding(ROWS, LENGTH, **options)
        self.lin = nn.Linear(LENGTH, 1)

    def forward(self, ids: Tensor) -> Any:
        return self.lin(self.emb(ids).mean(1)).squeeze(1)


def ids_of(step: int) -> Tensor:
    return torch.randint(0, ROWS, (4, 3), generator=torch.Generator().manual_seed(step))


def momentum(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def plain_of(model: Any) -> Any:
    return model.module if isinstance(model, autoada.AdaModel) else model


def trained(
    model: Any, optimizer: Any, after_backward: Callable[[Any, list[Any]], Any], **how: Any
) -> list[Any]:
    """Losses, what ``after_backward(model, seen)`` appends in each step, and the weights at the end."""
    seen: list[Any] = []
    for step in range(STEPS):
        if how.get("zero_grad", True):
            optimizer.zero_grad()
        loss = model(ids_of(step)).square().mean()
        loss.backward()
        after_backward(model, seen)
        for _ in range(how.get("steps", 1)):
            optimizer.step()
        seen.append(loss.item())
    state = model.state_dict()
    return [*seen, *(state[name].flatten().tolist() for name in ("emb.weight", "lin.weight", "lin.bias"))]


def assert_equal(
    after_backward: Callable[[Any, list[Any]], Any],
    make: Callable[[], Bags] = Bags,
    optimizer: Callable[[nn.Module], Any] = momentum,
    **how: Any,
) -> None:
    def run(model: Any, optimizer: Any) -> list[Any]:
        return trained(model, optimizer, after_backward, **how)

    plain, wrapped = plain_and_wrapped(make, optimizer, run)
    for expected, found in zip(plain, wrapped, strict=True):
        assert found == pytest.approx(expected, abs=1e-5)


def _reset(weight: Any) -> None:
    embedding = nn.Embedding(
        ROWS, LENGTH, padding_idx=2, _weight=torch.empty(0, LENGTH).new_empty(ROWS, LENGTH)
    )
    embedding.weight = weight
    embedding.reset_parameters()


WRITES: dict[str, Write] = {
    "row": lambda w: w[3].fill_(0),
    "row of data": lambda w: w.data[3].zero_(),
    "rows of data": lambda w: w.data[3:6].copy_(torch.ones(3, LENGTH)),
    "init of a row": lambda w: nn.init.zeros_(w[7]),
    "init": lambda w: nn.init.uniform_(w),
    "columns": lambda w: w.narrow(1, 1, 2).mul_(0),
    "every third row": lambda w: w[::3].add_(1),
    "unbind": lambda w: w.unbind()[4].zero_(),
    "chunk": lambda w: w.chunk(3)[1].neg_(),
    "flat view": lambda w: w.data.view(-1)[2:4].fill_(9),
    "transposed": lambda w: w.t()[1].fill_(2),
    "diagonal": lambda w: w.diagonal().fill_(5),
    "set item": lambda w: w.__setitem__(3, torch.ones(LENGTH)),
    "set items": lambda w: w.__setitem__(torch.tensor([1, -2]), 7.0),
    "set elements": lambda w: w.__setitem__((torch.tensor([1, 2]), 0), 7.0),
    "mask": lambda w: w.__setitem__(w > 0.5, 0.5),
    "masked fill": lambda w: w.masked_fill_(w < 0, 0),
    "out": lambda w: torch.mul(w.detach()[4], 2, out=w.detach()[5]),
    "index add": lambda w: w.index_add_(0, torch.tensor([1, 1, 4]), torch.ones(3, LENGTH)),
    "index fill": lambda w: w.index_fill_(0, torch.tensor([8]), 3),
    "index copy": lambda w: w.index_copy_(0, torch.tensor([8, 0]), torch.ones(2, LENGTH)),
    "scatter": lambda w: w.scatter_(0, torch.tensor([[1, 2, 3]]), 4.0),
    "clamp": lambda w: w.clamp_(-0.3, 0.3),
    "renorm": lambda w: w.renorm_(2, 0, 0.5),
    "augmented": lambda w: setattr(w, "data", w.data * 0.5),
    "foreach": lambda w: torch._foreach_mul_([w], 0.5),
    "of itself": lambda w: w.copy_(w.flip(0)),
    "swap of rows": lambda w: w[[1, 2]].copy_(w[[2, 1]]),
    "reset": _reset,
    "bits": lambda w: w.data.view(torch.int32)[3].fill_(0),
    "complex": lambda w: torch.view_as_complex(w.data.view(-1, 2))[1:4].mul_(2j),
    "lerp": lambda w: w.lerp_(torch.ones(ROWS, LENGTH), 0.1),
    "add of a gradient": lambda w: w.data.add_(w.grad, alpha=-0.1),
    "add of a gradient by its norm": lambda w: w.data.add_(0.1 * w.grad / w.grad.norm()),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_writes_by_hand_arrive(write: Write) -> None:
    def after_backward(model: Any, seen: list[Any]) -> None:
        torch.manual_seed(len(seen))
        with torch.no_grad():
            write(plain_of(model).emb.weight)

    assert_equal(after_backward)


GRADIENTS: dict[str, Write] = {
    "rows": lambda w: w.grad.__setitem__(torch.tensor([1, 2, 9]), 0),
    "row": lambda w: w.grad[0].zero_(),
    "data": lambda w: w.grad.data.__setitem__([3, 4], 1.5),
    "mask": lambda w: w.grad.mul_((torch.arange(ROWS) % 2).unsqueeze(1)),
    "boolean mask": lambda w: w.grad.__setitem__(torch.arange(ROWS) > 4, 0),
    "new": lambda w: setattr(w, "grad", w.grad * 0.5 + 0.1),
    "dense": lambda w: setattr(w, "grad", torch.ones(ROWS, LENGTH)),
    "none": lambda w: setattr(w, "grad", None),
    "norm": lambda w: nn.utils.clip_grad_norm_([w], 0.01),
    "value": lambda w: nn.utils.clip_grad_value_([w], 0.01),
    "infinity": lambda w: nn.utils.clip_grad_norm_([w], 0.01, norm_type=float("inf")),
    "noise": lambda w: w.grad.add_(torch.ones(ROWS, LENGTH) * 0.1),
    "sign": lambda w: w.grad.sign_(),
    "division": lambda w: w.grad.div_(2),
    "addition to itself": lambda w: w.grad.add_(w.grad.clone()),
    "clone": lambda w: setattr(w, "grad", w.grad.clone().detach()),
}


@pytest.mark.parametrize("change", GRADIENTS.values(), ids=GRADIENTS.keys())
def test_changes_of_gradients_count(change: Write) -> None:
    def after_backward(model: Any, seen: list[Any]) -> None:
        weight = plain_of(model).emb.weight
        change(weight)
        if weight.grad is not None:
            seen.append(float(weight.grad.norm()))
            seen.append((weight.grad + torch.zeros(ROWS, LENGTH)).flatten().tolist())

    assert_equal(after_backward)


@pytest.mark.parametrize("how", [{"zero_grad": False}, {"steps": 2}, {"steps": 0}], ids=str)
def test_gradients_stay_until_zero_grad(how: dict[str, Any]) -> None:
    assert_equal(lambda model, seen: None, **how)


def test_gradients_that_are_pending_when_the_model_is_wrapped_count() -> None:
    def pending(model: nn.Module) -> Any:
        model(ids_of(7)).sum().backward()
        return momentum(model)

    assert_equal(lambda model, seen: None, optimizer=pending, zero_grad=False)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("before", [False, True], ids=["after wrapping", "before"])
def test_hooks_of_a_table_are_called(sparse: bool, before: bool) -> None:
    def hooked(weight: Any, seen: list[Any]) -> Any:
        weight.register_post_accumulate_grad_hook(lambda w: seen.append(float(w.grad.to_dense().sum())))
        return weight.register_hook(lambda gradient: gradient * 2)

    def run(model: Any, given: Any) -> list[Any]:
        optimizer, seen, handle = given
        if handle is None:
            handle = hooked(plain_of(model).emb.weight, seen)
        losses = trained(model, optimizer, lambda model, _: None)
        handle.remove()
        return [*seen, *losses, *trained(model, optimizer, lambda model, _: None), len(seen)]

    results = []
    for wrap in (False, True):
        torch.manual_seed(0)
        plain = Bags(sparse=sparse)
        optimizer, seen = momentum(plain), list[Any]()
        handle = hooked(plain.emb.weight, seen) if before else None
        model = autoada.AdaModel(plain, optimizer) if wrap else plain
        results.append(run(model, (optimizer, seen, handle)))
    for expected, found in zip(*results, strict=True):
        assert found == pytest.approx(expected, abs=1e-5)


def test_gradients_asked_of_autograd_have_the_tables_shape() -> None:
    def after_backward(model: Any, seen: list[Any]) -> None:
        weight = plain_of(model).emb.weight
        (gradient,) = torch.autograd.grad(model(ids_of(8)).square().mean(), [weight])
        seen.append((gradient + torch.zeros(ROWS, LENGTH)).flatten().tolist())

    assert_equal(after_backward)


@pytest.mark.parametrize("read", ["lookup", "index", "whole"])
def test_gradients_of_gradients(read: str) -> None:
    forms: dict[str, Callable[[Any, Tensor], Any]] = {
        "lookup": lambda m, ids: m.emb(ids),
        "index": lambda m, ids: m.emb.weight[ids],
        "whole": lambda m, ids: m.emb.weight.tanh()[ids],
    }

    def after_backward(model: Any, seen: list[Any]) -> None:
        plain = plain_of(model)
        loss = forms[read](plain, ids_of(2)).pow(3).sum()
        (gradient,) = torch.autograd.grad(loss, [plain.emb.weight], create_graph=True)
        gradient.square().sum().mul(0.01).backward()

    assert_equal(after_backward)


def test_sparse_gradients_are_pytorchs_own() -> None:
    def after_backward(model: Any, seen: list[Any]) -> None:
        gradient = plain_of(model).emb.weight.grad
        assert type(gradient) is Tensor
        seen.append(gradient.coalesce().indices()[0].tolist())
        seen.append(gradient.coalesce().values().flatten().tolist())

    assert_equal(after_backward, lambda: Bags(sparse=True))


DENSE_LOOKUPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "functional": lambda weight, ids: F.embedding(ids, weight),
    "kernel": lambda weight, ids: torch.embedding(weight, ids),
    "index": lambda weight, ids: weight[ids],
    "index_select": lambda weight, ids: weight.index_select(0, ids[0]),
    "bag": lambda weight, ids: F.embedding_bag(ids, weight),
}


@pytest.mark.parametrize("lookup", DENSE_LOOKUPS.values(), ids=DENSE_LOOKUPS.keys())
@pytest.mark.parametrize("detached", [False, True], ids=["used", "detached"])
def test_a_gradient_is_sparse_if_all_its_parts_are(lookup: Any, detached: bool) -> None:
    class Both(Bags):
        def forward(self, ids: Tensor) -> Any:
            other = lookup(self.emb.weight, ids).mean()
            return super().forward(ids) + (other.detach() if detached else other)

    def after_backward(model: Any, seen: list[Any]) -> None:
        gradient = plain_of(model).emb.weight.grad
        assert gradient.is_sparse is detached
        seen.append(gradient.to_dense().flatten().tolist())

    assert_equal(after_backward, lambda: Both(sparse=True), lambda model: momentum(model, 0.01))


@pytest.mark.parametrize("by_module", [True, False], ids=["module", "functional"])
def test_gradients_of_a_dense_and_of_a_sparse_table_do_not_share_memory(by_module: bool) -> None:
    tables: Any = nn.ModuleList([nn.Embedding(ROWS, LENGTH), nn.Embedding(ROWS, LENGTH, sparse=by_module)])
    model: Any = autoada.AdaModel(tables, torch.optim.SGD(tables.parameters(), lr=0.1))
    ids = torch.tensor([1, 8, 4, 1])
    for _ in range(2):  # The first lookup by a function shows that the table has sparse gradients.
        tables.zero_grad()
        (tables[0](ids) + F.embedding(ids, tables[1].weight, sparse=True)).tanh().sum().backward()
    dense, sparse = (raw_gradient(weight) for weight in tables.parameters())
    assert dense is not None
    assert sparse is not None
    assert dense._values().data_ptr() != sparse._values().data_ptr()
    model.close()


def test_a_hook_gets_the_kind_of_gradient_of_its_backward_pass() -> None:
    class Twice(Bags):
        def forward(self, ids: Tensor) -> Any:
            kinds: list[bool] = []
            handle = self.emb.weight.register_hook(lambda gradient: kinds.append(gradient.is_sparse))
            (super().forward(ids).mean() + self.emb.weight[ids].mean()).backward()
            super().forward(ids).mean().backward()
            handle.remove()
            assert kinds == [False, True]
            return super().forward(ids)

    assert_equal(lambda model, seen: None, lambda: Twice(sparse=True), lambda model: momentum(model, 0.01))


@pytest.mark.parametrize(
    ("lookup", "rows"),
    [
        *((lookup, (ROWS, LENGTH)) for lookup in DENSE_LOOKUPS.values()),
        *((DENSE_LOOKUPS[name], (ROWS, LENGTH, 2)) for name in ("index", "index_select")),
    ],
)
def test_a_gradient_stays_when_the_ids_change(lookup: Any, rows: tuple[int, ...]) -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Parameter(torch.randn(rows))

        def forward(self, ids: Tensor) -> Any:
            return lookup(self.rows, ids).square().mean()

    def run(model: Any, optimizer: Any) -> list[float]:
        ids, losses = torch.empty(2, 3, dtype=torch.int64), []
        for step in range(4):
            ids.copy_(ids_of(step)[:2])
            loss = model(ids)
            loss.backward()
            ids.fill_(step)
            if step % 2 == 1:
                optimizer.step()
            losses.append(loss.item())
        return losses

    plain, wrapped = plain_and_wrapped(Rows, lambda model: momentum(model, 0.5), run, tables=["rows"])
    assert wrapped == pytest.approx(plain, abs=1e-6)


def test_adversarial_training_of_embeddings() -> None:
    def after_backward(model: Any, seen: list[Any]) -> None:
        weight = plain_of(model).emb.weight
        backup = weight.data.clone()
        weight.data.add_(0.5 * weight.grad / weight.grad.norm())
        loss = model(ids_of(5)).square().mean()
        loss.backward()
        weight.data = backup
        seen.append(loss.item())

    assert_equal(after_backward)


@pytest.mark.parametrize(
    "average", [None, lambda mean, new, count: 0.9 * mean + 0.1 * new], ids=["mean", "ema"]
)
def test_averaged_models_follow(average: Any) -> None:
    def run(model: Any, optimizer: Any) -> list[Any]:
        averaged = AveragedModel(model, avg_fn=average)
        trained(model, optimizer, lambda model, seen: averaged.update_parameters(model))
        return averaged(ids_of(3)).tolist()  # type: ignore[no-any-return]

    plain, wrapped = plain_and_wrapped(Bags, momentum, run)
    assert wrapped == pytest.approx(plain, abs=1e-5)


def test_a_copy_is_a_plain_model_of_its_own() -> None:
    torch.manual_seed(0)
    plain = Bags()
    optimizer = momentum(plain)
    model = autoada.AdaModel(plain, optimizer)
    copied: Any = copy.deepcopy(model)
    assert type(copied) is Bags
    assert type(copied.emb.weight) is nn.Parameter
    before = copied(ids_of(0)).tolist()
    assert before == pytest.approx(model(ids_of(0)).tolist())
    trained(model, optimizer, lambda model, seen: None)
    assert copied(ids_of(0)).tolist() == before
    model.close()


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def inferred(weight: Any, ids: Tensor) -> Tensor:
    with torch.inference_mode():
        value: Tensor = (weight[:, 1][ids].sum() + (weight[ids] @ weight.t()).mean()).item()
        return value


READS: dict[str, Callable[[Any, Tensor], Any]] = {
    "tied decoder": lambda m, ids: F.linear(m.emb(ids).sum(1), m.emb.weight).logsumexp(1),
    "norm of the table": lambda m, ids: m.emb(ids).mean() + m.emb.weight.pow(2).mean(),
    "slice": lambda m, ids: m.emb.weight[2:7].sum(1) + m.emb(ids).mean(),
    "row": lambda m, ids: m.emb.weight[4] * m.emb(ids).mean(),
    "steps": lambda m, ids: m.emb.weight[1:9:3, :2].sum() * m.emb(ids).mean(),
    "column": lambda m, ids: m.emb.weight[:, 1].sum() * m.emb(ids).mean(),
    "gather": lambda m, ids: m.emb.weight.gather(0, ids).mean(1),
    "index_select": lambda m, ids: m.emb.weight.index_select(0, ids[0]).mean(1),
    "index": lambda m, ids: m.emb.weight[ids, 1].mean(1),
    "mask": lambda m, ids: m.emb.weight[torch.arange(ROWS) > 5].mean(1),
    "list": lambda m, ids: m.emb.weight[[1, 5, 5, -1]].mean(1),
    "take": lambda m, ids: m.emb.weight.take(ids).mean(1),
    "frequency": lambda m, ids: F.embedding(ids, m.emb.weight, scale_grad_by_freq=True).mean(1),
    "padding": lambda m, ids: F.embedding(ids, m.emb.weight, padding_idx=-3).mean(1),
    "length": lambda m, ids: F.embedding(ids, m.emb.weight, max_norm=0.7).mean(1),
    "bag": lambda m, ids: F.embedding_bag(ids, m.emb.weight, mode="max"),
    "weighted bag": lambda m, ids: F.embedding_bag(
        ids, m.emb.weight, mode="sum", per_sample_weights=m.emb(ids)[:, :, 0]
    ),
    "padded bag": lambda m, ids: F.embedding_bag(ids, m.emb.weight, padding_idx=4),
    "own function": lambda m, ids: Scaled.apply(m.emb.weight)[ids].mean(1),  # type: ignore[no-untyped-call]
    "view and lookup": lambda m, ids: F.embedding(ids % 4, m.emb.weight[3:8]).mean(1),
    "vmap": lambda m, ids: torch.vmap(lambda some: m.emb(some).mean(0))(ids),
    "concatenated": lambda m, ids: torch.cat([m.emb.weight, torch.zeros(1, LENGTH)])[ids].mean(1),
    "einsum": lambda m, ids: torch.einsum("bid,rd->br", m.emb(ids), m.emb.weight),
    "cdist": lambda m, ids: torch.cdist(m.emb(ids).mean(1), m.emb.weight),
    "normalized": lambda m, ids: F.normalize(m.emb.weight, dim=1)[ids].mean(1),
    "detached": lambda m, ids: m.emb(ids).mean(1) * m.emb.weight.detach()[ids].mean(1),
    "no ids": lambda m, ids: m.emb(ids[:0]).sum() + m.emb.weight[ids[:0]].sum() + m.lin.bias,
    "one id": lambda m, ids: m.emb(ids[0, 0]).sum() + m.emb.weight[ids[0, 1]].mean(),
    "inference": lambda m, ids: m.emb(ids).mean(1) * inferred(m.emb.weight, ids),
    "checkpointed": lambda m, ids: torch.utils.checkpoint.checkpoint(
        lambda given: m.emb(given).mean(1).tanh(), ids, use_reentrant=False
    ),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reads_and_their_gradients(read: Callable[[Any, Tensor], Any]) -> None:
    class Reading(Bags):
        def forward(self, ids: Tensor) -> Any:
            return read(self, ids)

    assert_equal(lambda model, seen: None, Reading, lambda model: momentum(model, lr=0.01))


def test_values_can_be_read_in_every_form() -> None:
    def after_backward(model: Any, seen: list[Any]) -> None:
        weight = plain_of(model).emb.weight
        seen.append(weight.tolist()[3])
        seen.append(weight[2, 1].item())
        seen.append(weight.detach().numpy().flatten().tolist())
        seen.append(weight.data[5].tolist())
        seen.append(torch.equal(weight, weight.clone()))
        seen.append(f"{weight[2, 1]:.3f} {weight.sum():>8.2f}")

    assert_equal(after_backward)


REFUSED: dict[str, tuple[Write, str]] = {
    "write to numpy": (lambda w: w.data.numpy().__setitem__(5, 1), "read-only"),
    "resize": (lambda w: w.detach().resize_(3, 3), "cannot be applied"),
    "set": (lambda w: w.detach().set_(torch.zeros(3)), "cannot be applied"),
    "transpose in place": (lambda w: w.detach().t_(), "cannot be applied"),
    "address": (lambda w: w.data_ptr(), r"data_ptr\(\) needs the memory"),
    "storage": (lambda w: w.untyped_storage(), r"untyped_storage\(\) needs the memory"),
    "other shape": (lambda w: setattr(w, "data", torch.zeros(3)), "as its data"),
    "other dtype": (lambda w: setattr(w, "data", torch.zeros(ROWS, LENGTH).double()), "as its data"),
    "pickling": (lambda w: copy.copy(w), "save the wrapped model's state_dict"),
    "shared memory": (lambda w: w.share_memory_(), r"share_memory_\(\) needs"),
}


@pytest.mark.parametrize(("use", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_uses_of_memory_are_refused_by_name(use: Write, message: str) -> None:
    plain = Bags()
    model = autoada.AdaModel(plain, momentum(plain))
    with torch.no_grad(), pytest.raises((RuntimeError, TypeError, ValueError), match=message):
        use(plain.emb.weight)
    model.close()


@pytest.mark.parametrize("kind", ["tables", "dense", "mixed", "buffer"])
def test_parameters_that_share_memory_train_as_in_pytorch(kind: str) -> None:
    class Sharing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Embedding(4, 4) if kind in ("tables", "mixed") else nn.Linear(4, 4)
            self.b = nn.Embedding(4, 4) if kind == "tables" else nn.Linear(4, 4)
            self.out = nn.Linear(4, 1)
            if kind == "buffer":
                self.b.register_buffer("part", self.a.weight.data[:, 1:])
            else:
                self.b.weight.data = self.a.weight.data

        def forward(self, ids: Tensor) -> Any:
            inputs = (
                ids if type(each) is nn.Embedding else F.one_hot(ids, 4) * 1.0 for each in (self.a, self.b)
            )
            first, second = (each(given) for each, given in zip((self.a, self.b), inputs, strict=True))
            scale = cast("Tensor", self.b.part).sum() if kind == "buffer" else 1.0
            return self.out(first * second * scale).square().mean()

    def run(model: Any, optimizer: Any) -> list[Any]:
        batches = [torch.tensor([step % 4, 3]) for step in range(STEPS)]
        losses = train(model, optimizer, batches, lambda model, ids: model(ids))
        state = model.state_dict()
        return [losses, *(state[name].flatten().tolist() for name in state)]

    plain, wrapped = plain_and_wrapped(Sharing, momentum, run)
    for expected, found in zip(plain, wrapped, strict=True):
        assert found == pytest.approx(expected, abs=1e-5)


def test_embeddings_without_elements_train_as_in_pytorch() -> None:
    class Empty(Bags):
        def __init__(self) -> None:
            super().__init__()
            self.no_rows, self.no_columns = nn.Embedding(0, 2), nn.Embedding(ROWS, 0)

        def forward(self, ids: Tensor) -> Any:
            return super().forward(ids) + self.no_rows(ids[:0]).sum() + self.no_columns(ids).sum()

    def run(model: Any, optimizer: Any) -> list[Any]:
        losses = train(
            model, optimizer, map(ids_of, range(STEPS)), lambda model, ids: model(ids).square().mean()
        )
        return [losses, model.state_dict()["emb.weight"].flatten().tolist()]

    plain, wrapped = plain_and_wrapped(Empty, momentum, run)
    for expected, found in zip(plain, wrapped, strict=True):
        assert found == pytest.approx(expected, abs=1e-5)


def test_an_optimizer_must_step_parameters_that_share_memory() -> None:
    model = nn.ModuleDict({"a": nn.Embedding(4, 4), "b": nn.Embedding(4, 4)})
    model["b"].weight.data = model["a"].weight.data
    with pytest.raises(ValueError, match=r"'a\.weight' .* shares memory .* needs an optimizer of torch"):
        autoada.AdaModel(model, adaps.SGD())


def test_other_strides_of_a_dense_parameter_are_followed() -> None:
    def transpose(model: Any, seen: list[Any]) -> None:
        weight = plain_of(model).lin.weight
        if len(seen) == 1:
            weight.data = weight.data.t()
        elif len(seen) == 2:
            with torch.no_grad():
                weight.t_()
        weight.grad = torch.arange(float(LENGTH * LENGTH)).view(LENGTH, LENGTH)

    class Square(Bags):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(LENGTH, LENGTH)

        def forward(self, ids: Tensor) -> Any:
            return self.lin(self.emb(ids).mean(1))

    assert_equal(transpose, Square)


def test_a_step_leaves_graphs_of_parameters_without_a_gradient_valid() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
            return self.one(given).sum(), self.other(torch.tanh(self.other(given))).sum()

    def run(model: Any, optimizer: Any) -> list[float]:
        losses = model(torch.ones(2, 3))
        for loss in losses:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [loss.item() for loss in model(torch.ones(2, 3))]

    plain, wrapped = plain_and_wrapped(Layers, momentum, run)
    assert wrapped == pytest.approx(plain, abs=1e-5)


def test_wrapping_does_not_compute_parametrizations() -> None:
    class Noise(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight + torch.rand_like(weight)

    def make() -> Bags:
        model = Bags()
        nn.utils.parametrize.register_parametrization(model.lin, "weight", Noise())
        return model

    plain, wrapped = plain_and_wrapped(make, momentum, lambda *_: torch.rand(1).item())
    assert plain == wrapped


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32])
def test_ids_of_a_type_that_pytorch_refuses_are_refused(dtype: torch.dtype) -> None:
    plain, wrapped = plain_and_wrapped(Bags, momentum, lambda model, _: _error(model, dtype))
    assert plain.split(";")[0] == wrapped.split(";")[0]


def _error(model: Any, dtype: torch.dtype) -> str:
    with pytest.raises(RuntimeError) as raised:
        model(torch.ones(2, 2, dtype=dtype))
    return str(raised.value)


PRODUCTS: dict[str, Callable[[Any, Tensor], Any]] = {
    "linear": lambda w, x: F.linear(x, w),
    "transposed": lambda w, x: x @ w.t(),
    "first rows": lambda w, x: torch.matmul(x, w[:7].transpose(0, 1)),
    "column": lambda w, x: torch.mm(w, x[:1].t()),
    "data": lambda w, x: F.linear(x, w.data),
    "first rows of data": lambda w, x: x @ w.data[:7].t(),
}


def _double(model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        plain_of(model).emb.weight.mul_(2)


def _write_after_another_batch(model: Any, optimizer: Any) -> None:
    model(ids_of(1))
    plain_of(model).emb.weight.data[3].fill_(2)


def _evaluate(model: Any, optimizer: Any = None) -> None:
    with torch.inference_mode():
        F.linear(torch.ones(1, LENGTH), plain_of(model).emb.weight)
        F.linear(torch.ones(1, LENGTH), plain_of(model).emb.weight[:7])


def _product_without_gradient(model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        x = torch.ones(2, LENGTH)
        F.linear(x, plain_of(model).emb.weight).add_(x @ plain_of(model).emb.weight.t())
        F.linear(x, plain_of(model).emb.weight[:7])


def _step(model: Any, optimizer: Any) -> None:
    model(ids_of(1)).sum().backward()
    optimizer.step()


CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda model, optimizer: None,
    "write to data": lambda model, optimizer: plain_of(model).emb.weight.data[3].fill_(2),
    "write": _double,
    "step": _step,
    "evaluation": _evaluate,
    "evaluation without inference mode": _product_without_gradient,
    "another batch": lambda model, optimizer: model(ids_of(1)),
    "another batch and a write": _write_after_another_batch,
}


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("product", PRODUCTS)
def test_the_gradient_of_a_product_follows_the_table_or_is_refused(
    product: str, change: str, trained: bool
) -> None:
    def run(model: Any, optimizer: Any) -> Any:
        weight = plain_of(model).emb.weight.requires_grad_(trained)
        given = torch.full((2, LENGTH), 0.5, requires_grad=True)
        _evaluate(model, optimizer)
        _product_without_gradient(model, optimizer)
        loss = PRODUCTS[product](weight, given).square().sum()
        CHANGES[change](model, optimizer)
        try:
            loss.backward()
        except RuntimeError as error:
            if "has been modified" not in str(error):
                raise
            return "refused"
        return [None if each.grad is None else each.grad.tolist() for each in (given, weight)]

    plain, wrapped = plain_and_wrapped(Bags, lambda model: torch.optim.SGD(model.parameters(), 0.1), run)
    if wrapped != plain:
        assert wrapped == "refused"
        assert change == "another batch and a write" or (product == "first rows" and "data" in change)


@pytest.mark.parametrize("by_module", [True, False], ids=["module", "functional"])
def test_gradients_of_lookups_are_contiguous_after_a_dense_gradient(by_module: bool) -> None:
    """PyTorch adds rows that are not contiguous to a dense gradient one by one."""
    net = nn.Embedding(ROWS, LENGTH)
    optimizer = momentum(net)
    model: Any = autoada.AdaModel(net, optimizer)
    ids = torch.tensor([1, 8, 4, 1])
    contiguous = []
    for step in range(4):
        rows = model(ids) if by_module else F.embedding(ids, net.weight)
        loss = torch.cat([rows, torch.ones(4, 1)], 1).sin().sum()
        gradient: Any = torch.autograd.grad(loss, [net.weight], retain_graph=True)[0]
        contiguous.append(gradient.store.sparse._values().is_contiguous())
        optimizer.zero_grad()
        (loss + net.weight.square().sum() if step == 1 else loss).backward()
        optimizer.step()
    assert contiguous == [False, False, True, False]
    model.close()
