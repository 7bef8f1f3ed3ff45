"""A worker's calls on a cluster of one, and a node's life."""

import gc
import multiprocessing
import signal
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import adaps

TABLE = adaps.Table("emb", 100, 4, optimizer=adaps.SGD(lr=0.5))


@pytest.fixture
def node() -> Iterator[adaps.Node]:
    with adaps.Node([TABLE], workers=2) as node:
        yield node


@pytest.fixture
def kv(node: adaps.Node) -> adaps.Worker:
    return node.worker(0)


def pulled(kv: adaps.Worker, keys: Any) -> list[float]:
    """The first float of each key's value."""
    out = np.empty((len(keys), 4), dtype=np.float32)
    kv.pull(keys, out)
    return [float(x) for x in out[:, 0]]


def filled(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.repeat(np.array(values, dtype=np.float32)[:, None], 4, axis=1)


def test_push_adds_set_overwrites_and_gradients_descend(kv: adaps.Worker) -> None:
    kv.push([1, 2], filled(1, 2))
    kv.push([1, 2], filled(1, 2))
    assert pulled(kv, [2, 1, 0]) == [4, 2, 0]
    kv.set([1], filled(10))
    kv.push_gradients([1, 2], filled(2, 4))
    assert pulled(kv, [1, 2]) == [9, 2]


def test_duplicate_keys_behave_as_if_given_one_after_the_other(kv: adaps.Worker) -> None:
    kv.push([3, 3, 4, 3], filled(1, 2, 8, 4))
    assert pulled(kv, [3, 4, 3]) == [7, 8, 7]
    kv.set([3, 3], filled(1, 2))
    assert pulled(kv, [3, 3]) == [2, 2]


def test_synchronous_calls_return_nothing_and_asynchronous_ones_a_ticket(kv: adaps.Worker) -> None:
    out = filled(0)
    assert kv.push([1], filled(1)) is None
    ticket = kv.push([1], filled(1), asynchronous=True)
    assert isinstance(ticket, int)
    kv.wait(ticket)
    assert kv.is_done(ticket)
    ticket = kv.pull([1], out, True)
    assert ticket is not None
    kv.wait(ticket)
    assert out[0, 0] == 2
    kv.waitall()


@pytest.mark.parametrize("ticket", [0, 5, -2])
def test_a_ticket_never_issued_is_refused(kv: adaps.Worker, ticket: int) -> None:
    with pytest.raises(ValueError, match=f"ticket {ticket} was never issued"):
        kv.wait(ticket)
    with pytest.raises(ValueError, match=f"ticket {ticket} was never issued"):
        kv.is_done(ticket)


def test_the_clock_counts_and_belongs_to_the_worker(node: adaps.Node, kv: adaps.Worker) -> None:
    assert kv.current_clock == 0
    kv.advance_clock()
    kv.advance_clock()
    assert (kv.current_clock, node.worker(1).current_clock) == (2, 0)


def test_intent_is_counted_and_checked(node: adaps.Node, kv: adaps.Worker) -> None:
    kv.intent([1, 2], 0)
    kv.intent(torch.tensor([1]), start=3, end=8)
    assert node.stats()["intents"] == 3
    with pytest.raises(ValueError, match=r"clocks \[3, 3\) is empty"):
        kv.intent([1], 3, 3)
    with pytest.raises(ValueError, match=r"clocks \[3, 0\) is empty"):
        kv.intent([1], 3, 0)
    assert node.stats()["intents"] == 3


def test_an_intent_for_the_past_is_counted_as_late_and_said_once(
    node: adaps.Node, kv: adaps.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        kv.advance_clock()
    kv.intent([1, 2], 0, 2)
    kv.intent([3], 1, 2)
    assert node.stats()["intents_late"] == 3
    (record,) = caplog.records
    assert record.name == "adaps"
    assert "intent for clocks [0, 2) at clock 3" in record.getMessage()


def test_a_worker_has_one_handle(node: adaps.Node) -> None:
    assert node.worker(1) is node.worker(1)
    assert node.worker(0) is not node.worker(1)


def test_collective_calls_wait_for_every_worker(node: adaps.Node) -> None:
    order: list[str] = []
    arrived = threading.Event()

    def second() -> None:
        kv = node.worker(1)
        arrived.wait(10)
        kv.push([7], filled(1))
        order.append("second")
        kv.begin_setup()
        kv.end_setup()

    thread = threading.Thread(target=second)
    thread.start()
    kv = node.worker(0)
    arrived.set()
    kv.begin_setup()
    order.append("first")
    kv.end_setup()
    thread.join(10)
    assert not thread.is_alive()
    assert order == ["second", "first"]
    assert pulled(kv, [7]) == [1]


def test_a_finalized_worker_refuses_calls_and_others_go_on(node: adaps.Node, kv: adaps.Worker) -> None:
    node.worker(1).finalize()
    node.worker(1).finalize()
    kv.barrier()
    with pytest.raises(adaps.AdapsError, match="worker 1 is finalized"):
        node.worker(1).barrier()


def test_threads_do_not_disturb_each_other() -> None:
    workers, rounds = 4, 200
    with adaps.Node([TABLE], workers=workers) as node:

        def work(index: int) -> None:
            kv = node.worker(index)
            keys = np.arange(100)
            for _ in range(rounds):
                kv.push(keys, np.ones((100, 4), dtype=np.float32))
            kv.barrier()

        with ThreadPoolExecutor(workers) as threads:
            list(threads.map(work, range(workers)))
        assert pulled(node.worker(0), range(100)) == [workers * rounds] * 100


def test_stats_count_what_was_served(node: adaps.Node, kv: adaps.Worker) -> None:
    kv.push([1, 2, 3], filled(1, 1, 1))
    pulled(kv, [1, 2])
    stats = node.stats()
    assert (stats["pushed_local"], stats["pulled_local"], stats["pulled_remote"]) == (3, 2, 0)


def test_a_closed_node_says_so_and_keeps_its_numbers() -> None:
    with adaps.Node([TABLE]) as node:
        kv = node.worker(0)
        pulled(kv, [1])
    node.close()
    assert "closed" in repr(node)
    assert node.stats()["pulled_local"] == 1
    assert node.table("emb").rows == 100
    with pytest.raises(adaps.AdapsError, match="the node is closed"):
        pulled(kv, [1])
    with pytest.raises(adaps.AdapsError, match="the node is closed"):
        node.worker(0)
    with pytest.raises(adaps.AdapsError, match="closed and cannot be entered: make a new one"), node:
        pass
    with pytest.raises(adaps.AdapsError, match="the node is closed"):
        node.table("emb").set_learning_rate(1.0)


def test_two_nodes_of_one_do_not_meet() -> None:
    with adaps.Node([TABLE]) as one, adaps.Node([TABLE]) as other:
        one.worker(0).push([1], filled(1))
        assert pulled(other.worker(0), [1]) == [0]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [(5, TypeError, "the text of 'n' is 5; it must be a string"), ("x" * 2**23, ValueError, "give at most")],
)
def test_a_text_that_the_store_cannot_hold_is_refused(text: Any, error: Any, said: str) -> None:
    with adaps.Node([TABLE]) as node:
        with pytest.raises(error, match=said):
            node.post("n", text)
        assert node.posted("n") is None


def test_the_exception_of_the_body_is_the_one_that_is_raised() -> None:
    with pytest.raises(ZeroDivisionError), adaps.Node([TABLE]) as node:
        raise ZeroDivisionError
    assert "closed" in repr(node)


def test_an_exception_in_the_body_frees_a_worker_that_waits_for_others() -> None:
    failures: list[BaseException] = []
    started = threading.Event()

    def wait_for_ever(kv: adaps.Worker) -> None:
        started.set()
        try:
            kv.barrier()
        except adaps.AdapsError as error:
            failures.append(error)

    def fail_beside() -> None:
        with adaps.Node([TABLE], workers=2) as node:
            threads.append(threading.Thread(target=wait_for_ever, args=(node.worker(1),)))
            threads[0].start()
            assert started.wait(10)
            raise ZeroDivisionError

    threads: list[threading.Thread] = []
    with pytest.raises(ZeroDivisionError):
        fail_beside()
    threads[0].join(10)
    assert not threads[0].is_alive()
    assert "the node" in str(failures[0])
    assert "closed" in str(failures[0])


def test_a_node_that_still_works_cannot_be_closed() -> None:
    with adaps.Node([TABLE], workers=2) as node:
        thread = threading.Thread(target=node.worker(1).barrier)
        thread.start()
        refusal = None
        while refusal is None:  # until the thread is inside of its call
            node.stats()
            with pytest.raises(adaps.AdapsError) as caught:
                node.close()
            refusal = caught.value
        assert "another thread is in one of its calls" in str(refusal)
        node.worker(0).barrier()
        thread.join(10)


def test_a_signal_handler_cannot_reenter_the_call_that_it_interrupts(
    node: adaps.Node, kv: adaps.Worker
) -> None:
    refused: list[str] = []
    handling = threading.Lock()

    def handle(*_: object) -> None:
        if not handling.acquire(blocking=False):
            return  # a later signal, or the test is complete
        try:
            kv.advance_clock()
        except adaps.AdapsError as error:
            refused.append(str(error))
        else:
            handling.release()  # the call has not begun
            return
        for end in (node.close, lambda: node.__exit__(KeyboardInterrupt, None, None)):
            with pytest.raises(adaps.AdapsError) as caught:
                end()
            refused.append(str(caught.value))
        node.worker(1).barrier()  # another worker of the node is free

    def interrupt() -> None:
        while not refused:
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        kv.barrier()
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 3
    assert "worker 0 is in a call of this thread, which a signal handler interrupts" in refused[0]
    assert all("cannot be closed within one of its calls" in text for text in refused[1:])


def test_handles_keep_the_node_alive() -> None:
    kv = adaps.Node([TABLE]).worker(0)
    gc.collect()
    assert pulled(kv, [1]) == [0]


def test_arrays_of_finished_calls_are_released(kv: adaps.Worker) -> None:
    class Array(np.ndarray):
        """An array that can be referred to weakly."""

    def push() -> weakref.ref[Any]:
        deltas = filled(1).view(Array)
        kv.push(np.array([1]), deltas, asynchronous=True)
        return weakref.ref(deltas)

    references = [push() for _ in range(10)]
    kv.waitall()
    gc.collect()
    assert [reference() for reference in references] == [None] * 10


def use_node(node: adaps.Node, answer: Any) -> None:
    try:
        node.worker(0)
    except adaps.AdapsError as error:
        answer.put(str(error))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_cannot_use_the_node_and_ends_well(node: adaps.Node) -> None:
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=use_node, args=(node, answer))
    child.start()
    assert "belongs to the parent process" in answer.get(timeout=20)
    child.join(20)
    assert child.exitcode == 0
    assert pulled(node.worker(0), [1]) == [0]


# Sums of gradients, and steps in place


@pytest.mark.parametrize("ids", [[[3, 7, 3], [1, 3, 7]], [4, 4], range(20), range(5, 9), []])
def test_gradients_of_a_row_are_summed_before_its_step(ids: Any) -> None:
    tables = [adaps.Table(name, 20, 4, optimizer=adaps.Adagrad(lr=0.5)) for name in ("before", "rows")]
    ids = torch.tensor(ids, dtype=torch.int64)
    rows = torch.randn(ids.numel(), 4, dtype=torch.float32)
    weight = torch.zeros(20, 4, requires_grad=True)
    torch.nn.functional.embedding(ids, weight).view(-1, 4).backward(rows)
    assert weight.grad is not None
    with adaps.Node(tables) as node:
        kv, read = node.worker(0), ids.unique()
        kv.push_sums([(node.table("rows"), ids, rows), (node.table("before"), ids[:0], rows[:0])])
        kv.push_gradients(node.table("before").keys(read), weight.grad[read])
        out = torch.empty(40, 4)
        kv.pull(torch.arange(40), out)
        assert torch.equal(out[:20], out[20:])
        assert bool(out.any()) == (len(read) > 0)
        kept, sums = adaps.sum_by_key(ids, rows)
        assert torch.equal(sums.flatten(), weight.grad[kept].flatten())


def test_rows_are_pulled_by_their_ids() -> None:
    decaying = adaps.Table("rows", 9, 2, optimizer=adaps.SGD(lr=0.5, weight_decay=0.5))
    with adaps.Node([adaps.Table("before", 7, 3), decaying]) as node:
        kv, table = node.worker(0), node.table("rows")
        ids, out = torch.tensor([[8, 0], [8, 3]]), torch.empty(2, 2, 2)
        kv.set(table.keys([0, 3, 8]), torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]))
        kv.pull_rows(table, ids, out)
        assert out[..., 0].tolist() == [[4, 1], [4, 2]]
        table.set_step(1)
        kv.push_gradients(table.keys([0]), torch.zeros(1, 2))
        table.set_step(2)
        kv.pull_rows(table, ids, out)
        assert out[..., 0].tolist() == [[4, 0.75], [4, 2]]
        kv.pull_rows(table, ids, out, idle_rows=True)
        assert out[..., 0].tolist() == [[2.25, 0.5625], [2.25, 1.125]]
        with pytest.raises(IndexError, match="row 9 does not exist in table 'rows': rows are 0 to 8"):
            kv.pull_rows(table, [9], out[0, :1])
        with pytest.raises(ValueError, match="the array holds 4 values, but 4 keys need 8"):
            kv.pull_rows(table, ids, out[0])
        with adaps.Node([decaying]) as other, pytest.raises(ValueError, match="belongs to another node"):
            kv.pull_rows(other.table("rows"), ids, out)


def test_rows_count_as_changed_until_they_are_pulled_and_when_anybody_wrote_them(
    node: adaps.Node, kv: adaps.Worker
) -> None:
    other, keys, seen = node.worker(1), torch.tensor([50, 1, 2]), torch.zeros(3, dtype=torch.int64)
    assert kv.changed(keys, seen)
    assert kv.changed(keys, seen), "a row that was never used is not here yet"
    pulled(kv, keys)
    assert kv.changed(keys, seen), "it has come since the last look"
    assert not kv.changed(keys, seen)
    assert pulled(kv, keys) == pulled(other, keys) == [0, 0, 0]
    other.push([90], filled(1))
    assert not kv.changed(keys, seen)
    for write in (other.push, other.set, other.push_gradients, kv.push):
        write([2], filled(1))
        assert kv.changed(keys, seen)
        assert not kv.changed(keys, seen)
    assert not kv.changed([], np.zeros(0, np.int64))


def test_a_look_that_is_not_possible_says_why(kv: adaps.Worker) -> None:
    with pytest.raises(IndexError, match="key 100 is not in"):
        kv.changed([100], np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="seen holds 1 values, but 2 keys need one each"):
        kv.changed([1, 2], np.zeros(1, np.int64))
    with pytest.raises(TypeError, match="seen"):
        kv.changed([1], np.zeros(1, np.float32))
    constant = np.zeros(1, np.int64)
    constant.flags.writeable = False
    with pytest.raises(ValueError, match="seen"):
        kv.changed([1], constant)


def test_gradients_that_cannot_be_summed_are_refused(node: adaps.Node, kv: adaps.Worker) -> None:
    table = node.table("emb")
    with pytest.raises(IndexError, match="row 100 does not exist in table 'emb'"):
        kv.push_sums([(table, [1], filled(1)), (table, [100], filled(1))])
    with pytest.raises(ValueError, match="the array holds 4 values, but 2 keys need 8"):
        kv.push_sums([(table, [1, 1], filled(1))])
    with pytest.raises(ValueError, match="inf in the gradient of row 2 of table 'emb': nothing was applied"):
        kv.push_sums([(table, [2, 1, 2], filled(3e38, 1, 3e38))])
    assert pulled(kv, [1, 2]) == [0, 0]
    with adaps.Node([TABLE]) as other, pytest.raises(ValueError, match="belongs to another node"):
        kv.push_sums([(other.table("emb"), [1], filled(1))])
    with pytest.raises(ValueError, match="rows holds 3 values for 2 keys: it needs one row for each"):
        adaps.sum_by_key([1, 2], np.ones(3, np.float32))
    with pytest.raises(ValueError, match="rows holds 6 values in rows of 2 for 2 keys: it needs one row"):
        adaps.sum_by_key([1, 2], np.ones((3, 2), np.float32))


@pytest.mark.parametrize("optimizer", [adaps.SGD(lr=0.5, momentum=0.9), adaps.Adam(lr=0.1)])
def test_a_step_in_place_is_a_set_a_push_and_a_pull(optimizer: Any) -> None:
    with adaps.Node([adaps.Table("other", 5, 3), adaps.Table("emb", 10, 4, optimizer=optimizer)]) as node:
        kv, table = node.worker(0), node.table("emb")
        with adaps.Node([adaps.Table("emb", 10, 4, optimizer=optimizer)]) as plain:
            expected = np.random.default_rng(1).normal(size=(10, 4)).astype(np.float32)
            values = expected.copy()
            for step in range(3):
                values[2, 1] = expected[2, 1] = step  # by hand
                gradients = np.random.default_rng(step).normal(size=(5, 4)).astype(np.float32)
                kv.step_rows(table, values, [(1, gradients[:2]), (7, gradients[2:].ravel()[:10])])
                gradients[4, 2:] = 0
                plain.worker(0).set([1, 2, 7, 8, 9], expected[[1, 2, 7, 8, 9]])
                plain.worker(0).push_gradients([1, 2, 7, 8, 9], gradients)
                plain.worker(0).pull([1, 2, 7, 8], expected_rows := np.empty((4, 4), np.float32))
                expected[[1, 2, 7, 8]] = expected_rows
                plain.worker(0).pull([9], last := np.empty(4, np.float32))
                expected[9, :2] = last[:2]
                assert np.array_equal(values, expected)
        inside = np.empty((5, 4), np.float32)
        kv.pull(table.keys([1, 2, 7, 8, 9]), inside)
        assert np.array_equal(inside[:4], values[[1, 2, 7, 8]])
        assert np.array_equal(inside[4, :2], values[9, :2])


@pytest.mark.parametrize("optimizer", [adaps.SGD(lr=0.5, momentum=0.9), adaps.Adagrad(lr=0.1)])
@pytest.mark.parametrize("length", [4, 600, 3000])
def test_a_step_of_copies_is_pushes_a_look_and_a_pull(optimizer: Any, length: int) -> None:
    rows, tables = 40, [adaps.Table("other", 5, 3), adaps.Table("emb", 40, length, optimizer=optimizer)]
    random = np.random.default_rng(1)
    with adaps.Node(tables, workers=2) as node, adaps.Node(tables, workers=2) as plain:
        kv, table, keys = node.worker(0), node.table("emb"), node.table("emb").keys(np.arange(rows))
        pulled_values, seen = np.zeros((rows, length), np.float32), np.zeros(rows, np.int64)
        kv.pull(keys, pulled_values)
        values = pulled_values.copy()
        for _ in range(4):
            values[[3, 20], 1] += 1  # by hand
            values[7] = np.nan
            others = random.normal(size=(2, length)).astype(np.float32)
            gradients = random.normal(size=(30, length)).astype(np.float32)
            last = length // 2 + 1
            parts = [(2, gradients[:20]), (25, gradients[20:].ravel()[: 9 * length + last])]
            for one in (node, plain):
                one.worker(1).push(keys[[2, 3]], others)
            plain.worker(0).pull(keys, inside := np.empty((rows, length), np.float32))
            written = np.flatnonzero((values != pulled_values).any(1) & ~np.isnan(pulled_values).all(1))
            assert set(written) >= {3, 20}
            plain.worker(0).push(keys[written], values[written] - pulled_values[written])
            gradients[29, last:] = 0
            changed = np.r_[2:22, 25:35]
            plain.worker(0).push_gradients(keys[changed], gradients * np.float32(0.25))
            plain.worker(0).pull(keys, inside)
            untouched = values[[0, 38]].copy()
            kv.step_copies(table, values, pulled_values, seen, parts, 0.25)
            assert np.array_equal(values[changed], inside[changed], equal_nan=True)
            assert np.array_equal(values[changed], pulled_values[changed], equal_nan=True)
            assert np.array_equal(values[[0, 38]], untouched)
            assert not kv.changed(keys[changed], seen[changed])


def test_a_step_of_copies_that_is_not_possible_changes_nothing(node: adaps.Node, kv: adaps.Worker) -> None:
    table = node.table("emb")
    values, seen = np.zeros((100, 4), np.float32), np.zeros(100, np.int64)
    kept, ones, large = values.copy(), filled(1, 1), filled(1, 3e38)
    mistakes: list[tuple[Any, float, type[Exception], str]] = [
        ([(0, ones), (99, ones)], 1, ValueError, "8 values from row 99 on does not fit into values"),
        ([(0, ones), (50, filled(1, np.nan))], 1, ValueError, "nan in the gradient of row 51 of table 'emb'"),
        ([(0, ones), (50, large)], 2, ValueError, "inf in the gradient of row 51 of table 'emb'"),
        ([(0, ones), (50, ones.astype(np.float64))], 1, TypeError, "gradient has dtype float64"),
    ]
    for parts, scale, error, told in mistakes:
        with pytest.raises(error, match=told):
            kv.step_copies(table, values, kept, seen, parts, scale)
    for cut, told in enumerate(
        ("values holds 396 values", "pulled holds 396 values", "seen holds 99 values")
    ):
        first = [int(i == cut) for i in range(3)]
        with pytest.raises(ValueError, match=f"{told}, but all rows of the table need"):
            kv.step_copies(table, values[first[0] :], kept[first[1] :], seen[first[2] :], [(0, ones)])
    with adaps.Node([TABLE]) as other, pytest.raises(ValueError, match="belongs to another node"):
        kv.step_copies(other.table("emb"), values, kept, seen, [(0, ones)])
    assert not values.any()
    assert not any(pulled(kv, range(100)))


def test_a_step_in_place_that_is_not_possible_changes_nothing(node: adaps.Node, kv: adaps.Worker) -> None:
    values, ones = filled(*range(10)), filled(1, 1)
    with pytest.raises(adaps.AdapsError, match="only a single worker can step rows in place"):
        kv.step_rows(node.table("emb"), values, [(0, ones)])
    bad = filled(1, np.nan)
    with adaps.Node([adaps.Table("emb", 10, 4)]) as lonely:
        worker, table = lonely.worker(0), lonely.table("emb")
        for row, gradient, error, told in (
            (9, ones, ValueError, "of 8 values from row 9 on does not fit into values, which holds 40"),
            (10, ones, ValueError, "a gradient of 8 values from row 10 on does not fit"),
            (4, bad, ValueError, "nan in the gradient of row 5 of table 'emb': nothing was applied"),
            (4, ones.astype(np.float64), TypeError, "gradient has dtype float64 where float32 is needed"),
        ):
            with pytest.raises(error, match=told):
                worker.step_rows(table, values, [(0, ones), (row, gradient)])
        with pytest.raises(ValueError, match="does not fit"):
            worker.step_rows(table, values[:3], [(2, ones)])
        assert np.array_equal(values, filled(*range(10)))
        assert pulled(worker, range(10)) == [0] * 10
    with adaps.Node([adaps.Table("emb", 10, 4, optimizer=adaps.SGD(lr=1.0))], nonfinite="skip") as lonely:
        lonely.worker(0).step_rows(lonely.table("emb"), values, [(4, bad)])
        assert values[[4, 5, 6], 0].tolist() == [3, 5, 6]
        assert pulled(lonely.worker(0), [4, 5]) == [3, 5]
        assert lonely.stats()["gradients_skipped"] == 1


# Gradients that are not finite


@pytest.mark.parametrize(("bad", "told"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_a_gradient_that_is_not_finite_is_named_and_nothing_is_applied(bad: float, told: str) -> None:
    other = adaps.Table("other", 10, 3)
    with adaps.Node([other, TABLE]) as node:
        kv = node.worker(0)
        keys = node.table("emb").keys([5, 7, 5])
        gradients = filled(1, 1, 1)
        gradients[1, 3] = bad
        with pytest.raises(ValueError, match=f"^{told} in the gradient of row 7 of table 'emb': nothing was"):
            kv.push_gradients(keys, gradients)
        assert pulled(kv, keys) == [0, 0, 0]
        kv.push(keys[1:2], gradients[1:2])  # the server does not check pushed values
        assert node.stats()["gradients_skipped"] == 0


def test_rows_whose_gradient_is_not_finite_can_be_skipped_or_passed() -> None:
    other = adaps.Table("other", 10, 3, optimizer=adaps.SGD(lr=1.0))
    gradients = np.ones(3 + 4 + 3 + 4, np.float32)
    gradients[[0, 13]] = np.nan, np.inf
    keys = [4, 11, 5, 12]
    with adaps.Node([other, TABLE], nonfinite="skip") as node:
        kv = node.worker(0)
        kv.push_gradients(keys, gradients, asynchronous=True)
        kv.waitall()
        assert pulled(kv, [11, 12]) == [-0.5, 0]
        out = np.empty((2, 3), np.float32)
        kv.pull([4, 5], out)
        assert out.tolist() == [[0, 0, 0], [-1, -1, -1]]
        assert node.stats()["gradients_skipped"] == 2
    with adaps.Node([other, TABLE], nonfinite="pass") as node:
        kv = node.worker(0)
        kv.push_gradients(keys, gradients)
        kv.pull([4, 5], out)
        assert np.isnan(out[0, 0])
        assert node.stats()["gradients_skipped"] == 0


def test_a_worker_that_is_in_a_call_refuses_another_thread(node: adaps.Node, kv: adaps.Worker) -> None:
    out = filled(7, 7)
    waiting = threading.Thread(target=kv.barrier)
    waiting.start()
    calls: list[Any] = [
        lambda: kv.pull([1, 2], out),
        lambda: kv.push([1, 2], out),
        lambda: kv.push_gradients([1, 2], out),
        lambda: kv.set([1, 2], out),
        lambda: kv.intent([1], 0),
        kv.wait_sync,
        kv.waitall,
        kv.advance_clock,
    ]
    while True:  # until the thread is in its call
        try:
            kv.advance_clock()
        except adaps.AdapsError:
            break
    for call in calls:
        with pytest.raises(adaps.AdapsError, match="worker 0 is in a call of another thread: give each"):
            call()
    node.worker(1).barrier()
    waiting.join()
    assert pulled(kv, [1, 2]) == [0, 0]
    assert out[0, 0] == 7


def test_keys_that_change_during_a_call_are_refused_or_taken_as_they_were(kv: adaps.Worker) -> None:
    good = np.arange(200_000, dtype=np.int64) % 100
    keys, bad = good.copy(), np.full_like(good, 2**39)
    out = np.empty((len(keys), 4), dtype=np.float32)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            keys[:] = bad
            keys[:] = good

    changing = threading.Thread(target=change)
    changing.start()
    said = []
    try:
        for _ in range(300):
            try:
                kv.pull(keys, out)
            except IndexError as error:
                said.append(str(error))
    finally:
        stop.set()
        changing.join()
    assert set(said) == {"key 549755813888 is not in [0, 100)"}


@pytest.mark.parametrize("clock", [2**62 + 1, 2**63 - 1])
def test_clocks_beyond_all_reason_are_refused(kv: adaps.Worker, clock: int) -> None:
    with pytest.raises(ValueError, match=f"an intent for clock {clock}; clocks go to"):
        kv.intent([1], clock)
    with pytest.raises(ValueError, match=f"clock {clock} is too late; clocks go to"):
        kv.skip_to_clock(clock)
    kv.intent([1], -(2**63), 2**63 - 1)
    kv.advance_clock()
    assert kv.current_clock == 1


def test_an_asynchronous_call_pins_the_storage_of_its_tensor(kv: adaps.Worker) -> None:
    out = torch.empty(1, 4)
    kv.pull([1], out, asynchronous=True)
    kv.waitall()
    with pytest.raises(RuntimeError, match="not resizable"):
        out.untyped_storage().resize_(0)
