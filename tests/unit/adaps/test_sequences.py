"""Random sequences of calls against a dictionary: on one node, with checkpoints, and on two."""

import contextlib
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import adaps
from adaps import _core

ROWS, LENGTH = 12, 2
TABLE = adaps.Table("t", ROWS, LENGTH, optimizer=adaps.SGD(lr=0.5))

KEYS = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=6)
NUMBERS = st.integers(-8, 8)
BAD_KEYS = st.integers(-(2**63), -1) | st.integers(ROWS, 2**63 - 1)


class Calls(RuleBasedStateMachine):
    """Random calls of several workers on one table; all values are halves of integers, so sums are exact.

    Between two points at which all nodes synchronize, a worker knows only the writes of its own node. Keys
    are therefore set, and their values compared, only if the other nodes have not written since.
    """

    nodes: Sequence[Any]
    workers: Sequence[adaps.Worker]

    def __init__(self) -> None:
        super().__init__()
        self.values = dict.fromkeys(range(ROWS), 0.0)
        self.writers: dict[int, set[int]] = {key: set() for key in range(ROWS)}
        self.tickets: list[tuple[int, int]] = []

    def my_keys(self, who: int, keys: list[int]) -> list[int]:
        return [key for key in keys if self.writers[key] <= {who}]

    def written(self, who: int, keys: list[int]) -> None:
        for key in keys:
            self.writers[key].add(who)

    @rule(who=st.integers(0, 1), keys=KEYS, number=NUMBERS, later=st.booleans(), gradient=st.booleans())
    def push(self, who: int, keys: list[int], number: int, later: bool, gradient: bool) -> None:
        who %= len(self.workers)
        values = np.full((len(keys), LENGTH), number, np.float32)
        call = self.workers[who].push_gradients if gradient else self.workers[who].push
        self.keep(who, call(keys, values, asynchronous=later))
        for key in keys:
            self.values[key] += -0.5 * number if gradient else number
        self.written(who, keys)

    @rule(who=st.integers(0, 1), keys=KEYS, number=NUMBERS, later=st.booleans())
    def set(self, who: int, keys: list[int], number: int, later: bool) -> None:
        who %= len(self.workers)
        if len(self.workers) > 1:
            self.see_all()  # a set and a simultaneous addition of the other node have no defined order
        values = np.arange(len(keys) * LENGTH, dtype=np.float32).reshape(-1, LENGTH) // LENGTH + number
        self.keep(who, self.workers[who].set(keys, values, asynchronous=later))
        for place, key in enumerate(keys):
            self.values[key] = float(place + number)
        self.written(who, keys)
        if len(self.workers) > 1:
            self.see_all()

    @rule(who=st.integers(0, 1), keys=KEYS, later=st.booleans())
    def pull(self, who: int, keys: list[int], later: bool) -> None:
        who %= len(self.workers)
        keys = self.my_keys(who, keys)
        out = np.full((len(keys), LENGTH), np.nan, np.float32)
        ticket = self.workers[who].pull(keys, out, asynchronous=later)
        if ticket is not None:
            self.workers[who].wait(ticket)
        expected = [[self.values[key]] * LENGTH for key in keys]
        assert out.tolist() == expected

    @rule(who=st.integers(0, 1), keys=KEYS, ahead=st.integers(-1, 3), span=st.integers(1, 4))
    def intent(self, who: int, keys: list[int], ahead: int, span: int) -> None:
        worker = self.workers[who % len(self.workers)]
        start = max(0, worker.current_clock + ahead)
        worker.intent(keys, start, start + span)

    @rule(who=st.integers(0, 1))
    def advance_clock(self, who: int) -> None:
        worker = self.workers[who % len(self.workers)]
        before = worker.current_clock
        worker.advance_clock()
        assert worker.current_clock == before + 1

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        who, ticket = self.tickets.pop(data.draw(st.integers(0, len(self.tickets) - 1)))
        self.workers[who].wait(ticket)
        assert self.workers[who].is_done(ticket)

    @rule(who=st.integers(0, 1), keys=KEYS, bad=BAD_KEYS, place=st.integers(0, 5), which=st.integers(0, 3))
    def refuse(self, who: int, keys: list[int], bad: int, place: int, which: int) -> None:
        """A key out of range is named, and nothing of the call is done."""
        worker = self.workers[who % len(self.workers)]
        keys = [*keys[:place], bad, *keys[place:]]
        values = np.ones((len(keys), LENGTH), np.float32)
        calls: list[Any] = [worker.pull, worker.push, worker.push_gradients, worker.set]
        with pytest.raises(IndexError, match=rf"^key {bad} is not in \[0, {ROWS}\)"):
            calls[which](keys, values)
        if which == 0:
            assert (values == 1).all()

    @rule(keys=KEYS, place=st.integers(0, 11), bad=st.sampled_from([np.nan, np.inf]))
    def refuse_gradients(self, keys: list[int], place: int, bad: float) -> None:
        gradients = np.ones((len(keys), LENGTH), np.float32)
        gradients.flat[place % gradients.size] = bad
        with pytest.raises(ValueError, match=r"in the gradient of row \d+ of table 't'"):
            self.workers[0].push_gradients(keys, gradients)

    @rule()
    def see_all(self) -> None:
        for worker in (*self.workers, *self.workers):
            worker.waitall()
            worker.wait_sync()
        self.tickets.clear()
        self.writers = {key: set() for key in range(ROWS)}

    def keep(self, who: int, ticket: int | None) -> None:
        if ticket is not None:
            self.tickets.append((who, ticket))

    def teardown(self) -> None:
        if not hasattr(self, "nodes"):
            return
        try:
            self.see_all()
            for worker in self.workers:
                out = np.empty((ROWS, LENGTH), np.float32)
                worker.pull(list(range(ROWS)), out)
                assert out.tolist() == [[value] * LENGTH for value in self.values.values()]
        finally:
            self.end()

    def end(self) -> None:
        raise NotImplementedError


class OneNode(Calls):
    """A cluster of one, and its checkpoints."""

    @initialize()
    def start(self) -> None:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # no disk has to keep these
        self.folder = tempfile.TemporaryDirectory(dir=memory)
        self.saved: tuple[dict[int, float], int] | None = None
        node = adaps.Node([TABLE])
        self.nodes, self.workers = [node], [node.worker(0)]

    @rule()
    def checkpoint(self) -> None:
        self.nodes[0].checkpoint(self.folder.name, extra={"sum": sum(self.values.values())})
        self.saved = dict(self.values), self.workers[0].current_clock

    @precondition(lambda self: getattr(self, "saved", None) is not None)
    @rule()
    def restore(self) -> None:
        assert self.saved is not None
        before = self.workers[0].current_clock
        restored = self.nodes[0].restore(self.folder.name)
        self.values = dict(self.saved[0])
        assert restored.extra == {"sum": sum(self.values.values())}
        assert self.workers[0].current_clock == max(before, self.saved[1])

    @precondition(lambda self: getattr(self, "saved", None) is None)
    @rule()
    def restore_nothing(self) -> None:
        with pytest.raises(adaps.CheckpointError, match="holds no complete checkpoint"):
            self.nodes[0].restore(Path(self.folder.name))

    @invariant()
    def counts_what_it_did(self) -> None:
        if hasattr(self, "nodes"):
            assert self.nodes[0].stats()["pulled_remote"] == 0

    def end(self) -> None:
        self.nodes[0].close()
        self.folder.cleanup()


class TwoNodes(Calls):
    """A worker on each of two nodes, in one process, with any technique."""

    @initialize(technique=st.sampled_from(list(_core.Technique)), timing=st.booleans())
    def start(self, technique: _core.Technique, timing: bool) -> None:
        self.nodes = [
            _core.Node(
                [TABLE.spec()],
                rank=rank,
                world_size=2,
                workers=1,
                channels=1,
                technique=technique,
                timing=timing,
                max_rounds_per_second=2000.0,
            )
            for rank in range(2)
        ]
        addresses = [node.listen("127.0.0.1", 0) for node in self.nodes]
        self.together(
            lambda node: node.connect(
                addresses, secret="s", network="loopback", connect_timeout=30.0, peer_timeout=30.0
            )
        )
        self.workers = [node.worker(0) for node in self.nodes]

    def together(self, call: Any) -> None:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(call, self.nodes))

    def end(self) -> None:
        with contextlib.ExitStack() as ends:
            for node in self.nodes:
                ends.callback(node.abandon)  # where the test failed, the other would be waited for
            self.together(lambda node: node.close())


TestOneNode = OneNode.TestCase
TestTwoNodes = TwoNodes.TestCase
