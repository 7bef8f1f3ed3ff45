"""AdaDataLoader: which rows it announces, when, and what remains after it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autoada import AdaDataLoader, AdaModel
from autoada.prediction.speculation import LARGEST
from tests.unit.autoada.small_net import PAIR_ROWS, IntentLog, Net, Pairs, pairs_of

Captured = pytest.LogCaptureFixture


@pytest.fixture
def model() -> Iterator[AdaModel]:
    torch.manual_seed(0)
    model = AdaModel(Pairs())
    yield model
    model.close()


@pytest.fixture
def log(model: AdaModel) -> IntentLog:
    return IntentLog(model)


def by_hand(batch: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
    return {"users.weight": batch[0], "items.weight": batch[1]}


def expected_keys(model: AdaModel, batch: tuple[Tensor, Tensor, Tensor]) -> list[int]:
    users = model.keys_of("users.weight", batch[0].unique())
    return sorted([*users.tolist(), *model.keys_of("items.weight", batch[1].unique()).tolist()])


def wanted(model: AdaModel, given: list[tuple[Tensor, Tensor, Tensor]]) -> list[tuple[list[int], int]]:
    """Keys and clock of the use of each batch, from clock 0 on."""
    return [(expected_keys(model, batch), clock) for clock, batch in enumerate(given)]


def trained(
    wrap: bool,
    net: Any,
    given: list[Any],
    loop: Callable[[Any, torch.optim.Optimizer, Any], Iterator[Tensor]],
) -> list[float]:
    """Losses of a loop over a plain or a wrapped model; the loop makes the steps and yields the losses."""
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if not wrap:
        return [loss.item() for loss in loop(model, optimizer, given)]
    model = AdaModel(model, optimizer)
    losses = [loss.item() for loss in loop(model, optimizer, AdaDataLoader(given, 3))]
    model.close()
    return losses


def step(loss: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def train(model: AdaModel, loader: Iterable[Any], limit: int = 10**6) -> int:
    steps = 0
    for users, items, label in loader:
        loss = nn.functional.mse_loss(model(users, items=items), label)
        loss.backward()
        steps += 1
        if steps == limit:
            break
    return steps


@pytest.mark.parametrize(
    "keys_of",
    [
        lambda model: by_hand,
        lambda model: {"users": lambda b: b[0], "items.weight": lambda b: b[1]},
        lambda model: {model.module.users: lambda b: b[0], model.module.items: lambda b: b[1]},
    ],
)
def test_every_batch_is_announced_once_for_the_clock_of_its_use(
    model: AdaModel, log: IntentLog, keys_of: Any
) -> None:
    given = pairs_of(12)
    assert train(model, AdaDataLoader(given, 3, keys=keys_of(model))) == 12
    assert log.uses == wanted(model, given)
    assert [call[0] for call in log.calls] == [0, 0, 0, 0, *range(1, 9)]
    assert model.worker.current_clock == 12


def test_the_last_step_of_a_loop_counts_for_all_of_its_models() -> None:
    models = [AdaModel(nn.Embedding(20, 2)) for _ in range(2)]
    for ids in AdaDataLoader(torch.arange(20).split(4)):
        for model in models:
            model(ids).sum().backward()
    assert [model.worker.current_clock for model in models] == [5, 5]
    for model in models:
        model.close()


def test_predicted_rows_are_announced_from_the_first_batch_on(model: AdaModel, log: IntentLog) -> None:
    given = pairs_of(12)
    loader = AdaDataLoader(given, 3)
    assert train(model, loader) == 12
    assert log.uses == wanted(model, given)
    assert train(model, loader) == 12
    assert [call[2] for call in log.calls[-12:]] == list(range(12, 24))


def test_expected_rows_are_pulled_once_for_each_table(model: AdaModel) -> None:
    given = pairs_of(1) * 20
    train(model, AdaDataLoader(given, 2, keys=by_hand))
    before = model.node.stats()["pulled_local"]
    train(model, AdaDataLoader(given[:1], 2, keys=by_hand))
    dense = 1 + model.node.table("dense.0").rows
    assert model.node.stats()["pulled_local"] - before <= dense + len(expected_keys(model, given[0]))


def test_no_intent_without_lookahead(model: AdaModel, log: IntentLog) -> None:
    train(model, AdaDataLoader(pairs_of(5), 0, keys=by_hand))
    assert log.calls == []
    assert model.worker.current_clock == 5


def test_a_break_leaves_no_intent_behind(model: AdaModel, log: IntentLog) -> None:
    loader = AdaDataLoader(pairs_of(20), 5, keys=by_hand)
    assert train(model, loader, limit=4) == 4
    assert model.worker.current_clock > max(log.starts)
    before = model.worker.current_clock
    assert train(model, loader) == 20
    assert log.calls[9][2] == before
    assert model.worker.current_clock == before + 20


def test_an_exception_leaves_no_intent_behind(model: AdaModel, log: IntentLog) -> None:

    def failing() -> Iterator[Any]:
        yield from pairs_of(4)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        train(model, AdaDataLoader(failing(), 2, keys=by_hand))
    assert model.worker.current_clock > max(log.starts)


def test_starting_over_leaves_the_iteration_before_alone(model: AdaModel, log: IntentLog) -> None:
    given = pairs_of(3)
    loader = AdaDataLoader(given, 2, keys=by_hand)
    iterators = [iter(loader), iter(loader)]
    used = []
    for number in (0, 1, 1, 0, 0, 1):
        users, items, _ = batch = next(iterators[number])
        model(users, items=items).sum().backward()
        used.append((expected_keys(model, batch), model.worker.current_clock))
    assert [keys for keys, _ in used] == [expected_keys(model, given[n]) for n in (0, 0, 1, 1, 2, 2)]
    assert all(use in log.uses for use in used)


@pytest.mark.parametrize("keys", [by_hand, None])
def test_two_loaders_in_turns_are_both_announced_for_the_right_clock(
    model: AdaModel, log: IntentLog, caplog: Captured, keys: Any
) -> None:
    given = pairs_of(20)
    loaders = [AdaDataLoader(part, 2, keys=keys) for part in (given[:10], given[10:])]
    iterators = [iter(loader) for loader in loaders]
    used = []
    for number in range(20):
        batch = next(iterators[number % 2])
        model(*batch[:2]).sum().backward()
        used.append((expected_keys(model, batch), model.worker.current_clock))
    assert all(use in log.uses for use in used)
    assert [clock for _, clock in used] == list(range(20))
    found = "keys by hand" if keys else "rows predicted by access program"
    assert all(found in loader.summary() for loader in loaders)
    assert caplog.records == []
    assert model.node.stats()["intents_late"] == 0


def together(model: AdaModel, loader: Iterable[Any]) -> list[tuple[list[int], int]]:
    """Train on pairs of batches, users of the first and items of the second; rows and clock of each use."""
    used = []
    for (users, _, label), (_, items, _) in loader:
        nn.functional.mse_loss(model(users, items=items), label).backward()
        clock = model.worker.current_clock
        keys = [model.keys_of("users.weight", users.unique()), model.keys_of("items.weight", items.unique())]
        used += [(sorted(part.tolist()), clock) for part in keys]
    return used


def test_batches_of_two_loaders_in_one_step_are_announced_for_its_clock(
    model: AdaModel, log: IntentLog
) -> None:
    users = AdaDataLoader(pairs_of(6), 2, keys={"users": lambda b: b[0]})
    items = AdaDataLoader(pairs_of(12)[6:], 3, keys={"items": lambda b: b[1]})
    for epoch in range(2):
        log.calls.clear()
        used = together(model, zip(users, items, strict=True))
        assert len(log.calls) == len(used) == 12  # each once
        assert sorted(used) == sorted(log.uses)
        first = used[0][1]
        assert [clock for _, clock in used[::2]] == list(range(first, first + 6))
        assert epoch == 1 or first == 0
    for _ in zip(users, items, strict=True):
        break  # the pair that is left unused is not taken for a part of the next step
    first = model.worker.current_clock
    assert [clock for _, clock in together(model, zip(users, items, strict=True))[::4]] == [
        first,
        first + 2,
        first + 4,
    ]


def test_batches_of_two_loaders_in_one_step_are_predicted_if_they_are_wrapped_together(
    model: AdaModel, log: IntentLog, caplog: Captured
) -> None:
    given = pairs_of(8), pairs_of(16)[8:]
    with caplog.at_level(logging.WARNING, "autoada"):
        together(model, zip(*(AdaDataLoader(part, 2) for part in given), strict=True))
    assert log.calls == []
    (told,) = caplog.messages
    assert "in AdaDataLoader(zip(first, second))" in told
    assert "prepare" not in told
    caplog.clear()
    used = together(model, AdaDataLoader(zip(*given, strict=True), 2))
    assert log.uses == [
        (sorted(users + items), clock)
        for (users, clock), (items, _) in zip(used[::2], used[1::2], strict=True)
    ]
    assert caplog.messages == []


def test_evaluation_announces_nothing_and_leaves_training_alone(model: AdaModel, log: IntentLog) -> None:
    train_loader = AdaDataLoader(pairs_of(6), 2, keys=by_hand)
    valid_loader = AdaDataLoader(pairs_of(3), 2, keys=by_hand)
    for step, (users, items, _) in enumerate(train_loader):
        model(users, items).sum().backward()
        model.eval()
        with torch.no_grad():
            assert sum(len(model(u, i)) for u, i, _ in valid_loader) == 18
        model.train()
        assert model.worker.current_clock == step
    assert len(log.calls) == 6


def test_length_and_attributes_are_the_loaders(model: AdaModel) -> None:
    dataset = TensorDataset(torch.arange(40) % PAIR_ROWS, torch.arange(40) % PAIR_ROWS, torch.rand(40))
    plain = DataLoader(dataset, batch_size=8, shuffle=True)
    loader = AdaDataLoader(plain, 2)
    assert len(loader) == 5
    assert loader.dataset is dataset
    assert loader.sampler is plain.sampler
    assert loader.batch_size == 8
    assert train(model, loader) == 5


def test_the_way_from_batch_to_model_is_recorded(model: AdaModel, log: IntentLog) -> None:
    given = [{"pair": torch.stack(batch[:2], 1).int(), "label": batch[2]} for batch in pairs_of(8)]
    for batch in AdaDataLoader(given, 3):
        users, items = batch["pair"].long().to("cpu").unbind(1)
        loss = nn.functional.mse_loss(model(users, items=items % PAIR_ROWS), batch["label"])
        loss.backward()
    assert log.uses == wanted(model, pairs_of(8))


def test_recording_leaves_the_modes_of_the_loop_alone(model: AdaModel, log: IntentLog) -> None:
    modes = torch._C._len_torch_function_stack()
    for users, items, label in AdaDataLoader(pairs_of(8), 2, model=model):
        with torch.device("cpu"):
            loss = nn.functional.mse_loss(model(users, items), label)
            assert torch._C._len_torch_function_stack() == modes + 1
        loss.backward()
        assert torch._C._len_torch_function_stack() == modes
    assert len(log.calls) >= 5
    for _ in AdaDataLoader(pairs_of(8), 2):
        break
    assert torch._C._len_torch_function_stack() == modes


def test_a_way_that_cannot_be_recorded_is_told_and_prepare_helps(
    model: AdaModel, log: IntentLog, caplog: Captured
) -> None:
    given = [(users.tolist(), items.tolist(), label) for users, items, label in pairs_of(6)]

    def prepare(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.tensor(batch[0]),), {"items": torch.tensor(batch[1])}

    def loop(loader: Iterable[Any]) -> None:
        for batch in loader:
            args, kwargs = prepare(batch)
            model(*args, **kwargs).sum().backward()

    with caplog.at_level(logging.WARNING, "autoada"):
        loop(AdaDataLoader(given, 2))
    assert log.calls == []
    assert "give AdaDataLoader a `prepare=` function" in caplog.text
    loop(AdaDataLoader(given, 2, prepare=prepare))
    assert len(log.calls) == 6


def test_a_wrong_prediction_does_not_harm_training() -> None:
    class Switching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(PAIR_ROWS, 2)
            self.shift = [0]

        def forward(self, ids: Tensor) -> Any:
            return self.table((ids + self.shift[0]) % PAIR_ROWS).square()

    def loop(model: Any, optimizer: torch.optim.Optimizer, loader: Any) -> Iterator[Tensor]:
        for number, ids in enumerate(loader):
            if number % 10 == 9:
                model.shift[0] += 1
            yield step(model(ids).sum(), optimizer)

    given = [batch[0] for batch in pairs_of(30)]
    plain, wrapped = (trained(wrap, Switching, given, loop) for wrap in (False, True))
    assert wrapped == pytest.approx(plain, abs=1e-5)


def test_a_first_batch_that_is_used_in_another_way_misleads_nobody(
    model: AdaModel, log: IntentLog, caplog: Captured
) -> None:
    given = pairs_of(10)
    loader = AdaDataLoader(given, 2)
    for step, (users, items, _) in enumerate(loader):
        model(users if step > 0 else users.flip(0) // 2, items).sum().backward()
    last = log.last
    assert last[0] != expected_keys(model, given[0])
    assert all(last[clock] == expected_keys(model, given[clock]) for clock in range(3, 10))
    assert caplog.records == []


@pytest.mark.parametrize("rows_depend", [False, True])
def test_a_number_that_the_loop_counts_is_only_in_the_way_if_rows_depend_on_it(
    caplog: Captured, rows_depend: bool
) -> None:
    class Annealed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(PAIR_ROWS, 2)

        def forward(self, ids: Tensor, step: int, rate: float) -> Any:
            return self.table((ids + step * rows_depend) % PAIR_ROWS).sum() * rate

    model = AdaModel(Annealed())
    log = IntentLog(model)
    given = [batch[0] for batch in pairs_of(12)]
    loader = AdaDataLoader(given, 2)
    for step, ids in enumerate(loader):
        model(ids, step, 1 / (step + 1)).backward()
    if rows_depend:
        told = caplog.records[-1].message
        assert "test_loader.py:" in told
        assert "`model(ids, step, 1 / (step + 1)).backward()`, cannot be recorded (rows depend on" in told
        assert "number that is not in the batch and differs from call to call); rows are pulled on" in told
        assert log.calls[-1][2] < 11
        assert "rows depend on a number" in loader.explain(given[0])
    else:
        assert caplog.records == []
        assert log.starts == list(range(12))
    model.close()


def test_all_calls_for_a_batch_are_announced(model: AdaModel, log: IntentLog, caplog: Captured) -> None:
    given = pairs_of(10)
    pulled = []
    for users, items, _ in AdaDataLoader(given, 2):
        before = model.node.stats()["pulled_local"]
        other = (items + 7).clamp(max=PAIR_ROWS - 1)
        loss = model(users, items) - model(users.flip(0), other)
        loss.sum().backward()
        pulled.append(model.node.stats()["pulled_local"] - before)
    assert caplog.records == []
    last = log.last
    dense = model.node.table("dense.0").rows
    for clock in range(2, 10):
        users, items, _ = given[clock]
        both = torch.cat([items, (items + 7).clamp(max=PAIR_ROWS - 1)])
        assert last[clock] == expected_keys(model, (users, both, items))
        assert pulled[clock] == len(last[clock]) + dense


def test_calls_with_a_step_in_between_see_what_it_changed(caplog: Captured) -> None:
    def loop(model: Any, optimizer: torch.optim.Optimizer, loader: Any) -> Iterator[Tensor]:
        for users, items, label in loader:
            for ids in (items, items.flip(0), items):
                loss = nn.functional.mse_loss(model(users, ids), label)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                yield loss
        if isinstance(model, AdaModel):
            model.eval()
            assert "users.weight: 6 rows" in loader.explain(pairs_of(1)[0])
            assert loader.explain(pairs_of(1)[0]).count("items.weight: 6 rows") == 3

    plain, wrapped = (trained(wrap, Pairs, pairs_of(12), loop) for wrap in (False, True))
    assert wrapped == pytest.approx(plain, abs=1e-5)
    assert caplog.records == []


def test_an_argument_that_depends_on_an_earlier_call_is_told_and_the_others_are_announced(
    model: AdaModel,
    log: IntentLog,
    caplog: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autoada.loader.intent_source.SMALL_TABLE", 3)
    given = pairs_of(10)
    loader = AdaDataLoader(given, 2)
    for users, items, _ in loader:
        best = model(users, items).argsort()
        model(users, best).sum().backward()
    (told,) = caplog.messages
    assert told.startswith(
        "rows of 'items.weight' depend on parameters or on values that are not made from the batch"
    )
    assert "(argument 2 of the call at " in told
    assert "`model(users, best).sum().backward()`" in told
    assert caplog.records[0].message in loader.explain(given[0])
    last = log.last
    assert [last[clock] for clock in range(10)] == [expected_keys(model, batch) for batch in given]


def test_a_number_of_calls_that_varies_is_learned_where_two_batches_agree(
    model: AdaModel, log: IntentLog, caplog: Captured
) -> None:
    given = pairs_of(12)
    for step, (users, items, _) in enumerate(AdaDataLoader(given, 2)):
        loss = model(users, items).sum()
        if step % 3 == 0:
            loss = loss + model(users, items // 2).sum()
        loss.backward()
    last = log.last
    for clock in range(12):
        assert set(expected_keys(model, given[clock])) <= set(last[clock])
    assert caplog.records == []


def test_of_several_calls_prepare_gives_one(model: AdaModel, log: IntentLog, caplog: Captured) -> None:
    given = pairs_of(4)
    for users, items, _ in AdaDataLoader(given, 2, prepare=lambda batch: (batch[:2], {})):
        (model(users, items) - model(users, items // 2)).sum().backward()
    (message,) = caplog.messages
    assert re.fullmatch(
        r"the model is called more than once per batch: only the first call's rows are announced \(prepare= "
        r"gives one, at .*test_loader\.py:\d+ `\(model\(users, items\) - .*`\); pass all inputs "
        r"to one call if possible, or give AdaDataLoader `keys=`",
        message,
    )
    assert log.calls[-1][1:] == (expected_keys(model, given[-1]), 3)


def test_values_that_forward_hands_to_python_stand_in_the_way_of_the_first_batch_only(
    caplog: Captured,
) -> None:
    class Deciding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Embedding(PAIR_ROWS, 4)

        def forward(self, ids: Tensor) -> Any:
            x = self.items(ids)
            mask = x > -1e6
            if mask.any() and bool(x.detach().norm() < 1e6):
                x = x[mask] * min(1.0, x.detach().abs().max().item())
            return x.sum() + self.items(ids.flip(0) // 2).sum()

    model = AdaModel(Deciding())
    log = IntentLog(model)
    given = [batch[0] for batch in pairs_of(16)]
    for ids in AdaDataLoader(given, 3):
        model(ids).backward()
    last = log.last
    for clock, ids in list(enumerate(given))[1:]:
        rows = torch.cat([ids, ids // 2]).unique()
        assert last[clock] == model.keys_of("items.weight", rows).tolist()
    assert caplog.messages == []
    model.close()


class Silent:
    def __repr__(self) -> str:
        raise AssertionError("nobody has to write this down")


def test_batches_with_keys_of_any_kind_are_predicted(model: AdaModel, log: IntentLog) -> None:
    users, items = Silent(), np.int64(1)
    given = [{users: batch[0], items: batch[1], Silent: batch[2]} for batch in pairs_of(8)]
    for batch in AdaDataLoader(given, 2):
        model(batch[users], batch[items]).sum().backward()
    assert log.uses == wanted(model, pairs_of(8))


class ByName(dict[str, Tensor]):
    """A dictionary that looks all attributes up among its keys."""

    __getattr__ = dict.__getitem__


def test_batches_that_look_attributes_up_among_their_keys_are_predicted(
    model: AdaModel, log: IntentLog
) -> None:
    given = [ByName(users=batch[0], others=batch[1]) for batch in pairs_of(8)]
    for batch in AdaDataLoader(given, 2):
        model(batch.users, batch.others).sum().backward()
    assert log.uses == wanted(model, pairs_of(8))


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(PAIR_ROWS, 4)
        self.experts = nn.Embedding(4, 4)

    def forward(self, ids: Tensor) -> Any:
        x = self.items(ids)
        return (x * self.experts(x.argmax(-1))).sum()


def test_rows_that_depend_on_parameters_are_told_and_all_announced(caplog: Captured) -> None:
    model = AdaModel(Routed())
    log = IntentLog(model)
    with caplog.at_level(logging.WARNING, "autoada"):
        for ids in AdaDataLoader([batch[0] for batch in pairs_of(8)], 2):
            model(ids).backward()
    assert "rows of 'experts.weight' depend on parameters" in caplog.text
    experts = model.keys_of("experts.weight", torch.arange(4)).tolist()
    assert len(log.calls) == 8
    for _, keys, _ in log.calls:
        assert set(experts) < set(keys)
        assert len(set(keys)) == len(keys)
    model.close()


def test_a_table_is_whole_only_for_the_clocks_at_which_it_is_read_in_full(
    caplog: Captured,
) -> None:
    class Logged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items = nn.Embedding(PAIR_ROWS, 4)
            self.log_at = [3]

        def forward(self, ids: Tensor, number: Tensor) -> Any:
            logged = int(number) == self.log_at[0]
            x = self.items(ids)
            self.items.weight.stride()  # of no consequence
            return x.sum() + (self.items.weight.norm() if logged else 0.0)

    model = AdaModel(Logged())
    log = IntentLog(model)
    given = [(batch[0], torch.tensor(number)) for number, batch in enumerate(pairs_of(8))]
    pulled = []
    for ids, number in AdaDataLoader(given, 2):
        before = model.node.stats()["pulled_local"]
        model(ids, number).backward()
        pulled.append(model.node.stats()["pulled_local"] - before)
        model.items.weight.norm()  # outside a forward pass, which cannot be predicted
    rows = [len(ids.unique()) for ids, _ in given]
    assert [len(keys) for _, keys, _ in log.calls] == [*rows[:3], PAIR_ROWS, *rows[4:]]
    assert pulled == [*rows[:3], PAIR_ROWS + rows[3], *rows[4:]]
    assert ["read in full" in message for message in caplog.messages] == [True]
    model.close()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at it
@pytest.mark.parametrize("compiled", ["model", "wrapper", "in place"])
def test_a_compiled_model_is_predicted_like_the_one_that_was_compiled(
    compiled: str, caplog: Captured
) -> None:
    torch.compiler.reset()
    plain: Any = Pairs()
    if compiled == "in place":
        plain.compile(backend="eager")
    elif compiled == "model":
        plain = torch.compile(plain, backend="eager")
    wrapped = AdaModel(plain)
    model: Any = torch.compile(wrapped, backend="eager") if compiled == "wrapper" else wrapped
    log = IntentLog(wrapped)
    given = pairs_of(10)
    prefix = "_orig_mod." if compiled == "model" else ""
    rows = [(f"{prefix}users.weight", 0), (f"{prefix}items.weight", 1)]
    wanted = [
        sorted(key for table, i in rows for key in wrapped.keys_of(table, batch[i].unique()).tolist())
        for batch in given
    ]
    for users, items, _ in AdaDataLoader(given, 3, model=wrapped):
        before = wrapped.node.stats()["pulled_local"]
        model(users, items).sum().backward()
        clock = int(wrapped.worker.current_clock)
        dense = wrapped.node.table("dense.0").rows
        assert wrapped.node.stats()["pulled_local"] - before <= dense + len(wanted[clock])
    assert log.uses == [(keys, clock) for clock, keys in enumerate(wanted)]
    assert [record for record in caplog.records if record.name == "autoada"] == []
    wrapped.close()


class Halting(nn.Module):
    """Decides by more numbers than are remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Embedding(PAIR_ROWS, 2)
        self.second = nn.Embedding(PAIR_ROWS, 2)

    def forward(self, users: Tensor, items: Tensor) -> Any:
        seen = self.first(users)
        everything = seen.detach().expand(LARGEST, *seen.shape).numpy()
        return seen * self.second(items if everything.max() < 100 else users)


def test_where_prediction_cannot_go_on_what_was_found_is_announced_and_the_place_named(
    caplog: Captured,
) -> None:
    given = pairs_of(24)

    def loop(model: Any, optimizer: torch.optim.Optimizer, loader: Any) -> Iterator[Tensor]:
        log = IntentLog(model) if isinstance(model, AdaModel) else None
        for users, items, _ in loader:
            yield step(model(users, items).square().sum(), optimizer)
        if log is not None:
            assert "pulled on demand: `numpy` reads the value" in loader.summary()
            assert "first.weight: 6 rows at" in loader.explain(given[0])
            rows = [sorted(model.keys_of("first.weight", users.unique()).tolist()) for users, _, _ in given]
            assert log.uses[-10:] == [(keys, clock) for clock, keys in enumerate(rows)][-10:]

    with caplog.at_level(logging.WARNING, "autoada"):
        plain, wrapped = (trained(wrap, Halting, given, loop) for wrap in (False, True))
    assert wrapped == pytest.approx(plain, abs=1e-5)
    (told,) = caplog.messages
    assert told.startswith("prediction stopped, and later rows are pulled on demand: `numpy` reads the value")
    assert "test_loader.py:" in told
    assert "`everything = seen.detach().expand(LARGEST, *seen.shape).numpy()`" in told
    assert "let only the batch determine which rows forward reads, or give AdaDataLoader `keys=`" in told


def test_rows_of_a_large_table_that_depend_on_parameters_are_named_in_the_summary(
    monkeypatch: pytest.MonkeyPatch, caplog: Captured
) -> None:
    monkeypatch.setattr("autoada.loader.intent_source.SMALL_TABLE", 3)
    model = AdaModel(Routed())
    loader = AdaDataLoader([batch[0] for batch in pairs_of(8)], 2)
    with caplog.at_level(logging.INFO, "autoada"):
        for ids in loader:
            model(ids).backward()
    summary = caplog.records[-1].message
    assert "pulled on demand: 'experts.weight' depends on parameters, at " in summary
    assert "`return (x * self.experts(x.argmax(-1))).sum()`" in summary
    assert "\n" not in summary
    assert "experts.weight: unpredictable" in loader.explain(pairs_of(1)[0][0])
    model.close()


def test_the_first_epoch_ends_with_a_summary(model: AdaModel, caplog: Captured) -> None:
    loader = AdaDataLoader(pairs_of(6), 2)
    with caplog.at_level(logging.INFO, "autoada"):
        train(model, loader)
        train(model, loader)
    assert [r.message for r in caplog.records] == [
        "2 tables, rows predicted by access program, 100.0% of rows local, lookahead 2"
    ]
    assert "access program in use for batches of this shape" in loader.explain(pairs_of(1)[0])
    assert "users.weight: 6 rows at" in loader.explain(pairs_of(1)[0])


def test_replicas_are_local(model: AdaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {"pulled_local": 1.0, "pulled_replica": 2.0, "pulled_remote": 1.0}
    with monkeypatch.context() as patch:
        patch.setattr(model.node, "stats", lambda: counted)
        assert "75.0% of rows local" in AdaDataLoader([], 2).summary()


def test_mistakes_are_told_in_one_sentence(model: AdaModel) -> None:
    with pytest.raises(ValueError, match="lookahead is -1: it must be 'auto' or a number"):
        AdaDataLoader([], -1)
    with pytest.raises(TypeError, match="keys is a list"):
        AdaDataLoader([], 1, keys=[])  # type: ignore[arg-type]
    plain: Any
    for plain in (nn.Linear(1, 1), nn.Sequential(nn.ReLU()), [model, nn.Linear(1, 1)]):
        with pytest.raises(
            TypeError, match=r"model is a (Linear|Sequential): .* AdaModel\(model, optimizer\)"
        ):
            AdaDataLoader([], 1, model=plain)
    with pytest.raises(ValueError, match="no table 'user'; it has users"):
        train(model, AdaDataLoader(pairs_of(1), 1, keys={"user": lambda b: b[0]}))
    with pytest.raises(TypeError, match="keys gave a Tensor"):
        train(model, AdaDataLoader(pairs_of(1), 1, keys=lambda b: b[0]))
    with pytest.raises(IndexError, match=r"row 50 does not exist in table 'users\.weight'"):
        train(model, AdaDataLoader(pairs_of(1), 1, keys=lambda b: {"users": b[0] * 0 + 50}))


def test_a_loader_without_a_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoada.model.wrapper._made", [])  # models of other tests that they did not close
    with pytest.raises(RuntimeError, match="there is no AdaModel to announce rows for: make AdaModel"):
        list(AdaDataLoader([1]))


class WithBadItem(Dataset[tuple[Tensor, Tensor]]):
    """Three batches of two items, of which the second batch cannot be read."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == 2:
            raise ValueError("a bad item")
        return torch.tensor(index), torch.tensor(1.0)


def test_rows_of_an_embedding_that_is_not_a_table_are_not_announced(caplog: pytest.LogCaptureFixture) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.other = nn.Embedding(2000, 3), nn.Embedding(2000, 3)

        def forward(self, ids: Tensor) -> Any:
            return self.own(ids) * self.other(ids)

    net = Two()
    optimizers = [torch.optim.NAdam(net.own.parameters()), torch.optim.SGD(net.other.parameters(), lr=0.1)]
    model = AdaModel(net, optimizers)
    loader = AdaDataLoader(torch.arange(24).split(4), 2)
    for ids in loader:
        model(ids).sum().backward()
    assert "other.weight: 4 rows" in loader.explain(ids)
    assert "own.weight:" not in loader.explain(ids)
    messages = [message for message in caplog.messages if "'own.weight' is sent in every step" in message]
    assert len(messages) == 1
    assert "NAdam is no rule of the parameter server" in messages[0]
    model.close()


def answers(batches: Iterator[Any], model: Any = None, most: int = 9) -> list[Any]:
    """Ids of the batches, or errors in their place, until the end; trains a model with them."""
    seen: list[Any] = []
    for _ in range(most):
        try:
            ids, _ = next(batches)
        except StopIteration:
            break
        except ValueError as error:
            seen.append(str(error).splitlines()[-1])
            continue
        seen.append(ids.tolist())
        if model is not None:
            model(ids).sum().backward()
    return seen


@pytest.mark.parametrize("lookahead", ["auto", 0, 1, 4])
@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("training", [True, False])
def test_a_pass_goes_on_after_an_error_as_in_pytorch(lookahead: Any, processes: int, training: bool) -> None:
    net = Net(6)
    model = AdaModel(net, torch.optim.SGD(net.parameters(), lr=0.1)).train(training)
    plain = DataLoader(WithBadItem(), batch_size=2, num_workers=processes)
    loader = AdaDataLoader(plain, lookahead)
    expected = answers(iter(plain))
    assert [type(each) for each in expected] == [list, str, list]
    for _ in range(2):
        assert answers(iter(loader), model if training else None) == expected
    model.close()


def test_a_restored_pass_goes_on_after_an_error() -> None:
    net = Net(6)
    model = AdaModel(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = AdaDataLoader(DataLoader(WithBadItem(), batch_size=2), 2)
    for used in range(3):
        batches = iter(loader)
        first = answers(batches, model, used)
        kept = loader.position.state()
        loader.position.resume(*kept)
        assert [*first, *answers(iter(loader), model)] == [[0, 1], "a bad item", [4, 5]]
    model.close()


def test_a_pass_that_another_error_has_ended_does_not_end_as_if_it_were_complete() -> None:
    net = Net(6)
    model = AdaModel(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = AdaDataLoader(DataLoader(WithBadItem(), batch_size=2), 2, keys={"none": lambda batch: batch[0]})
    batches = iter(loader)
    with pytest.raises(ValueError, match="the model has no table"):
        next(batches)
    with pytest.raises(RuntimeError, match="an error has ended this pass"):
        next(batches)
    model.close()


def test_attributes_of_the_loader_can_be_set(caplog: pytest.LogCaptureFixture) -> None:
    class Loader(list[Any]):
        epoch = 7

    net = Net(6)
    model = AdaModel(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = DataLoader(WithBadItem(), batch_size=2)
    wrapped = AdaDataLoader(loader)
    wrapped.collate_fn = lambda items: len(items)
    assert loader.collate_fn is wrapped.collate_fn
    with caplog.at_level(logging.WARNING, "autoada"):
        AdaDataLoader(Loader())
    assert "use loader.loader.epoch" in caplog.text
    model.close()
