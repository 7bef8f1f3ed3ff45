"""Embeddings and bags with the options, ids and misuses that PyTorch's own tests cover, plain and wrapped."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autoada
from tests.effects import copied, difference, effects_of, is_refusal

ROWS, LENGTH = 7, 3

Run = Callable[[Any, torch.optim.Optimizer], Any]


def assert_equal_or_refused(make: Callable[[], nn.Module], run: Run, tolerance: float = 1e-5) -> None:
    """Run with a plain and a wrapped module; `run` returns everything that the user sees."""

    def of_plain() -> Any:
        torch.manual_seed(0)
        net = make()
        return run(net, torch.optim.SGD(net.parameters(), lr=0.5))

    def of_wrapped() -> Any:
        torch.manual_seed(0)
        net = make()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        model = autoada.AdaModel(net, optimizer)
        try:
            return copied(run(model, optimizer))
        finally:
            model.close()

    expected, found = effects_of(of_plain), effects_of(of_wrapped)
    if isinstance(found, Exception) and is_refusal(found):
        return
    assert not difference(expected, found, tolerance)


def table_of(model: Any) -> Any:
    """The first embedding's weight."""
    return next(
        module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    ).weight


def training(*calls: tuple[Any, ...], **named: Any) -> Run:
    """Steps with the inputs of the calls: outputs, gradients and weights of each."""

    def run(model: Any, optimizer: torch.optim.Optimizer) -> list[Any]:
        seen: list[Any] = []
        weight = table_of(model)
        for inputs in calls:
            optimizer.zero_grad()
            output = model(*inputs, **named)
            seen.append(copied(output))
            if output.requires_grad:
                (output * torch.linspace(0.5, 2, output.numel()).view(output.shape)).sum().backward()
                gradient = weight.grad
                seen += [copied(gradient), gradient is not None and gradient.is_sparse]
            optimizer.step()
            seen.append(copied(weight))
        return seen

    return run


def combinations(**options: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """One dictionary for each combination of values."""
    for values in itertools.product(*options.values()):
        yield dict(zip(options, values, strict=True))


IDS: dict[str, list[Tensor]] = {
    "one dimension": [torch.tensor([3, 1, 3]), torch.tensor([6, 0, 1])],
    "two dimensions": [torch.tensor([[3, 1], [0, 3]]), torch.tensor([[6, 6], [3, 1]])],
    "int32": [torch.tensor([3, 1, 3], dtype=torch.int32)],
    "number": [torch.tensor(3), torch.tensor(0)],
    "none": [torch.tensor([], dtype=torch.int64), torch.zeros(0, 4, dtype=torch.int64)],
    "not contiguous": [torch.arange(6).view(2, 3).t(), torch.arange(7)[::2]],
    "too large": [torch.tensor([1, ROWS])],
    "negative": [torch.tensor([1, -1])],
    "wrong dtype": [torch.tensor([1.0, 2.0])],
}


SPARSE_IDS = [name for name in IDS if name != "number"]
"""PyTorch's own sparse gradients do not accept a single number."""


@pytest.mark.parametrize(
    ("sparse", "ids"), [*((False, name) for name in IDS), *((True, name) for name in SPARSE_IDS)]
)
def test_embedding(sparse: bool, ids: str) -> None:
    for options in combinations(
        padding_idx=[None, 3, -1],
        max_norm=[None, 0.8],
        norm_type=[2.0, 1.0],
        scale_grad_by_freq=[False, True],
    ):
        assert_equal_or_refused(
            lambda options=options: nn.Embedding(ROWS, LENGTH, sparse=sparse, **options),  # type: ignore[misc]
            training(*((one,) for one in IDS[ids])),
        )


BAGS: dict[str, list[tuple[Any, ...]]] = {
    "two dimensions": [(torch.tensor([[3, 1, 3], [0, 3, 5]]),), (torch.tensor([[6, 6], [3, 1]]),)],
    "offsets": [
        (torch.tensor([3, 1, 3, 0]), torch.tensor([0, 2])),
        (torch.tensor([3, 1, 3, 0, 4]), torch.tensor([0, 0, 3, 5])),
    ],
    "int32": [(torch.tensor([3, 1], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32))],
    "mixed integers": [(torch.tensor([3, 1], dtype=torch.int32), torch.tensor([0, 1]))],
    "one bag": [(torch.tensor([3, 1, 3]), torch.tensor([0]))],
    "only padding": [(torch.tensor([3, 3, 3, 1]), torch.tensor([0, 2])), (torch.tensor([[3, 3], [1, 3]]),)],
    "no ids": [(torch.tensor([], dtype=torch.int64), torch.tensor([0, 0, 0]))],
    "no bags": [(torch.zeros(0, 2, dtype=torch.int64),), (torch.zeros(2, 0, dtype=torch.int64),)],
    "too large": [(torch.tensor([[1, ROWS]]),)],
    "negative": [(torch.tensor([[1, -1]]),)],
    "no offsets": [(torch.tensor([1, 2]),)],
    "offsets that do not begin at 0": [(torch.tensor([1, 2]), torch.tensor([1, 2]))],
    "offsets of two dimensions": [(torch.tensor([1, 2]), torch.tensor([[0, 1]]))],
    "offsets for two dimensions": [(torch.tensor([[1, 2]]), torch.tensor([0]))],
    "three dimensions": [(torch.zeros(1, 2, 3, dtype=torch.int64),)],
}


@pytest.mark.parametrize("bag", BAGS)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_bag(bag: str, mode: str, sparse: bool) -> None:
    for options in combinations(
        padding_idx=[None, 3, -1],
        max_norm=[None, 0.8],
        scale_grad_by_freq=[False, True],
        include_last_offset=[False, True],
    ):
        assert_equal_or_refused(
            lambda options=options: nn.EmbeddingBag(  # type: ignore[misc]
                ROWS, LENGTH, mode=mode, sparse=sparse, **options
            ),
            training(*_ended(BAGS[bag], options["include_last_offset"])),
        )


def _ended(calls: list[tuple[Any, ...]], last: bool) -> list[tuple[Any, ...]]:
    """The calls, with the end of the last bag as an offset where PyTorch needs it for results of its own."""
    return [
        (ids, torch.cat([*offsets, torch.tensor([len(ids)], dtype=offsets[0].dtype)]))
        if last and offsets and offsets[0].dim() == 1
        else (ids, *offsets)
        for ids, *offsets in calls
    ]


WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "equal shape": lambda ids: torch.linspace(-1, 2, ids.numel()).view(ids.shape),
    "zeros": lambda ids: torch.zeros(ids.shape),
    "other dtype": lambda ids: torch.ones(ids.shape, dtype=torch.float64),
    "other shape": lambda ids: torch.ones(ids.numel() + 1),
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_weights_of_samples_and_their_gradients(weights: str, mode: str) -> None:
    def run(model: Any, optimizer: torch.optim.Optimizer) -> list[Any]:
        seen: list[Any] = []
        calls = [*BAGS["two dimensions"], *BAGS["offsets"], *BAGS["no ids"]]
        for inputs in _ended(calls, model.include_last_offset):
            given = WEIGHTS[weights](inputs[0]).requires_grad_()
            seen += training(inputs, per_sample_weights=given)(model, optimizer)
            seen.append(copied(given.grad))
        return seen

    for options in combinations(
        padding_idx=[None, 3], sparse=[False, True], include_last_offset=[False, True]
    ):
        assert_equal_or_refused(
            lambda options=options: nn.EmbeddingBag(ROWS, LENGTH, mode=mode, **options),  # type: ignore[misc]
            run,
        )


def test_an_unknown_mode_of_bags_is_refused_as_in_pytorch() -> None:
    make = functools.partial(nn.EmbeddingBag, ROWS, LENGTH, mode="median")
    assert_equal_or_refused(make, training(*BAGS["two dimensions"]))


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("freeze", [False, True])
def test_pretrained_weights(kind: Any, freeze: bool) -> None:
    class Read(nn.Module):
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.table = kind.from_pretrained(torch.randn(ROWS, LENGTH), freeze=freeze, **options)
            self.out = nn.Linear(LENGTH, 2)

        def forward(self, ids: Tensor) -> Any:
            return self.out(self.table(ids))

    for options in combinations(
        padding_idx=[None, 2], max_norm=[None, 0.9], norm_type=[2.0, 3.0], scale_grad_by_freq=[False, True],
        sparse=[False, True],
    ):  # fmt: skip
        assert_equal_or_refused(
            lambda options=options: Read(**options),  # type: ignore[misc]
            training(*BAGS["two dimensions"]),
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_other_dtypes_are_equal_within_their_precision(kind: Any, dtype: torch.dtype) -> None:
    def run(model: Any, optimizer: torch.optim.Optimizer) -> list[Any]:
        output = model(torch.tensor([[3, 1], [0, 3]]))
        output.float().square().sum().backward()
        return [output, table_of(model).grad]

    assert_equal_or_refused(
        lambda: kind(ROWS, LENGTH, dtype=dtype), run, 1e-5 if dtype is torch.float64 else 1e-2
    )


def read_as_embedding(weight: Any, ids: Tensor) -> Tensor:
    return F.embedding(ids, weight)


def read_as_bag(weight: Any, ids: Tensor) -> Tensor:
    return F.embedding_bag(ids, weight, mode="sum")


def read_with_padding(weight: Any, ids: Tensor) -> Tensor:
    return F.embedding(ids, weight, padding_idx=3)


READS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "embedding": read_as_embedding,
    "padded embedding": read_with_padding,
    "bag": read_as_bag,
    "index": lambda weight, ids: weight[ids],
    "index_select": lambda weight, ids: weight.index_select(0, ids.flatten()),
    "slice": lambda weight, ids: weight[1:4] * ids.sum(),
    "scaled gradient": lambda weight, ids: F.embedding(ids, weight, scale_grad_by_freq=True),
    "changed copy": lambda weight, ids: F.embedding(ids, weight.clone().mul_(2)),
    "scaled table": lambda weight, ids: F.embedding(ids, weight * 0.5),
    "transposed": lambda weight, ids: F.linear(F.embedding(ids, weight), weight),
    "column": lambda weight, ids: weight[:, 1][ids],
    "gather": lambda weight, ids: weight.gather(0, ids.view(-1, 1).expand(-1, LENGTH)),
    "take_along_dim": lambda weight, ids: torch.take_along_dim(weight, ids.view(-1, 1), 0),
    "one-hot": lambda weight, ids: F.one_hot(ids, ROWS).to(weight.dtype) @ weight,
}


ONCE_DIFFERENTIABLE = {"bag", "scaled gradient"}


@pytest.mark.parametrize("read", sorted(READS.keys() - ONCE_DIFFERENTIABLE))
def test_penalty_on_the_gradient_of_a_table(read: str) -> None:
    def run(model: Any, optimizer: torch.optim.Optimizer) -> list[Any]:
        weight, seen = table_of(model), []
        for ids in IDS["two dimensions"]:
            optimizer.zero_grad()
            (gradient,) = torch.autograd.grad(
                READS[read](weight, ids).pow(3).sum(), [weight], create_graph=True
            )
            seen.append(copied(gradient))
            gradient.square().sum().backward()
            seen.append(copied(weight.grad))
            optimizer.step()
            seen.append(copied(weight))
        return seen

    assert_equal_or_refused(lambda: nn.Embedding(ROWS, LENGTH), run)


GRADIENTS: dict[str, Callable[[Any, Callable[[], Tensor]], Any]] = {
    "of two backward passes": lambda weight, loss: (loss().backward(), loss().backward(), weight.grad)[-1],
    "of a retained graph": lambda weight, loss: [
        (kept := loss()).backward(retain_graph=True), kept.backward(), weight.grad
    ][-1],
    "by autograd.grad": lambda weight, loss: [*torch.autograd.grad(loss(), [weight]), weight.grad],
    "by autograd.grad, unused": lambda weight, loss: torch.autograd.grad(
        loss().detach().requires_grad_() * 2, [weight], allow_unused=True
    ),
    "by backward with inputs": lambda weight, loss: [loss().backward(inputs=[weight]), weight.grad][-1],
    "by inputs of another tensor": lambda weight, loss: [
        (loss() * (other := torch.ones((), requires_grad=True))).backward(inputs=[other]), weight.grad
    ][-1],
    "by vectorised autograd.grad": lambda weight, loss: torch.autograd.grad(
        loss().repeat(2), [weight], torch.eye(2), is_grads_batched=True
    ),
    "by jacobian": lambda weight, loss: torch.autograd.functional.jacobian(
        lambda given: given[torch.tensor([1, 1, 4])].square().sum(1), weight.detach()
    ),
    "under no_grad": lambda weight, loss: _without_grad(loss),
    "under inference_mode": lambda weight, loss: _in_inference(loss),
    "with a hook": lambda weight, loss: _hooked(weight, loss),
    "with a hook after accumulation": lambda weight, loss: _hooked_after(weight, loss),
    "as a product": lambda weight, loss: [loss().backward(), weight.grad * 2, weight.grad.sum(0)][1:],
    "of another shape": lambda weight, loss: [loss().backward(), weight.grad.view(-1), weight.grad.t()][1:],
    "as a copy": lambda weight, loss: [loss().backward(), weight.grad.clone(), weight.grad.detach()][1:],
    "set by hand": lambda weight, loss: [_set_gradient(weight, torch.ones(ROWS, LENGTH)), weight.grad][-1],
    "set by hand to a wrong shape": lambda weight, loss: _set_gradient(weight, torch.ones(2)),
    "set to None": lambda weight, loss: [loss().backward(), _set_gradient(weight, None), weight.grad][1:],
    "zeroed in place": lambda weight, loss: [loss().backward(), weight.grad.zero_(), weight.grad][1:],
    "masked": lambda weight, loss: [
        loss().backward(), weight.grad.__setitem__(torch.tensor([1, 2]), 0.0), weight.grad
    ][1:],
    "clipped by norm": lambda weight, loss: [
        loss().backward(), nn.utils.clip_grad_norm_([weight], 0.1), weight.grad
    ][1:],
    "clipped by value": lambda weight, loss: [
        loss().backward(), nn.utils.clip_grad_value_([weight], 0.1), weight.grad
    ][1:],
    "number of the version": lambda weight, loss: [loss().backward(), weight.is_leaf, weight.grad_fn][1:],
}  # fmt: skip


def _set_gradient(weight: Any, gradient: Tensor | None) -> bool:
    weight.grad = gradient
    return weight.grad is gradient


def _without_grad(loss: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return loss()


def _in_inference(loss: Callable[[], Tensor]) -> Tensor:
    with torch.inference_mode():
        return loss().clone()


def _hooked(weight: Any, loss: Callable[[], Tensor]) -> Any:
    seen: list[Tensor] = []

    def tripled(gradient: Tensor) -> Tensor:
        seen.append(gradient.clone())
        return gradient * 3

    handle = weight.register_hook(tripled)
    loss().backward()
    handle.remove()
    loss().backward()
    return seen, weight.grad


def _hooked_after(weight: Any, loss: Callable[[], Tensor]) -> Any:
    seen: list[Tensor] = []
    handle = weight.register_post_accumulate_grad_hook(lambda given: seen.append(given.grad.clone()))
    loss().backward()
    handle.remove()
    loss().backward()
    return seen, weight.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("read", [*READS, "sparse embedding"])
def test_gradient_of_a_table(gradient: str, read: str, dtype: torch.dtype) -> None:
    sparse = read == "sparse embedding"

    def run(model: Any, optimizer: torch.optim.Optimizer) -> Any:
        weight = table_of(model)
        seen = []
        for ids in (torch.tensor([3, 1, 3]), torch.tensor([0, 6, 1])):
            given = ids.view(1, -1) if read == "bag" else ids

            def loss(given: Tensor = given) -> Tensor:
                first, second = (
                    model(each) if sparse else READS[read](weight, each) for each in (given, given[..., 1:])
                )
                total: Tensor = first.pow(2).sum() + second.sum()
                return total

            seen.append(copied(GRADIENTS[gradient](weight, loss)))
            optimizer.step()
            seen.append(copied(weight))
        return seen

    def table_of_whole_numbers() -> nn.Module:
        # They and their gradients are exact in half precision.
        values = torch.arange(ROWS * LENGTH, dtype=dtype).view(ROWS, LENGTH) % 5 - 2
        return nn.Embedding(ROWS, LENGTH, _weight=values, sparse=sparse)

    assert_equal_or_refused(table_of_whole_numbers, run, 1e-5 if dtype is torch.float32 else 1e-2)


@pytest.mark.filterwarnings(r"ignore:Using backward\(\) with create_graph=True")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("reads", [*itertools.permutations(READS, 2)], ids="-".join)
def test_gradients_of_two_kinds_of_reads_add_up(reads: tuple[str, str], dtype: torch.dtype) -> None:
    """Also in a graph of the gradient, and if the gradient of either is dense."""
    second_derivative = ONCE_DIFFERENTIABLE.isdisjoint(reads)

    def run(model: Any, optimizer: torch.optim.Optimizer) -> Any:
        weight, ids, seen = table_of(model), torch.tensor([[3, 1, 3]]), []
        for _ in range(2):
            loss = sum(READS[each](weight, ids).pow(2).sum() for each in reads)
            assert isinstance(loss, Tensor)
            loss.backward(create_graph=second_derivative)
            seen.append(copied(weight.grad))
            optimizer.step()
            weight.grad = None
            seen.append(copied(weight))
        return seen

    def make() -> nn.Module:
        return nn.Embedding(ROWS, LENGTH, _weight=torch.ones(ROWS, LENGTH, dtype=dtype))

    assert_equal_or_refused(make, run, 1e-5 if dtype is torch.float32 else 1e-2)


@pytest.mark.parametrize("copies", [copy.copy, copy.deepcopy])
def test_copies_of_a_wrapped_embedding_look_rows_up(copies: Callable[[Any], Any]) -> None:
    net = nn.Sequential(nn.Embedding(ROWS, LENGTH))
    with contextlib.closing(autoada.AdaModel(net, torch.optim.SGD(net.parameters(), lr=0.5))) as model:
        plain, ids = autoada.unwrap(model), torch.arange(ROWS)
        loaded = pickle.loads(pickle.dumps(plain))
        for each in (copies(net[0]), plain[0], loaded[0]):  # type: ignore[index]
            assert type(each) is nn.Embedding
            assert torch.equal(each(ids), net(ids))
            assert "forward" not in vars(each)


def test_options_of_a_copy_of_a_wrapped_embedding_apply() -> None:
    net = nn.Sequential(nn.Embedding(ROWS, LENGTH))
    with contextlib.closing(autoada.AdaModel(net, torch.optim.SGD(net.parameters(), lr=0.5))):
        copied = copy.copy(net[0])
        assert isinstance(copied, nn.Embedding)
        copied.padding_idx = 1
        copied(torch.arange(2)).sum().backward()
        gradient = net[0].weight.grad
        assert isinstance(gradient, torch.Tensor)
        assert gradient[:2].tolist() == [[1.0] * LENGTH, [0.0] * LENGTH]


@pytest.mark.parametrize("name", ["nn.Embedding.forward", "functional.embedding"])
def test_a_function_that_a_program_replaces_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Embedding(ROWS, LENGTH)
    with contextlib.closing(autoada.AdaModel(net, torch.optim.SGD(net.parameters(), lr=0.5))) as model:
        owner, attribute = (nn.Embedding, "forward") if name.startswith("nn") else (F, "embedding")
        original, calls = getattr(owner, attribute), []

        def noted(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, attribute, noted)
        model(torch.arange(ROWS))
        assert name in calls
