"""The optimizer state of rows: read and written by their keys."""

import numpy as np
import pytest

import adaps
from adaps.optimizers import Optimizer

ROWS, LENGTH = 6, 3
RULES: dict[str, tuple[Optimizer, int]] = {
    "SGD": (adaps.SGD(), 0),
    "momentum": (adaps.SGD(momentum=0.9), LENGTH + 1),
    "Adagrad": (adaps.Adagrad(), LENGTH),
    "RowAdagrad": (adaps.RowAdagrad(), 1),
    "Adam": (adaps.Adam(), 2 * LENGTH + 1),
    "RMSprop": (adaps.RMSprop(momentum=0.5, centered=True), 3 * LENGTH + 1),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", RULES)
def test_a_state_that_is_written_is_read_and_the_value_stays(name: str, dtype: str) -> None:
    rule, length = RULES[name]
    with adaps.Node([adaps.Table("other", 2, 1), adaps.Table("t", ROWS, LENGTH, rule, dtype=dtype)]) as node:
        table, worker = node.table("t"), node.worker(0)
        assert table.state_length == length
        keys = table.keys(np.arange(ROWS))
        before = np.empty((ROWS, LENGTH), np.float32)
        worker.pull(keys, before)
        states = np.arange(2 * length, dtype=np.float32).reshape(2, length)
        worker.set_state(keys[[4, 1]], states)
        read = np.full((3, length), -1.0, np.float32)
        worker.pull_state(keys[[1, 4, 4]], read)
        assert read.tolist() == states[[1, 0, 0]].tolist()
        after = np.empty((ROWS, LENGTH), np.float32)
        worker.pull(keys, after)
        assert after.tolist() == before.tolist()


def test_a_gradient_goes_on_from_the_state_that_was_written() -> None:
    with adaps.Node([adaps.Table("t", 1, 1, adaps.Adagrad(lr=1.0))]) as node:
        worker = node.worker(0)
        worker.set_state([0, 0], np.array([3.0, 8.0], np.float32))  # the last of several counts
        worker.push_gradients([0], np.ones(1, np.float32))
        state, value = np.empty(1, np.float32), np.empty(1, np.float32)
        worker.pull_state([0], state)
        worker.pull([0], value)
        assert state.tolist() == [9.0]
        assert value.tolist() == pytest.approx([-1 / 3])


def test_states_of_several_tables_lie_one_after_the_other() -> None:
    tables = [adaps.Table("a", 1, 2, adaps.Adagrad()), adaps.Table("b", 1, 1, adaps.Adam())]
    with adaps.Node(tables) as node:
        worker = node.worker(0)
        worker.set_state([0, 1], np.arange(5, dtype=np.float32))
        read = np.empty(8, np.float32)
        worker.pull_state([1, 0, 1], read)
        assert read.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
        with pytest.raises(ValueError, match=r"holds 4 values, but 2 keys need 5"):
            worker.pull_state([0, 1], np.empty(4, np.float32))
        with pytest.raises(IndexError, match=r"key 2 is not in \[0, 2\)"):
            worker.set_state([2], np.empty(0, np.float32))
