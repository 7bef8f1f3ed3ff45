"""AdaModel as an nn.Module: state, copies, evaluation, mistakes."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import prune

import adaps
import autoada
from adaps.age_limit import MOST, default_limit
from autoada.model.staleness import StalenessLimit
from autoada.model.wrapper import training_state_of
from autoada.parameters.table_parameter import TableParameter
from tests.plain_and_wrapped import plain_and_wrapped, train


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(20, 3)
        self.norm = nn.BatchNorm1d(3)
        self.out = nn.Linear(3, 1)

    def forward(self, ids: Tensor, *, scale: float = 1.0) -> Any:
        return self.out(self.norm(self.items(ids))) * scale


def mean_square(model: Any, ids: Tensor) -> Tensor:
    loss: Tensor = model(ids).square().mean()
    return loss


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train_a_little(model: autoada.AdaModel) -> None:
    for _ in range(3):
        mean_square(model, torch.randint(0, 20, (8,))).backward()


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def model(net: Net) -> Iterator[autoada.AdaModel]:
    model = autoada.AdaModel(net)
    yield model
    model.close()


def test_the_weights_are_kept(net: Net) -> None:
    before = copy.deepcopy(net).eval()
    model = autoada.AdaModel(net).eval()
    ids = torch.arange(20)
    assert torch.equal(model(ids, scale=2.0), before(ids, scale=2.0))
    model.close()


def test_the_state_is_the_plain_models_state(net: Net, model: autoada.AdaModel) -> None:
    train_a_little(model)
    state = model.state_dict()
    plain = Net().eval()
    plain.load_state_dict(state)
    model.eval()
    assert list(state) == list(plain.state_dict())
    assert torch.allclose(plain(torch.arange(20)), model(torch.arange(20)), atol=1e-6)


def test_a_plain_state_can_be_loaded(model: autoada.AdaModel) -> None:
    torch.manual_seed(1)
    plain = Net().eval()
    model.load_state_dict(plain.state_dict())
    model.eval()
    assert torch.equal(plain(torch.arange(20)), model(torch.arange(20)))


def test_a_state_that_does_not_fit_is_refused(model: autoada.AdaModel) -> None:
    state = model.state_dict()
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "out\.bias"'):
        model.load_state_dict({name: value for name, value in state.items() if name != "out.bias"})
    with pytest.raises(RuntimeError, match=r"size mismatch for items\.weight"):
        model.load_state_dict({**state, "items.weight": torch.zeros(3, 3)})


def test_a_module_that_holds_a_wrapped_model_has_and_loads_the_plain_state(net: Net) -> None:
    plain = nn.Sequential(nn.Linear(1, 1), copy.deepcopy(net))
    holder = nn.Sequential(nn.Linear(1, 1), model := autoada.AdaModel(net))
    holder.load_state_dict(plain.state_dict())
    state = holder.state_dict()
    assert state.keys() == plain.state_dict().keys()
    for name, value in plain.state_dict().items():
        assert torch.equal(state[name], value), name
    short = {name: value for name, value in state.items() if name != "1.items.weight"}
    found = holder.load_state_dict({**short, "1.more": torch.ones(1)}, strict=False)
    assert (found.missing_keys, found.unexpected_keys) == (["1.items.weight"], ["1.more"])
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "1\.items\.weight"'):
        holder.load_state_dict(short)
    with pytest.raises(RuntimeError, match=r"size mismatch for items\.weight"):
        holder.load_state_dict({**state, "1.items.weight": torch.ones(1)})
    assert torch.equal(holder.state_dict()["1.items.weight"], state["1.items.weight"])
    assert len(list(holder.parameters())) == len(list(plain.parameters()))
    model.close()


def test_parameters_and_modules_have_the_names_of_the_plain_model() -> None:
    class WithOwn(Net):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    def names(model: nn.Module) -> list[Any]:
        applied: list[str] = []
        model.apply(lambda module: applied.append(type(module).__name__))
        model.eval()
        return [
            [name for name, _ in model.named_parameters()],
            [name for name, _ in model.named_parameters(prefix="net")],
            [name for name, _ in model.named_buffers()],
            [name for name, _ in model.named_children()],
            list(dict(model.named_modules())),
            [type(module) for module in model.children()],
            [module.training for module in model.modules()][-1],
            applied,
        ]

    plain, wrapped = WithOwn(), autoada.AdaModel(WithOwn())
    assert names(wrapped) == names(plain)
    assert names(nn.Sequential(wrapped))[0] == names(nn.Sequential(plain))[0]
    assert not wrapped.module.training
    assert wrapped in wrapped.modules()
    assert wrapped.train().module.training
    assert [name for name, _ in wrapped.named_parameters()] == list(dict(wrapped.module.named_parameters()))
    wrapped.close()


@pytest.mark.parametrize("hold", [lambda net: net, lambda net: nn.Sequential(net)])
def test_a_model_whose_parameters_are_in_data_parallel_is_refused(
    net: Net, hold: Callable[[nn.Module], nn.Module]
) -> None:
    parallel = nn.DataParallel(hold(net))
    with pytest.raises(TypeError, match=r"without DataParallel or DistributedDataParallel; docs"):
        autoada.AdaModel(net)
    del parallel
    model = autoada.AdaModel(net)
    with pytest.raises(TypeError, match=r"without DataParallel or DistributedDataParallel; docs"):
        nn.DataParallel(hold(model))
    model.close()


def test_unwrap_gives_a_plain_copy(model: autoada.AdaModel) -> None:
    train_a_little(model)
    plain = autoada.unwrap(model).eval()
    assert type(plain) is Net
    assert not any(isinstance(parameter, TableParameter) for parameter in plain.parameters())
    model.eval()
    before = model(torch.arange(20))
    assert torch.equal(plain(torch.arange(20)), before)
    nn.init.zeros_(plain.items.weight)
    assert torch.equal(model(torch.arange(20)), before)


def test_evaluation_pushes_nothing_and_moves_no_clock(model: autoada.AdaModel) -> None:
    model.eval()
    stats = model.node.stats()
    model(torch.arange(20)).sum().backward()
    after = model.node.stats()
    assert after["pushed_local"] == stats["pushed_local"]
    assert after["pulled_local"] > stats["pulled_local"]
    assert model.worker.current_clock == 0
    assert model.items.weight.grad is None


def test_the_table_takes_no_memory(model: autoada.AdaModel) -> None:
    weight = model.items.weight
    assert isinstance(weight, nn.Parameter)
    assert weight.shape == (20, 3)
    with pytest.raises(RuntimeError, match="needs the memory"):
        weight.untyped_storage()
    assert weight.device == torch.device("cpu")
    assert repr(weight) == "TableParameter('items.weight', shape=(20, 3))"


def test_initialising_a_table_in_place_writes_to_the_server(model: autoada.AdaModel) -> None:
    nn.init.constant_(model.items.weight, 7.0)
    assert torch.equal(model.state_dict()["items.weight"], torch.full((20, 3), 7.0))
    with torch.no_grad():
        model.items.weight[3] = 1.0
    assert torch.equal(model.items.weight.detach()[2:4], torch.tensor([[7.0] * 3, [1.0] * 3]))


def test_copies_are_plain_and_pickling_says_what_to_do_instead(model: autoada.AdaModel) -> None:
    assert type(copy.deepcopy(model.items).weight) is nn.Parameter
    with pytest.raises(TypeError, match=r"save the wrapped model's state_dict\(\) instead"):
        pickle.dumps(model.items.weight)


@pytest.mark.parametrize(
    "capture",
    [
        torch.jit.script,
        lambda model: torch.jit.script(nn.Sequential(model)),
        lambda model: torch.jit.trace(model, torch.arange(4)),
        lambda model: torch.jit.trace(model.module, torch.arange(4)),
        lambda model: torch.jit.trace(lambda ids: model(ids), torch.arange(4)),
        lambda model: make_fx(lambda ids: model(ids))(torch.arange(4)),
    ],
)
def test_a_graph_with_the_rows_as_constants_is_refused(
    model: autoada.AdaModel, capture: Callable[[Any], Any]
) -> None:
    with torch.no_grad():
        with pytest.raises(TypeError, match=r"neither scripted nor traced.*autoada\.unwrap"):
            capture(model.eval())
        torch.jit.trace(autoada.unwrap(model), torch.arange(4))


def test_a_scripted_model_is_refused(net: Net) -> None:
    with pytest.raises(
        ValueError, match=r"is a RecursiveScriptModule.*: pass the model before it is scripted"
    ):
        autoada.AdaModel(torch.jit.script(nn.Sequential(nn.Embedding(5, 2))))


class Sum(nn.ModuleDict):
    def forward(self, ids: Tensor) -> Any:
        return sum(module(ids) for module in self.values())


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.pop("more"),
        lambda net: net.update({"other": net.pop("more")}),
        lambda net: prune.l1_unstructured(net["more"], "weight", 0.3),
    ],
    ids=["removed", "renamed", "pruned"],
)
def test_a_table_that_has_another_place_later_trains_as_in_plain_pytorch(
    change: Callable[[Any], Any],
) -> None:
    def run(model: Any, optimizer: torch.optim.Optimizer) -> tuple[list[float], dict[str, Tensor]]:
        wrapped = isinstance(model, autoada.AdaModel)
        ids: Any = list((torch.arange(24) % 20).view(4, 6))
        losses = train(model, optimizer, autoada.AdaDataLoader(ids, 2) if wrapped else ids, mean_square)
        change(model.module if wrapped else model)
        losses += train(model, optimizer, autoada.AdaDataLoader(ids, 2) if wrapped else ids, mean_square)
        return losses, model.state_dict()

    plain, wrapped = plain_and_wrapped(
        lambda: Sum({"first": nn.Embedding(20, 3), "more": nn.Embedding(20, 3)}), sgd, run
    )
    torch.testing.assert_close(wrapped, plain)


def test_closing_a_model_again_does_nothing(net: Net) -> None:
    model = autoada.AdaModel(net)
    model.close()
    model.close()
    assert model.closed


@pytest.mark.parametrize("read", [autoada.unwrap, autoada.AdaModel.state_dict])
def test_weights_of_a_closed_model_are_refused_with_the_remedy(net: Net, read: Callable[[Any], Any]) -> None:
    model = autoada.AdaModel(net)
    model.close()
    with pytest.raises(adaps.AdapsError, match=r"closed: read the model's weights before close\(\)"):
        read(model)


def test_a_frozen_table_is_not_changed(net: Net) -> None:
    net.items.weight.requires_grad_(False)
    before = net.items.weight.detach().clone()
    model = autoada.AdaModel(net)
    train_a_little(model)
    assert torch.equal(model.state_dict()["items.weight"], before)
    model.close()


def test_zero_grad_drops_the_gradients_of_tables(net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    before = net.items.weight.detach().clone()
    model = autoada.AdaModel(net, optimizer)
    model(torch.arange(20)).sum().backward()
    assert model.items.weight.grad is not None
    optimizer.zero_grad()
    assert model.items.weight.grad is None
    optimizer.step()
    assert torch.equal(model.state_dict()["items.weight"], before)
    model.close()


def test_a_model_is_wrapped_once(net: Net, model: autoada.AdaModel) -> None:
    for again in (net, model):
        with pytest.raises(
            ValueError, match=r"wrapped already: '(module\.)?items\.weight' is in a parameter"
        ):
            autoada.AdaModel(again)


def test_a_model_that_holds_a_wrapped_one_is_refused() -> None:
    inner = autoada.AdaModel(nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"^the model is wrapped already: its module '1' is an AdaModel$"):
        autoada.AdaModel(nn.Sequential(nn.Embedding(5, 2), inner))
    with pytest.raises(ValueError, match=r"^the model is wrapped already: it is an AdaModel$"):
        autoada.AdaModel(inner)
    inner(torch.ones(2)).backward()
    inner.close()


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_max_norm_shortens_in_evaluation_and_training_as_in_plain_pytorch(kind: Any) -> None:
    """In evaluation for the model only: the server's rows become short when training reads them."""

    def outputs(model: Any, optimizer: torch.optim.Optimizer) -> tuple[list[Tensor], Tensor]:
        result = []
        for step in range(6):
            model.train(step % 2 == 1)
            optimizer.zero_grad()
            result.append(model(torch.arange(step, step + 10).view(5, 2)))
            if model.training:
                result[-1].square().sum().backward()
                optimizer.step()
        with torch.no_grad():
            model.train()
            model(torch.arange(20).view(10, 2))
        return [output.detach() for output in result], model.state_dict()["0.weight"]

    plain, wrapped = plain_and_wrapped(lambda: nn.Sequential(kind(20, 4, max_norm=0.5)), sgd, outputs)
    torch.testing.assert_close(wrapped, plain)


def test_a_compiled_wrapped_model_trains_and_is_predicted(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    given = [torch.randint(0, 20, (8,), generator=torch.Generator().manual_seed(i)) for i in range(8)]
    plain = copy.deepcopy(net)
    expected = train(plain, sgd(plain), given, mean_square)
    optimizer = sgd(net)
    model = autoada.AdaModel(net, optimizer)
    loader = autoada.AdaDataLoader(given, 2)
    compiled = torch.compile(model, backend="eager")
    assert train(compiled, optimizer, loader, mean_square) == pytest.approx(expected, abs=1e-5)
    assert "rows predicted by access program" in loader.summary()
    assert [record for record in caplog.records if record.name == "autoada"] == []
    model.close()


def test_other_dtypes_are_refused_by_name(net: Net) -> None:
    net.items.weight = nn.Parameter(net.items.weight.detach().to(torch.complex64))
    with pytest.raises(ValueError, match=r"'items\.weight' is torch\.complex64: it must be float32"):
        autoada.AdaModel(net)


def test_other_devices_are_refused_by_name(net: Net) -> None:
    net.out.to("meta")
    with pytest.raises(
        ValueError, match=r"'out\.weight' is on meta: AdaModel takes models on the CPU or a CUDA"
    ):
        autoada.AdaModel(net)


def test_moving_the_wrapped_model_says_when_to_move_it(model: autoada.AdaModel) -> None:
    assert model.to("cpu") is model.float() is model
    for move in (model.double, lambda: model.to("meta"), lambda: model.to(torch.bfloat16)):
        with pytest.raises(RuntimeError, match=r"stays torch\.float32 on cpu: move it before AdaModel"):
            move()
    train_a_little(model)


def test_casts_are_refused_if_they_change_a_dtype_of_the_model(model: autoada.AdaModel) -> None:
    with float64_by_default():
        assert model.float() is model
        with pytest.raises(RuntimeError, match=r"stays torch\.float32 on cpu: move it before AdaModel"):
            model.double()
    wide = autoada.AdaModel(nn.Linear(3, 1, dtype=torch.float64))
    assert wide.double() is wide
    with pytest.raises(RuntimeError, match=r"stays torch\.float64 on cpu: move it before AdaModel"):
        wide.float()
    wide.close()


def test_overrides_of_a_model_that_move_it_are_refused_and_others_are_called() -> None:
    class Other(Net):
        def to(self, *args: Any, quiet: bool = False) -> Any:
            return super().to(*args)

        def type(self) -> Any:  # type: ignore[override]
            return "ctr"

    wrapped: Any = autoada.AdaModel(Other())
    assert wrapped.to("cpu", quiet=True) is wrapped
    assert wrapped.type() == "ctr"
    with pytest.raises(RuntimeError, match=r"stays torch\.float32 on cpu: move it before AdaModel"):
        wrapped.to(torch.float64, quiet=True)
    assert wrapped.module.out.weight.dtype is torch.float32
    train_a_little(wrapped)
    wrapped.close()


def test_rows_of_a_meta_table_are_drawn_by_the_server() -> None:
    with torch.device("meta"):
        table = nn.Embedding(1_000_000, 4)
    model = autoada.AdaModel(nn.Sequential(table)).eval()
    rows = model(torch.tensor([5, 999_999, 5]))
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[1])
    model.close()


def test_a_gradient_that_comes_after_a_step_is_part_of_the_next_one() -> None:
    def trained(model: Any, optimizer: torch.optim.Optimizer) -> Tensor:
        rows = model(torch.tensor([1, 1, 4]))
        first, second = rows.sum(), (2 * rows).sum()
        first.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        second.backward()
        optimizer.step()
        state: Tensor = model.state_dict()["weight"]
        return state

    torch.testing.assert_close(*plain_and_wrapped(lambda: nn.Embedding(6, 3), sgd, trained))


class Twice(nn.Module):
    """A model that reads a table twice and changes the read rows in place."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(20, 3, padding_idx=4)
        self.place = nn.Parameter(torch.ones(3))

    def forward(self, ids: Tensor) -> Any:
        read = self.items(ids)
        read *= self.place
        read += self.items(ids.flip(0)).relu_()
        return read.tanh().sum()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adagrad])
def test_what_was_read_may_be_changed_in_place(make: Any) -> None:
    def states(model: Any, optimizer: torch.optim.Optimizer) -> list[dict[str, Tensor]]:
        result = []
        for step in range(8):
            optimizer.zero_grad()
            model(torch.randint(0, 20, (6, 5), generator=torch.Generator().manual_seed(step))).backward()
            if step == 3:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            if step == 5:
                with torch.no_grad():
                    model.place.clamp_(0.9, 1.1)
            result.append(copy.deepcopy(model.state_dict()))
        return result

    rounding = 1e-6  # sums, roots and quotients in the server's own order
    plain, wrapped = plain_and_wrapped(Twice, lambda net: make(net.parameters(), lr=0.1), states)
    torch.testing.assert_close(wrapped, plain, rtol=rounding, atol=rounding)


class Thrice(nn.Module):
    """Reads a table three times, and as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(20, 3)

    def forward(self, ids: Tensor) -> Any:
        first, second, third = self.items(ids), self.items(ids.flip(0)), self.items(ids * 3 % 20)
        return (first * second.sin() + third.cos()).sum() + self.items.weight.square().mean()


def test_gradients_of_several_reads_of_a_table_add_up() -> None:
    def states(model: Any, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        result = []
        for step in range(5):
            ids = torch.randint(0, 20, (30, 5), generator=torch.Generator().manual_seed(step))
            train(model, optimizer, [ids], lambda model, ids: model(ids))
            result.append(model.state_dict()["items.weight"].clone())
        return result

    plain, wrapped = plain_and_wrapped(Thrice, sgd, states)
    torch.testing.assert_close(wrapped, plain, rtol=1e-6, atol=1e-6)


@contextlib.contextmanager
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


DEVICE, DTYPE = (lambda: torch.device("meta")), float64_by_default


@pytest.mark.parametrize(
    ("default", "optimizer"),
    [(DEVICE, torch.optim.Adagrad), (DTYPE, torch.optim.Adagrad), (DTYPE, torch.optim.NAdam)],
    ids=["device", "dtype", "dtype and an optimizer without a rule"],
)
def test_new_tensors_may_have_another_device_or_dtype_by_default(
    default: Callable[[], Any], optimizer: Any
) -> None:
    def run(model: Any, given: torch.optim.Optimizer) -> list[float]:
        batches: Any = list(torch.arange(24, device="cpu").view(4, 6) % 20)
        weight, seen = model.items.weight, []
        with default():
            if isinstance(model, autoada.AdaModel):
                batches = autoada.AdaDataLoader(batches, model=model, lookahead=2)
            losses = train(model, given, batches, mean_square)
            weight.data[3:5] *= 2
            weight.data[[1, 2]] = torch.ones(2, 3, device="cpu", dtype=torch.float32)
            loss = F.linear(weight[:4], weight).square().mean() + weight[[1, -2]].sum()
            loss.backward()
            seen += [weight.grad.flatten(), weight.square().sum().flatten()]
            given.step()
            given.load_state_dict(given.state_dict())
            model.load_state_dict(model.state_dict())
            losses += train(model, given, batches, mean_square)
            model.eval()
            seen += [model(ids).flatten() for ids in batches]
            seen += [value.flatten() for value in model.state_dict().values()]
        assert all(each.dtype in (torch.float32, torch.int64) for each in seen)
        return [*losses, loss.item(), *torch.cat(seen).tolist()]

    plain, wrapped = plain_and_wrapped(Net, lambda model: optimizer(model.parameters(), lr=0.1), run)
    assert wrapped == pytest.approx(plain, abs=1e-5)


def test_gradients_of_many_calls_add_up_in_one_backward_pass() -> None:
    plain = nn.Embedding(6, 3)
    model = autoada.AdaModel(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    torch.cat([model(torch.tensor([1, 2])) for _ in range(48)]).sum().backward()
    expected = torch.zeros(6, 3)
    expected[1:3] = 48
    assert torch.equal(cast("Any", model.module).weight.grad.clone().values(), expected)
    model.close()


@pytest.mark.parametrize(
    "read",
    [
        lambda w, ids: F.embedding_bag(ids, w, torch.arange(len(ids)), mode="sum"),
        lambda w, ids: F.embedding_bag(ids, w, torch.zeros(len(ids), dtype=torch.int64), mode="sum"),
        lambda w, ids: F.embedding_bag(ids, w, torch.tensor([0, 0, 2, 2, 3, 5]), mode="mean"),
        lambda w, ids: F.embedding_bag(ids, w, torch.tensor([0, 1, 2, 3, 4, 6]), include_last_offset=True),
        lambda w, ids: F.embedding_bag(ids[:, None], w, mode="max"),
        lambda w, ids: F.embedding_bag(ids.view(2, 3), w, mode="max"),
        lambda w, ids: F.embedding_bag(
            ids[:, None], w, mode="sum", per_sample_weights=torch.full((6, 1), 0.5)
        ),
        lambda w, ids: F.embedding_bag(ids, w, torch.arange(len(ids)), padding_idx=3, mode="sum"),
        lambda w, ids: w.index_select(0, ids),
        lambda w, ids: w[ids],
        lambda w, ids: w[ids.view(2, 3)],
        lambda w, ids: w[-ids - 1],
        lambda w, ids: w[ids[0]],
        lambda w, ids: w[ids, :2],
        lambda w, ids: w[ids].add_(w.sum(0)),
        lambda w, ids: w[ids] + w[ids.flip(0)],
    ],
)
def test_every_read_gives_rows_and_gradients_of_plain_pytorch(read: Callable[[Any, Tensor], Tensor]) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(7, 4)

        def forward(self, ids: Tensor) -> Tensor:
            return read(self.rows.weight, ids)

    def read_and_train(model: Any, optimizer: torch.optim.Optimizer) -> tuple[list[Tensor], Tensor]:
        outputs = []
        for step in range(4):
            ids = torch.tensor([3, 1, 3, 0, 5, 5]) if step % 2 else torch.tensor([2, 2, 6, 4, 3, 0])
            rows = model(ids)
            outputs.append(rows.detach().clone())
            optimizer.zero_grad()
            rows.square().sum().backward()
            optimizer.step()
        return outputs, model.state_dict()["rows.weight"]

    plain, wrapped = plain_and_wrapped(
        Table, lambda net: torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9), read_and_train
    )
    torch.testing.assert_close(wrapped, plain, rtol=1e-5, atol=1e-5)


class SynchronizingWorker:
    """A worker that numbers its requests and records the steps of each request and each wait."""

    def __init__(self) -> None:
        self.step = 0
        self.asked: list[int] = []
        self.waited: dict[int, int] = {}

    def wait_sync(self, asynchronous: bool = False) -> int:
        ticket = len(self.asked)
        self.asked.append(self.step)
        if not asynchronous:
            self.wait(ticket)
        return ticket

    def wait(self, ticket: int) -> None:
        self.waited.setdefault(ticket, self.step)


def steps_limited_by(limit: int | None, steps: int) -> SynchronizingWorker:
    worker = SynchronizingWorker()
    staleness = StalenessLimit(cast("Any", worker), limit, alone=False)
    for worker.step in range(steps):
        staleness.step()
    return worker


@pytest.mark.parametrize(("limit", "asked"), [(1, 12), (2, 12), (7, 4), (64, 0)])
def test_what_a_worker_misses_is_bounded_by_its_steps(limit: int, asked: int) -> None:
    worker = steps_limited_by(limit, 12)
    assert len(worker.asked) == asked
    since = [0, *worker.asked]
    assert all(later - before <= max(1, limit // 2) for before, later in itertools.pairwise(since))
    assert set(worker.waited) >= set(range(asked - 1))
    assert all(done - worker.asked[ticket] <= limit - 1 for ticket, done in worker.waited.items())


def test_the_default_limit_grows_with_the_steps_of_the_training() -> None:
    assert [default_limit(steps) for steps in (0, 24, 63, 64, 400, 10_000, 16_384, 10**9)] == [
        *(2, 2, 3, 4, 10, 50, 64, 64)
    ]
    worker = steps_limited_by(None, 30_000)
    assert worker.asked[:64] == [*range(64)]
    asked_again = dict(itertools.pairwise(worker.asked))
    assert max(after - before for before, after in asked_again.items()) == MOST // 2
    for ticket, done in worker.waited.items():
        assert done == asked_again[worker.asked[ticket]]
        assert done - worker.asked[ticket] <= default_limit(done) // 2


def test_a_training_that_continues_keeps_its_limit_of_staleness() -> None:
    whole = steps_limited_by(None, 12_000)
    worker = SynchronizingWorker()
    staleness = StalenessLimit(cast("Any", worker), None, alone=False)
    staleness.resume(10_000)
    for worker.step in range(10_000, 12_000):
        staleness.step()
    assert worker.asked == [step for step in whole.asked if step >= 10_000]


def train_with_a_loader(model: autoada.AdaModel) -> None:
    for ids in autoada.AdaDataLoader([torch.arange(4)]):
        model(ids)


@pytest.mark.parametrize("signal", [autoada.AdaModel.advance_clock, train_with_a_loader])
def test_a_model_knows_whether_a_loop_can_signal_intent(
    model: autoada.AdaModel, signal: Callable[[autoada.AdaModel], None]
) -> None:
    train_a_little(model)
    assert not training_state_of(model).looped
    signal(model)
    assert training_state_of(model).looped


@pytest.fixture
def no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test fail if it opens a node."""
    monkeypatch.setattr(adaps, "Node", None)


@pytest.mark.usefixtures("no_nodes")
@pytest.mark.parametrize("limit", [0, -3, 1.5, True])
def test_a_limit_of_staleness_is_a_number_of_steps(net: Net, limit: Any) -> None:
    with pytest.raises(ValueError, match=f"staleness is {limit!r}: it must be a number of steps, 1 or more"):
        autoada.AdaModel(net, staleness=limit)


@pytest.mark.usefixtures("no_nodes")
def test_the_node_of_a_model_has_one_worker(net: Net) -> None:
    with pytest.raises(IndexError, match="worker 1 does not exist: the model's own node has one worker"):
        autoada.AdaModel(net, worker=1)


def test_the_mode_is_the_wrapped_models_mode(net: Net) -> None:
    net.eval()
    model = autoada.AdaModel(net)
    assert not model.training
    net.train()
    assert model.training
    model.apply(lambda module: module.train(False))
    assert not model.training
    model.close()


class Overriding(Net):
    closed = 7

    def requires_grad_(self, requires_grad: bool = True) -> Overriding:
        self.out.requires_grad_(requires_grad)
        return self

    def eval(self) -> Overriding:
        self.evaluated = True
        return super().eval()


def test_methods_that_the_model_overrides_are_called() -> None:
    model = autoada.AdaModel(Overriding())
    assert model.requires_grad_(False) is model
    assert model.items.weight.requires_grad
    assert not model.out.weight.requires_grad
    assert model.eval() is model
    assert model.evaluated
    assert not model.training
    model.close()


def test_a_name_of_the_model_that_the_wrapper_also_has_is_named(caplog: pytest.LogCaptureFixture) -> None:
    model = autoada.AdaModel(Overriding())
    assert "Overriding also has one of this name: use model.module.closed" in caplog.text
    with pytest.raises(AttributeError, match=r"assign model\.module\.closed"):
        setattr(model, "closed", 8)  # noqa: B010 (the attribute is read-only for mypy)
    assert not model.closed
    assert getattr(model.module, "closed") == 7  # noqa: B009 (a module's attributes have no type)
    model.close()


class Doubling(Net):
    def load_state_dict(self, state_dict: Any, *args: Any) -> Any:
        return super().load_state_dict({name: 2 * value for name, value in state_dict.items()}, *args)


def test_a_model_may_override_the_loading_of_its_state() -> None:
    model = autoada.AdaModel(Doubling())
    state = copy.deepcopy(model.state_dict())
    model.load_state_dict(state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, 2 * state[name]), name
    model.close()


@pytest.mark.parametrize("inner", [True, False])
def test_hooks_of_the_state_change_tables(net: Net, inner: bool) -> None:
    def double(state: dict[str, Any]) -> None:
        state.update({name: 2 * value for name, value in state.items()})

    model = autoada.AdaModel(net)
    before = copy.deepcopy(model.state_dict())
    hooked: nn.Module = net if inner else model
    loading = hooked.register_load_state_dict_pre_hook(lambda _, state, *more: double(state))
    saving = hooked.register_state_dict_post_hook(lambda _, state, *more: double(state))
    for factor in (2, 8):
        state = model.state_dict()
        for name, value in state.items():
            assert torch.equal(value, factor * before[name]), name
        model.load_state_dict(state)
    loading.remove()
    saving.remove()
    model.close()


def test_the_state_with_keep_vars_has_the_parameters(net: Net, model: autoada.AdaModel) -> None:
    state = model.state_dict(keep_vars=True)
    assert all(state[name] is parameter for name, parameter in net.named_parameters())


def test_replacing_the_parameters_by_a_state_is_refused(model: autoada.AdaModel) -> None:
    for load in (model, nn.Sequential(model)):
        with pytest.raises(RuntimeError, match="leave assign out"):
            load.load_state_dict(load.state_dict(), assign=True)
