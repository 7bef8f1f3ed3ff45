"""Batches that name rows which their table does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autoada
from tests.plain_and_wrapped import plain_and_wrapped

ROWS = 50
BAD_BATCH = 5

Read = Callable[[nn.Embedding, Tensor], Tensor]


class Reading(nn.Module):
    def __init__(self, read: Read) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 2)
        self.register_buffer("order", torch.arange(ROWS).flip(0))
        self._read = read

    def forward(self, ids: Tensor) -> Any:
        return self._read(self.table, ids).square().sum()


READS: dict[str, Read] = {
    "embedding": lambda table, ids: table(ids),
    "bag": lambda table, ids: nn.functional.embedding_bag(ids.view(-1, 2), table.weight),
    "index_select": lambda table, ids: table.weight.index_select(0, ids),
    "tensor": lambda table, ids: table.weight[ids],
    "tensor and column": lambda table, ids: table.weight[ids, 0],
    "number": lambda table, ids: table.weight[int(ids[2])],
    "list": lambda table, ids: table.weight[ids.tolist()],
    "whole table before": lambda table, ids: table.weight.sum() + table(ids),
    "branch": lambda table, ids: table(ids % 7 if ids[0] == 1000 else ids),
}


class Reordered(nn.Module):
    def __init__(self, order: Tensor) -> None:
        super().__init__()
        self._order = order

    def forward(self, ids: Tensor) -> Any:
        return self._order[ids]


def train(model: nn.Module, loader: Iterable[Tensor], done: list[Tensor]) -> None:
    for ids in loader:
        model(ids).backward()
        done.append(ids)


def batches(bad: int, at: int = BAD_BATCH) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    given = [torch.randint(0, ROWS, (6,), generator=generator) for _ in range(9)]
    given[at][2] = bad
    return given


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("announced", [True, False], ids=["predicted", "on demand"])
def test_the_step_that_reads_the_row_names_table_row_and_range(read: str, announced: bool) -> None:
    model = autoada.AdaModel(Reading(READS[read]))
    for bad in (-ROWS - 1, ROWS, 2**40):
        given = batches(bad)
        loader = autoada.AdaDataLoader(given, 2) if announced else given
        done: list[Tensor] = []
        message = rf"^row {bad} does not exist in table 'table\.weight': rows are 0 to {ROWS - 1}$"
        if read == "number":  # PyTorch itself checks the index of a view
            message = f"^index {bad} is out of bounds"
        with pytest.raises(IndexError, match=message):
            train(model, loader, done)
        assert len(done) == BAD_BATCH
    model.close()


@pytest.mark.parametrize("read", ["tensor", "tensor and column", "number", "list"])
def test_negative_numbers_in_brackets_count_from_the_end_as_in_plain_pytorch(read: str) -> None:
    plain = Reading(READS[read])
    expected = [plain(ids).item() for ids in batches(-1) + batches(-ROWS)]
    model = autoada.AdaModel(plain)
    given = autoada.AdaDataLoader(batches(-1) + batches(-ROWS), 2)
    assert [model(ids).item() for ids in given] == pytest.approx(expected)
    model.close()


@pytest.mark.parametrize("at", [0, 2, BAD_BATCH])
def test_a_loop_that_leaves_such_batches_out_trains_as_plain_pytorch(
    at: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Branching(Reading):
        def __init__(self) -> None:
            super().__init__(READS["embedding"])
            self.other = nn.Embedding(ROWS, 2)

        def forward(self, ids: Tensor) -> Any:
            return (self.table(ids) * self.other(ids.flip(0))).sum()

    def trained(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        loader: Any = batches(ROWS, at)
        if isinstance(model, autoada.AdaModel):
            loader = autoada.AdaDataLoader(loader, 2)
        modes, left_out = torch._C._len_torch_function_stack(), 0
        for ids in loader:
            optimizer.zero_grad()
            try:
                loss = model(ids)
            except IndexError:
                left_out += 1
                continue
            loss.backward()
            optimizer.step()
        assert left_out == 1
        assert torch._C._len_torch_function_stack() == modes
        if isinstance(model, autoada.AdaModel):
            assert "rows predicted by access program" in loader.summary()
        state: dict[str, Tensor] = model.state_dict()
        return state

    plain, wrapped = plain_and_wrapped(
        Branching, lambda net: torch.optim.SGD(net.parameters(), lr=0.1), trained
    )
    torch.testing.assert_close(wrapped, plain)
    assert caplog.records == []


def test_what_a_batch_does_to_its_ids_may_fail_too() -> None:
    model = autoada.AdaModel(Reading(READS["embedding"]))
    done: list[Tensor] = []
    with pytest.raises(IndexError, match=f"index {ROWS} is out of bounds for dimension 0 with size {ROWS}"):
        train(nn.Sequential(Reordered(model.order), model), autoada.AdaDataLoader(batches(ROWS), 2), done)
    assert len(done) == BAD_BATCH
    model.close()


def test_hand_written_keys_are_checked_when_their_batch_is_fetched() -> None:
    model = autoada.AdaModel(Reading(READS["embedding"]))
    done: list[Tensor] = []
    with pytest.raises(
        IndexError, match=r"^row -1 does not exist in table 'table\.weight': rows are 0 to 49$"
    ):
        train(model, autoada.AdaDataLoader(batches(-1), 2, keys={"table": lambda batch: batch}), done)
    assert len(done) == BAD_BATCH - 2
    before = model.worker.current_clock
    train(model, autoada.AdaDataLoader(batches(0), 2, keys={"table": lambda batch: batch}), [])
    assert model.worker.current_clock == before + 9
    assert model.node.stats()["intents_late"] == 0
    model.close()
