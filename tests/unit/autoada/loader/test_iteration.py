"""However a loop iterates, it gets the batches and the random numbers of plain PyTorch."""

from __future__ import annotations

import itertools
import os
import random
import resource
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import autoada
from autoada.loader.intent_source import PredictedKeys
from autoada.prediction.batch_structure import leaves
from autoada.prediction.random_generators import random_state
from tests.plain_and_wrapped import plain_and_wrapped, train

ITEMS = 26
ROWS = 40
IDS = torch.arange(ITEMS)


class Items(Dataset[Tensor]):
    """Row ids, some of which are drawn by `draw`."""

    def __init__(self, draw: Callable[[], int] = lambda: 0) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, self.draw()])


class OwnDraws(Items):
    """Draws from generators of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.numpy = np.random.default_rng(3)
        self.more: list[Any] = [torch.Generator().manual_seed(3), random.Random(3)]

    def __getitem__(self, index: int) -> Tensor:
        drawn = torch.randint(0, ROWS, (1,), generator=self.more[0])
        return torch.tensor([self.numpy.integers(ROWS), self.more[1].randrange(ROWS), int(drawn)])


class Stream(IterableDataset[Tensor]):
    """Goes on where the pass before it was left."""

    def __init__(self) -> None:
        self.numbers = iter(range(1000))

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        return torch.tensor(next(self.numbers) % ROWS)


class Shuffled:
    """A loader that is no `DataLoader`, with a generator of its own."""

    def __init__(self) -> None:
        self.rng = random.Random(2)

    def __iter__(self) -> Iterator[Any]:
        for start in self.rng.sample(range(0, ITEMS, 4), 6):
            yield {"ids": IDS[start : start + 4]}


def refilled(draw: bool = False) -> Iterator[Any]:
    """Refills one tensor for each batch."""
    ids = torch.zeros(4, dtype=torch.int64)
    for start in range(0, ITEMS - 4, 2):
        torch.arange(start, start + 4, out=ids)
        yield ids


def refilled_array() -> Iterator[Any]:
    """Refills one array for each batch, and hands out a new tensor of its memory each time."""
    ids = np.zeros(4, dtype=np.int64)
    for start in range(0, ITEMS - 4, 2):
        ids[:] = range(start, start + 4)
        yield [torch.from_numpy(ids)]


def refilled_in_turns() -> Iterator[Any]:
    """Refills three tensors, one after the other, and the list that holds them."""
    ids = [torch.zeros(3, dtype=torch.int64) for _ in range(3)]
    batch: list[Tensor] = []
    for number in range(9):
        ids[number % 3].fill_(number)
        batch[:] = [ids[number % 3]]
        yield batch


def refilled_in_order() -> Iterator[Any]:
    """Refills the tensor in a container that is no plain dictionary."""
    for ids in refilled():
        yield OrderedDict(ids=ids)


class Buffer:
    """A function that collates samples in one tensor."""

    def __init__(self) -> None:
        self.memory = torch.zeros(8, 2, dtype=torch.int64)

    def __call__(self, samples: list[Tensor]) -> Tensor:
        return torch.stack(samples, out=self.memory[: len(samples)])


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def own() -> torch.Generator:
    return torch.Generator().manual_seed(4)


LOADERS: dict[str, Callable[[], Any]] = {
    "list": lambda: [IDS[start : start + 3] for start in range(0, 24, 3)],
    "in order": lambda: DataLoader(TensorDataset(IDS), 4),
    "shuffled": lambda: DataLoader(Items(), 4, shuffle=True),
    "shuffled by its own generator": lambda: DataLoader(Items(), 4, shuffle=True, generator=own()),
    "last one dropped": lambda: DataLoader(Items(), 4, shuffle=True, drop_last=True, generator=own()),
    "batch sampler": lambda: DataLoader(
        Items(), batch_sampler=BatchSampler(RandomSampler(IDS, generator=own()), 5, True)
    ),
    "with replacement": lambda: DataLoader(Items(), 4, sampler=RandomSampler(IDS, True, 22, generator=own())),
    "weighted": lambda: DataLoader(Items(), 4, sampler=WeightedRandomSampler([1.0] * ITEMS, 24)),
    "subset": lambda: DataLoader(Items(), 4, sampler=SubsetRandomSampler(range(0, ITEMS, 2))),
    "single items": lambda: DataLoader(Items(), batch_size=None, shuffle=True),
    "draws of torch": lambda: DataLoader(Items(lambda: int(torch.randint(ROWS, ()))), 4, shuffle=True),
    "draws of numpy": lambda: DataLoader(Items(lambda: np.random.randint(ROWS)), 4),  # noqa: NPY002
    "draws of python": lambda: DataLoader(Items(lambda: random.randrange(ROWS)), 4, shuffle=True),
    "draws of its own": lambda: DataLoader(OwnDraws(), 4, shuffle=True),
    "one process": lambda: DataLoader(Items(), 4, shuffle=True, num_workers=1),
    "one process, own generator": lambda: DataLoader(
        Items(), 4, shuffle=True, num_workers=1, generator=own()
    ),
    "processes that stay": lambda: DataLoader(
        Items(), 4, shuffle=True, num_workers=2, persistent_workers=True
    ),
    "stream": lambda: DataLoader(Stream(), 4),
    "own class": Shuffled,
    "generator": lambda: (IDS[start : start + 2] for start in range(0, ITEMS, 2)),
    "zip": lambda: zip(DataLoader(Items(), 4, shuffle=True), DataLoader(TensorDataset(IDS), 5), strict=False),
    "without end": lambda: forever(DataLoader(Items(), 5, shuffle=True, generator=own())),
    "refilled": refilled,
    "refilled array": refilled_array,
    "refilled in turns": refilled_in_turns,
    "refilled in an OrderedDict": refilled_in_order,
    "collated in one buffer": lambda: DataLoader(Items(), 8, collate_fn=Buffer()),
}
SHARED = {"draws of its own", "processes that stay", "stream"}
"""Loaders whose iterators draw from one generator, or share their data."""


class Net(nn.Module):
    """Drops out and reads rows by draws, so that random numbers decide what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(ROWS, 2)

    def forward(self, ids: Tensor) -> Any:
        read = nn.functional.dropout(self.rows(ids % ROWS), 0.5, self.training)
        drawn = torch.randint(0, ROWS, (3,))
        return read.sum() + self.rows(drawn).sum()


Way = Callable[[random.Random, Any], Iterator[Any]]


def whole(choice: random.Random, loader: Any) -> Iterator[Any]:
    yield from itertools.chain(loader)  # `yield from loader` would end an iterator that is left early


def broken_off(choice: random.Random, loader: Any) -> Iterator[Any]:
    last = choice.randrange(4)
    for number, batch in enumerate(loader):
        yield batch
        if number == last:
            break


def sliced(choice: random.Random, loader: Any) -> Iterator[Any]:
    yield from itertools.islice(loader, choice.randrange(4))


def zipped(choice: random.Random, loader: Any) -> Iterator[Any]:
    for batch, _ in zip(loader, range(choice.randrange(5)), strict=False):
        yield batch


def zipped_second(choice: random.Random, loader: Any) -> Iterator[Any]:
    for _, batch in zip(range(choice.randrange(5)), loader, strict=False):
        yield batch


def first_ones(choice: random.Random, loader: Any) -> Iterator[Any]:
    for _ in range(choice.randrange(4)):
        yield from itertools.islice(iter(loader), 1)


def by_hand(choice: random.Random, loader: Any) -> Iterator[Any]:
    iterator = iter(loader)
    yield from itertools.islice(iterator, choice.randrange(4))
    if choice.random() < 0.5:
        yield from itertools.chain(iterator)


def not_begun(choice: random.Random, loader: Any) -> Iterator[Any]:
    iter(loader)
    yield from ()


def two_at_once(choice: random.Random, loader: Any) -> Iterator[Any]:
    iterators = [iter(loader), iter(loader)]
    for _ in range(choice.randrange(8)):
        batch = next(choice.choice(iterators), None)
        if batch is not None:
            yield batch


def nested(choice: random.Random, loader: Any) -> Iterator[Any]:
    outer, inner = choice.randrange(1, 4), choice.randrange(1, 3)
    for batch in itertools.islice(loader, outer):
        yield batch
        yield from itertools.islice(loader, inner)


WAYS: list[Way] = [
    whole, broken_off, sliced, zipped, zipped_second, first_ones, by_hand, not_begun, two_at_once, nested,
]  # fmt: skip


INTERLEAVED = [two_at_once, nested]


def seen(kind: str, lookahead: int | None, seed: int, ways: list[Way], draws: bool) -> list[Any]:
    """Contents of the batches of some passes, losses, and the random generators after each pass."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    model: Any = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = LOADERS[kind]()
    if lookahead is not None:
        model = autoada.AdaModel(model, optimizer)
        loader = autoada.AdaDataLoader(loader, lookahead)
    choice = random.Random(seed)
    found: list[Any] = []
    for way in ways:
        for batch in itertools.islice(way(choice, loader), 20):
            with torch._C.DisableTorchFunction():  # it is no part of the loop
                found.append([value.tolist() for _, value in leaves(batch) if isinstance(value, Tensor)])
            if draws:
                ids = next(value for _, value in leaves(batch) if isinstance(value, Tensor))
                loss = model(ids)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(pytest.approx(loss.item(), abs=1e-5) if lookahead is None else loss.item())
        found.append(
            {name: np.asarray(value, dtype=object).tolist() for name, value in random_state().items()}
        )
    if lookahead is not None:
        model.close()
    return found


@pytest.mark.parametrize("draws", [False, True], ids=["read", "trained"])
@pytest.mark.parametrize("kind", LOADERS)
def test_batches_and_random_numbers_are_those_of_plain_pytorch(kind: str, draws: bool) -> None:
    for seed in range(1 if "process" in kind else 2):
        choice = random.Random(seed)
        ways = [way for way in choice.sample(WAYS, 5) if kind not in SHARED or way not in INTERLEAVED]
        plain = seen(kind, None, seed, ways, draws)
        for lookahead in (0, 2, 5):
            assert plain == seen(kind, lookahead, seed, ways, draws), (seed, lookahead, ways)


@pytest.mark.parametrize("kind", sorted(SHARED))
def test_iterators_that_share_data_are_refused_while_batches_are_held(kind: str) -> None:
    def both(choice: random.Random, loader: Any) -> Iterator[Any]:
        for batches in zip(loader, loader, strict=False):
            yield from batches

    assert seen(kind, None, 0, [both], False) == seen(kind, 0, 0, [both], False)
    with pytest.raises(RuntimeError, match=r"(before its turn|fetched ahead).*lookahead=0"):
        seen(kind, 2, 0, [both], False)


@pytest.mark.parametrize("draws", ["loader and loop", "loader"])
def test_draws_for_batches_that_are_held_are_made_in_their_turn_or_refused(draws: str) -> None:
    """A generator shuffles again after some batches, which no fetch before shows."""

    def loader() -> Iterator[Tensor]:
        for _ in range(2):
            yield from torch.randperm(12).split(2)

    def drawn(wrap: bool) -> list[Any]:
        torch.manual_seed(0)
        model: Any = Net() if draws == "loader and loop" else nn.Embedding(12, 2)
        if wrap:
            model = autoada.AdaModel(model)
        batches: Any = autoada.AdaDataLoader(loader(), 3) if wrap else loader()
        found = []
        for ids in batches:
            model(ids).sum().backward()
            found.append(ids)
        if wrap:
            model.close()
        return [*found, torch.get_rng_state()]

    if draws == "loader":
        assert all(map(torch.equal, drawn(False), drawn(True)))
    else:
        with pytest.raises(RuntimeError, match=r"fetched before its turn.*generator of its own"):
            drawn(True)


class Drawing(nn.Module):
    """Reads rows that a function draws."""

    def __init__(self, draw: Callable[[], int]) -> None:
        super().__init__()
        self.rows = nn.Embedding(ROWS, 2)
        self.draw = draw

    def forward(self, ids: Tensor) -> Any:
        drawn = torch.tensor([self.draw() for _ in range(3)])
        return (self.rows(ids).sum() + self.rows(drawn)).sum()


DRAWS: dict[str, Callable[[], int]] = {
    "torch": lambda: int(torch.randint(ROWS, ())),
    "NumPy": lambda: int(np.random.randint(ROWS)),  # noqa: NPY002
    "Python": lambda: random.randrange(ROWS),
}


@pytest.mark.parametrize("also_by_loop", ["never", "once", "in each step"])
@pytest.mark.parametrize("library", DRAWS)
def test_forward_draws_what_it_draws_in_plain_pytorch(
    library: str, also_by_loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    draw = DRAWS[library]

    def run(wrap: bool) -> list[Any]:
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        model: Any = Drawing(draw)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches: Any = IDS.split(2)
        if wrap:
            model = autoada.AdaModel(model, optimizer)
            batches = autoada.AdaDataLoader(batches, 2)
        found: list[Any] = []
        for number, ids in enumerate(batches):
            loss = model(ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(pytest.approx(loss.item(), abs=1e-5))
            if also_by_loop == "in each step" or (also_by_loop == "once" and number == 5):
                found.append(draw())
        if wrap:
            assert ("they cannot be predicted" in caplog.text) == (also_by_loop == "in each step")
            model.close()
        return [*found, draw()]

    assert run(True) == run(False)


def test_loader_that_draws_for_each_batch_is_reported_once_with_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen("draws of torch", 2, 0, [whole, whole], True)
    (message,) = [message for message in caplog.messages if "its turn" in message]
    assert "give the data set or its collate_fn a generator of its own" in message


def test_processes_that_stay_are_reported_if_a_pass_is_left_early(caplog: pytest.LogCaptureFixture) -> None:
    def two_batches(choice: random.Random, loader: Any) -> Iterator[Any]:
        yield from itertools.islice(loader, 2)

    seen("processes that stay", 2, 0, [two_batches, two_batches], False)
    (message,) = [message for message in caplog.messages if "processes stay" in message]
    assert "persistent_workers=False" in message


def test_workers_of_one_process_leave_the_generators_that_they_share_alone() -> None:
    """Each worker's fetches and predictions happen while the other one draws."""
    made = Net()
    node = autoada.create_node(made, workers=2)

    def work(worker: int) -> int:
        model = autoada.AdaModel(Net(), node=node, worker=worker)
        loader = autoada.AdaDataLoader(DataLoader(Items(), 2, shuffle=True), 3, model=model)
        steps = 0
        for ids in loader:
            model(ids).backward()
            steps += 1
        source = loader._source
        assert source is not None
        assert source.generators == []
        predicted = loader._intent_source(model)
        assert isinstance(predicted, PredictedKeys)
        assert not predicted.predictor.foresees_draws
        return steps

    with node, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [13, 13]


def test_errors_of_the_loader_are_raised_in_their_turn() -> None:
    def loader() -> Iterator[Tensor]:
        yield from IDS.split(4)[:3]
        raise OSError("the disk is gone")

    model = autoada.AdaModel(nn.Embedding(ROWS, 2))
    batches = iter(autoada.AdaDataLoader(loader(), 5))
    for _ in range(3):
        model(next(batches)).sum().backward()
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    model.close()


def test_held_batches_take_no_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    model = autoada.AdaModel(Sum())
    data = TensorDataset(*[torch.arange(400) % ROWS] * 4)
    loader = autoada.AdaDataLoader(DataLoader(data, 2, num_workers=2), 64)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 80, hard))
    try:
        for batch in loader:
            model(*batch).sum().backward()
            used += 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        model.close()
    assert used == 200


class Sum(nn.Module):
    """Adds the rows of all ids."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(ROWS, 2)

    def forward(self, *ids: Tensor) -> Any:
        return torch.stack([self.rows(part) for part in ids]).sum()


class Recent(nn.Module):
    """Also reads the rows of the ids before, which a buffer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(ROWS, 2)
        self.register_buffer("recent", torch.arange(4))

    def forward(self, ids: Tensor) -> Any:
        return (self.rows(ids) * self.rows(self.recent)).sum()


def by_buffer(model: Any, batches: Any) -> Iterator[Tensor]:
    for ids in batches:
        yield model(ids)
        model.recent.copy_((ids + model.recent) % ROWS)


def by_tensor(model: Any, batches: Any) -> Iterator[Tensor]:
    ids = torch.arange(4)
    for change in batches:
        yield model(ids, change)
        ids.add_(change).remainder_(ROWS)


def by_data(model: Any, batches: Any) -> Iterator[Tensor]:
    ids = torch.arange(4)
    for change in batches:
        yield model(ids, change)
        ids.data[:] = (ids + change) % ROWS


def by_array(model: Any, batches: Any) -> Iterator[Tensor]:
    array = np.arange(4)
    ids = torch.from_numpy(array)
    for change in batches:
        yield model(ids, change)
        array[:] = (array + change.numpy()) % ROWS


def by_batch(model: Any, batches: Any) -> Iterator[Tensor]:
    for ids in batches:
        array = ids.numpy()
        array[:] = (array * 3 + 1) % ROWS
        yield model(ids, ids)


def by_later_batch(model: Any, batches: Any) -> Iterator[Tensor]:
    """Changes batches of a list, whose turn may not have come, and which come again."""
    for number, ids in enumerate(batches):
        yield model(ids, ids)
        GIVEN[(number * 5 + 1) % len(GIVEN)].add_(1).remainder_(ROWS)


def by_queue(model: Any, batches: Any) -> Iterator[Tensor]:
    queue: list[Tensor] = [torch.arange(4), torch.arange(4) + 3]
    for ids in batches:
        yield model(*queue)
        queue.append(queue.pop(0).copy_(ids))


GIVEN = [torch.arange(start, start + 4) for start in range(12)]


@pytest.mark.parametrize("lookahead", [0, 1, 2, 5])
@pytest.mark.parametrize(
    ("make", "loop"),
    [
        (Recent, by_buffer),
        (Sum, by_tensor),
        (Sum, by_data),
        (Sum, by_array),
        (Sum, by_batch),
        (Sum, by_later_batch),
        (Sum, by_queue),
    ],
)
@pytest.mark.parametrize("by_hand", [False, True], ids=["predicted", "by hand"])
def test_ids_that_change_between_steps_are_those_that_are_read(
    make: Any, loop: Any, lookahead: int, by_hand: bool
) -> None:
    def run(wrap: bool) -> list[float]:
        torch.manual_seed(0)
        model: Any = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for start, ids in enumerate(GIVEN):
            torch.arange(start, start + 4, out=ids)
        batches: Any = GIVEN
        if wrap:
            model = autoada.AdaModel(model, optimizer)
            keys = (lambda ids: {"rows": ids}) if by_hand else None
            batches = autoada.AdaDataLoader(GIVEN, lookahead, keys=keys)
        losses = []
        for _ in range(2):
            for loss in loop(model, batches):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        if wrap:
            model.close()
        return losses

    assert run(True) == pytest.approx(run(False), abs=1e-5)


def test_writes_of_the_loop_are_followed_while_the_lookahead_shrinks() -> None:
    def run(wrap: bool) -> list[Any]:
        base = torch.arange(24)
        model: Any = nn.Embedding(ROWS, 2)
        batches: Any = base.split(2)
        if wrap:
            model = autoada.AdaModel(model)
            batches = autoada.AdaDataLoader(batches, 4)
        found = []
        for number, ids in enumerate(batches):
            model(ids).sum().backward()
            found.append(ids.tolist())
            base.add_(1).remainder_(ROWS)
            if wrap and number == 3:
                batches.lookahead.batches = 1
        if wrap:
            model.close()
        return found

    assert run(True) == run(False)


def test_writes_before_another_iterator_of_the_loader_are_followed() -> None:
    def run(wrap: bool) -> list[Any]:
        base = torch.arange(12)
        given = list(base.split(2))
        model: Any = autoada.AdaModel(nn.Embedding(ROWS, 2)) if wrap else nn.Embedding(ROWS, 2)
        batches: Any = autoada.AdaDataLoader(given, 2) if wrap else given
        found = []
        for ids in batches:
            found.append(ids.tolist())
            model(ids).sum().backward()
            base.add_(1).remainder_(ROWS)
            for other in itertools.islice(batches, 2):
                found.append(other.tolist())
                base.add_(1).remainder_(ROWS)
        if wrap:
            model.close()
        return found

    assert run(True) == run(False)


@pytest.mark.parametrize(
    "combined",
    [
        lambda data: Subset(data, range(12)),
        lambda data: ConcatDataset([Subset(data, range(6)), Subset(data, range(6, 12))]),
    ],
    ids=["subset", "list of subsets"],
)
@pytest.mark.parametrize("lookahead", [0, 2])
def test_writes_of_the_loop_to_the_data_set_are_reported_once(
    lookahead: int, combined: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    model = autoada.AdaModel(Sum())
    labels = torch.zeros(12)
    data = combined(TensorDataset(torch.arange(12), labels, *torch.zeros(40, 12)))
    seen = []
    for ids, label, *_ in autoada.AdaDataLoader(DataLoader(data, 2), lookahead):
        model(ids).backward()
        seen.append(label[0].item())
        labels += 1
    model.close()
    assert (seen == [0, 1, 2, 3, 4, 5]) is (lookahead == 0)
    assert [message.startswith("the loop has changed a tensor") for message in caplog.messages] == (
        [True] if lookahead else []
    )


class Sparse(Sum):
    def forward(self, *ids: Tensor) -> Any:
        return super().forward(*(part.coalesce().indices()[0] for part in ids))


class Nested(Sum):
    def forward(self, *ids: Tensor) -> Any:
        return super().forward(*(part.values() for part in ids))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Sparse, lambda ids: torch.sparse_coo_tensor(ids[None], torch.ones(len(ids)), (ROWS,))),
        (Nested, lambda ids: torch.nested.nested_tensor([ids, ids[:2]], layout=torch.jagged)),
    ],
)
def test_batches_of_sparse_and_nested_tensors_train_as_in_plain_pytorch(
    make: Callable[[], Any], kind: Callable[[Tensor], Tensor]
) -> None:
    def run(model: Any, optimizer: torch.optim.Optimizer) -> list[float]:
        batches: Any = [kind(ids) for ids in GIVEN]
        if isinstance(model, autoada.AdaModel):
            batches = autoada.AdaDataLoader(batches, 2)
        return train(model, optimizer, batches, lambda model, batch: model(batch).square())

    plain, wrapped = plain_and_wrapped(make, lambda net: torch.optim.SGD(net.parameters(), lr=0.001), run)
    assert wrapped == pytest.approx(plain, rel=1e-4)
