"""Tables, optimizers, initial values, and error messages for a node's arguments."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import adaps
from adaps.node_options import checked_settings

TABLE = adaps.Table("emb", 10, 4)
loose: Any = adaps  # for arguments of wrong types, given on purpose


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: loose.Table("", 10, 4), ValueError, "table name ''"),
        (lambda: loose.Table("t", 0, 4), ValueError, "rows of table 't' is 0"),
        (lambda: loose.Table("t", -1, 4), ValueError, "rows of table 't' is -1"),
        (lambda: loose.Table("t", 10, 0), ValueError, "length of table 't' is 0"),
        (lambda: loose.Table("t", 1.5, 4), TypeError, r"rows of table 't' is 1\.5"),
        (lambda: loose.Table("t", True, 4), ValueError, "rows of table 't' is True"),
        (lambda: loose.Table("t", 1, 4, optimizer="sgd"), TypeError, "optimizer of table 't' is 'sgd'"),
        (lambda: loose.Table("t", 1, 4, init=0.0), TypeError, r"init of table 't' is 0\.0"),
        (
            lambda: loose.Table("t", 1, 4, dtype="float16"),
            ValueError,
            "dtype of table 't': 'float16' does not exist .did you mean 'bfloat16'.*; "
            "valid are float32, bfloat16",
        ),
        (lambda: loose.Table("t", 9, 4, memory="1GB", path="."), ValueError, 'text such as "2GiB" with a'),
        (lambda: loose.Table("t", 9, 4, memory=0, path="."), ValueError, "memory of table 't' is 0"),
        (lambda: loose.Table("t", 9, 4, memory=36, path="."), ValueError, "one of its rows takes 37 bytes"),
        (lambda: loose.Table("t", 9, 4, memory=99), ValueError, "has memory and no path; give both"),
        (lambda: loose.Table("t", 9, 4, path="."), ValueError, "has path and no memory; give both"),
        (
            lambda: loose.Node([loose.Table("t", 9, 4, memory=99, path="/missing")]),
            ValueError,
            "table 't': cannot create a file for rows in the folder '/missing'",
        ),
        (lambda: loose.SGD(lr=math.nan), ValueError, "lr is nan; it must be finite"),
        (lambda: loose.SGD(lr=math.inf), ValueError, "lr is inf; it must be finite"),
        (lambda: loose.SGD(lr=-0.1), ValueError, r"lr is -0\.1; it must be at least 0"),
        (lambda: loose.SGD(lr="fast"), TypeError, "lr is 'fast'; it must be a number"),
        (lambda: loose.SGD(momentum=-1), ValueError, "momentum is -1"),
        (lambda: loose.Adagrad(eps=-1), ValueError, "eps is -1"),
        (lambda: loose.RowAdagrad(initial_accumulator=-1), ValueError, "initial_accumulator is -1"),
        (lambda: loose.Adam(betas=(0.9, 1.0)), ValueError, r"betas\[1\] is 1\.0; it must be less than 1"),
        (
            lambda: loose.Adam(betas=(0.99999999999, 0.9)),
            ValueError,
            r"betas\[0\] is .*; it must be less than 1",
        ),
        (lambda: loose.Adam(betas=(0.9,)), ValueError, "it must be two numbers"),
        (lambda: loose.Adam(betas=None), ValueError, "betas is None; it must be two numbers"),
        (lambda: loose.SGD(lr=1e39), ValueError, r"lr is 1e\+39; it must be less than 3\.4"),
        (lambda: loose.Constant(-1e39), ValueError, r"value is -1e\+39; it must be at least -3\.4"),
        (lambda: loose.Uniform(-3e38, 3e38), ValueError, r"high - low is 6e\+38; it must be less than"),
        (lambda: loose.Uniform(1.0, -1.0), ValueError, r"high is -1\.0; it must be at least 1"),
        (lambda: loose.Uniform(0.0, 1.0, seed=-1), ValueError, "seed is -1"),
        (lambda: loose.Normal(0.0, -1.0), ValueError, r"std is -1\.0"),
        (lambda: loose.Constant(math.nan), ValueError, "value is nan"),
        (lambda: loose.Node([]), ValueError, "at least one table"),
        (lambda: loose.Node([TABLE, TABLE]), ValueError, "two tables are called 'emb'"),
        (lambda: loose.Node(["emb"]), TypeError, "must be a sequence of adaps.Table"),
        (lambda: loose.Node([TABLE], workers=0), ValueError, "workers is 0"),
        (lambda: loose.Node([TABLE], worker=1), TypeError, "no option 'worker' .did you mean 'workers'"),
        (lambda: loose.Node([TABLE], channels=-1), ValueError, "channels is -1"),
        (lambda: loose.Node([TABLE], timing="no"), TypeError, "timing is 'no'; it must be True or False"),
        (lambda: loose.Node([TABLE], max_rounds_per_second=0), ValueError, "max_rounds_per_second is 0"),
        (lambda: loose.Node([TABLE], nonfinite="ignore"), ValueError, "valid are raise, skip, pass"),
        (lambda: loose.Node([TABLE], peer_timeout=0), ValueError, "peer_timeout is 0"),
        (lambda: loose.Node([TABLE], connect_timeout=math.nan), ValueError, "connect_timeout is nan"),
        (lambda: loose.Node([TABLE], network="fiber"), ValueError, "fiber"),
        (
            lambda: loose.Table("t", 1, 2**62),
            ValueError,
            r"length of table 't' is 4611\d+; it must be at most",
        ),
        (
            lambda: loose.Table("t", 1, 2**80),
            ValueError,
            r"length of table 't' is 1208\d+; it must be at most",
        ),
        (lambda: loose.Table("t", 2**62, 1), ValueError, r"rows of table 't' is 4611\d+; it must be at most"),
        (lambda: loose.Table("t", 2**64, 1), ValueError, r"rows of table 't' is 1844\d+; it must be at most"),
        (lambda: loose.Table("t", 1, 2**24), ValueError, "it must be at most 16777200"),
        (
            lambda: loose.Table("t", 1, 2**23, optimizer=loose.Adagrad()),
            ValueError,
            "rows of 16777216 floats with their optimizer's state; a row must fit into one message",
        ),
        (lambda: loose.Node([TABLE], workers=2**31), ValueError, "workers is 2147483648; it must be at most"),
        (
            lambda: loose.Node([TABLE], channels=2**31),
            ValueError,
            "channels is 2147483648; it must be at most",
        ),
        (lambda: loose.Node([TABLE], max_queued_bytes=0), ValueError, "max_queued_bytes is 0"),
        (lambda: loose.Node([TABLE], max_unsent_bytes=0), ValueError, "max_unsent_bytes is 0"),
        (
            lambda: loose.Node([TABLE], frame_mac="no"),
            TypeError,
            "frame_mac is 'no'; it must be True or False",
        ),
        (lambda: loose.Node([TABLE], network="fast"), ValueError, "is not a link: use .* or ADAPS_NETWORK"),
        (lambda: loose.Node([TABLE], listen="host:port"), ValueError, "listen is 'host:port'"),
        (lambda: loose.Node([TABLE], agreement={"v": 1}), TypeError, "agreement is {'v': 1}; it must be"),
    ],
)
def test_a_bad_argument_is_named(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_technique_with_a_typo_gets_the_list_and_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'replication'") as caught:
        adaps.Node([TABLE], techniques="replicaton")  # type: ignore[arg-type]
    for technique in adaps.TECHNIQUES:
        assert technique in str(caught.value)


@pytest.mark.parametrize("technique", adaps.TECHNIQUES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_technique_and_any_number_of_channels_work(technique: Any, channels: int) -> None:
    with adaps.Node([TABLE], techniques=technique, channels=channels, timing=False) as node:
        kv = node.worker(0)
        keys = np.arange(10)
        kv.intent(keys, 0, 5)
        kv.push(keys, np.ones((10, 4), dtype=np.float32))
        kv.wait_sync()
        out = np.empty((10, 4), dtype=np.float32)
        kv.pull(keys, out)
        np.testing.assert_array_equal(out, 1)


@pytest.mark.parametrize(("workers", "channels"), [(1, 1), (7, 1), (8, 2), (9, 2), (4096, 1024)])
def test_a_quarter_of_the_workers_is_the_default_number_of_channels(workers: int, channels: int) -> None:
    assert checked_settings({"workers": workers}).channels == channels
    assert checked_settings({"workers": workers, "channels": None}).channels == channels
    assert checked_settings({"workers": workers, "channels": 3}).channels == 3


@pytest.mark.parametrize(
    ("busy", "seconds", "channels", "message"),
    [
        (
            17.0,
            10.0,
            2,
            "the 2 channels were busy for 85% of the 10 s of node 0, so its workers may have waited for "
            "rows. Give all nodes channels=4, if they have free cores",
        ),
        (9.0, 10.0, 1, "the channel was busy for 90% of the 10 s of node 0, so its workers may have waited"),
        (7.9, 10.0, 1, None),
        (0.9, 0.9, 1, None),
    ],
)
def test_busy_channels_are_logged_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    busy: float,
    seconds: float,
    channels: int,
    message: str | None,
) -> None:
    node = adaps.Node([TABLE], channels=channels)
    counters = {**node.stats(), "channel_micros": 1e6 * busy}
    monkeypatch.setattr(node, "stats", lambda: counters)
    began = node._opened
    monkeypatch.setattr("adaps.node.time.monotonic", lambda: began + seconds)
    node.close()
    node.close()
    assert [record.getMessage()[: len(message or "")] for record in caplog.records] == [message] * bool(
        message
    )


def test_time_of_channels_is_counted_and_kept_after_the_end() -> None:
    node = adaps.Node([TABLE], channels=2)
    first = node.stats()["channel_micros"]
    kv = node.worker(0)
    for clock in range(100):
        kv.intent([clock % 10], clock, clock + 1)
        kv.advance_clock()
    kv.wait_sync()
    running = node.stats()["channel_micros"]
    node.close()
    assert 0 <= first < running <= node.stats()["channel_micros"]


def test_an_unknown_table_or_worker_is_named_with_the_nearest() -> None:
    with adaps.Node([TABLE, adaps.Table("wide", 3, 1)], workers=2) as node:
        with pytest.raises(KeyError, match=r"no table 'widee'.*did you mean 'wide'.*there are emb, wide"):
            node.table("widee")
        with pytest.raises(IndexError, match="worker 2 does not exist: this node has 2"):
            node.worker(2)
        with pytest.raises(IndexError, match="worker -1"):
            node.worker(-1)


def test_tables_follow_each_other_and_translate_row_ids() -> None:
    with adaps.Node([TABLE, adaps.Table("wide", 3, 1)]) as node:
        emb, wide = node.tables
        assert (emb.name, emb.first_key, emb.rows, emb.length) == ("emb", 0, 10, 4)
        assert (wide.name, wide.first_key, wide.rows, wide.length) == ("wide", 10, 3, 1)
        assert (node.num_keys, node.rank, node.world_size) == (13, 0, 1)

        from_torch = wide.keys(torch.tensor([[0, 2], [1, 1]]))
        assert isinstance(from_torch, torch.Tensor)
        assert from_torch.tolist() == [[10, 12], [11, 11]]
        from_numpy = wide.keys(np.array([2, 0]))
        assert isinstance(from_numpy, np.ndarray)
        assert from_numpy.tolist() == [12, 10]
        assert wide.keys([1]).tolist() == [11]
        for bad in (3, -1):
            with pytest.raises(
                IndexError, match=f"row {bad} does not exist in table 'wide': rows are 0 to 2"
            ):
                wide.keys([0, bad])


def test_the_learning_rate_can_be_changed() -> None:
    with adaps.Node([adaps.Table("emb", 10, 4, optimizer=adaps.SGD(lr=0.5))]) as node:
        table, kv = node.table("emb"), node.worker(0)
        assert table.learning_rate == 0.5
        table.set_learning_rate(2.0)
        kv.push_gradients([1], np.ones(4, dtype=np.float32))
        out = np.empty(4, dtype=np.float32)
        kv.pull([1], out)
        np.testing.assert_array_equal(out, -2)
        for bad in (math.nan, math.inf, 1e39, -1.0):
            with pytest.raises(ValueError, match="it must be finite in float32 and not negative"):
                table.set_learning_rate(bad)
        assert table.learning_rate == 2.0


def values_of(init: Any, rows: int = 2000) -> np.ndarray[Any, np.dtype[np.float32]]:
    with adaps.Node([adaps.Table("emb", rows, 8, init=init)]) as node:
        out = np.empty((rows, 8), dtype=np.float32)
        node.worker(0).pull(np.arange(rows), out)
        return out


def test_initial_values_follow_their_distribution_and_seed() -> None:
    np.testing.assert_array_equal(values_of(adaps.Constant(0.25)), 0.25)
    uniform = values_of(adaps.Uniform(-0.5, 1.5, seed=1))
    assert uniform.min() >= -0.5
    assert uniform.max() <= 1.5
    # Standard errors of 16,000 draws: 0.0046 of the mean, 0.5 % of the deviation; six of them.
    assert uniform.mean() == pytest.approx(0.5, abs=0.03)
    assert uniform.std() == pytest.approx(2 / math.sqrt(12), rel=0.03)
    normal = values_of(adaps.Normal(1.0, 0.1, seed=2))
    assert normal.mean() == pytest.approx(1.0, abs=0.005)
    assert normal.std() == pytest.approx(0.1, rel=0.04)
    np.testing.assert_array_equal(uniform, values_of(adaps.Uniform(-0.5, 1.5, seed=1)))
    assert (uniform != values_of(adaps.Uniform(-0.5, 1.5, seed=2))).mean() > 0.99


TORCH_OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "eps": 1e-3, "initial_accumulator": 0.5}),
    ("Adam", {"lr": 0.1, "betas": (0.5, 0.6), "eps": 1e-3}),
    ("SparseAdam", {"lr": 0.1}),
    ("SparseAdam", {"lr": 0.1, "betas": (0.5, 0.6), "eps": 1e-3}),
]


@pytest.mark.parametrize(("name", "options"), TORCH_OPTIMIZERS)
def test_gradients_are_applied_as_torch_does(name: str, options: dict[str, Any]) -> None:
    ours = getattr(adaps, name)(**options)
    torchs = {key.replace("accumulator", "accumulator_value"): value for key, value in options.items()}
    rows = torch.arange(5)
    parameter = torch.nn.Parameter(torch.full((5, 4), 0.25))
    optimizer = getattr(torch.optim, name)([parameter], **torchs)
    generator = torch.Generator().manual_seed(0)
    with adaps.Node([adaps.Table("emb", 5, 4, optimizer=ours, init=adaps.Constant(0.25))]) as node:
        kv = node.worker(0)
        for _ in range(10):
            gradients = torch.randn(5, 4, generator=generator)
            sparse = isinstance(optimizer, torch.optim.SparseAdam)
            parameter.grad = (
                torch.sparse_coo_tensor(
                    rows[None], gradients, (5, 4), is_coalesced=True, check_invariants=False
                )
                if sparse
                else gradients
            )
            optimizer.step()
            kv.push_gradients(rows, gradients)
        out = torch.empty(5, 4)
        kv.pull(rows, out)
    torch.testing.assert_close(out, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_adam_counts_the_gradients_of_a_row_until_it_is_told_the_step() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, 1))
    optimizer = torch.optim.SparseAdam([parameter], lr=0.1)
    with adaps.Node([adaps.Table("emb", 2, 1, optimizer=adaps.SparseAdam(lr=0.1))]) as node:
        kv = node.worker(0)
        told = torch.empty(2, 1)
        for step, row in enumerate([0, 0, 0, 1, 0], start=1):
            parameter.grad = torch.sparse_coo_tensor(
                torch.tensor([[row]]),
                torch.tensor([[float(step)]]),
                (2, 1),
                is_coalesced=True,
                check_invariants=False,
            )
            optimizer.step()
            node.table("emb").set_step(step if step > 2 else 0)  # row 0 counts the first two itself
            kv.push_gradients([row], np.array([step], dtype=np.float32))
        kv.pull([0, 1], told)
    torch.testing.assert_close(told, parameter.detach(), rtol=1e-5, atol=1e-7)
    assert abs(told[1, 0] + 0.1) > 0.01  # the result of a first step


def sgd_on_three_rows(steps: int, told: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """One row per step has a gradient, and the learning rate falls: our rows, torch's."""
    parameter = torch.nn.Parameter(torch.zeros(3, 2))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    table = adaps.Table("emb", 3, 2, optimizer=adaps.SGD(lr=0.1, momentum=0.9), init=adaps.Constant(0.0))
    rows = torch.empty(3, 2)
    with adaps.Node([table]) as node:
        kv, placed = node.worker(0), node.table("emb")
        for step in range(1, steps + 1):
            gradient = torch.randn(2, generator=generator)
            row = 0 if step % 20 else 1
            parameter.grad = torch.zeros(3, 2)
            parameter.grad[row] = gradient
            optimizer.param_groups[0]["lr"] = 0.1 / step**0.5
            optimizer.step()
            placed.set_learning_rate(0.1 / step**0.5)
            if told:
                placed.set_step(step)
            kv.push_gradients([row], gradient)
        placed.catch_up([1])
        placed.catch_up()
        kv.pull([0, 1, 2], rows)
    return rows, parameter.detach()


def test_with_numbered_steps_momentum_goes_on_moving_rows_without_a_gradient_as_torch_does() -> None:
    ours, torchs = sgd_on_three_rows(190, told=True)
    torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-6)
    lazy, _ = sgd_on_three_rows(190, told=False)
    assert (lazy[1] - torchs[1]).abs().max() > 0.01


def test_keys_of_another_table_cannot_be_caught_up() -> None:
    tables = [adaps.Table(name, 3, 2, optimizer=adaps.SGD(momentum=0.9)) for name in ("a", "b")]
    with adaps.Node(tables) as node, pytest.raises(IndexError, match="key 3 does not belong to table 'a'"):
        node.table("a").catch_up([2, 3])


def test_row_adagrad_divides_by_the_root_of_the_summed_mean_squares() -> None:
    with adaps.Node([adaps.Table("emb", 1, 2, optimizer=adaps.RowAdagrad(lr=1.0, eps=0.0))]) as node:
        kv = node.worker(0)
        gradient = np.array([3.0, 4.0], dtype=np.float32)
        for _ in range(2):
            kv.push_gradients([0], gradient)
        out = np.empty(2, dtype=np.float32)
        kv.pull([0], out)
    mean_square = (9 + 16) / 2
    expected = -gradient * (1 / math.sqrt(mean_square) + 1 / math.sqrt(2 * mean_square))
    np.testing.assert_allclose(out, expected, rtol=1e-6)
