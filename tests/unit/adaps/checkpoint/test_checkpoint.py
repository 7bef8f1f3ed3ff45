"""Checkpoints of a cluster of one node: their content, restoring, and refusals."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import adaps
from adaps import checkpoint
from adaps.checkpoint import table_files
from tests.checkpoint_files import checksum, content, manifest, manifest_path
from tests.unit.checkpoints import LENGTH, OPTIMIZERS, ROWS, table, train, values

# Content and restoring


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: str(optimizer).partition("(")[0])
def test_training_goes_on_as_if_it_had_not_been_interrupted(tmp_path: Path, optimizer: Any) -> None:
    with adaps.Node([table(optimizer)]) as node:
        train(node, 0, 5)
        node.checkpoint(tmp_path)
        train(node, 5, 5)
        expected = values(node)
    with adaps.Node([table(optimizer)]) as node:
        node.restore(tmp_path)
        assert node.worker(0).current_clock == 5
        train(node, 5, 5)
        assert np.array_equal(values(node), expected)


def test_rows_in_files_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    limited = table(memory="500B", path=tmp_path)
    with adaps.Node([table()]) as node:
        train(node, 0, 10)
        expected = values(node)
    with adaps.Node([limited]) as node:
        train(node, 0, 5)
        assert node.stats()["rows_stored"] > 0
        node.checkpoint(tmp_path / "saved")
        train(node, 5, 3)
        node.restore(tmp_path / "saved")
        train(node, 5, 5)
        assert np.array_equal(values(node), expected)
    with adaps.Node([limited]) as node:
        node.restore(tmp_path / "saved")
        train(node, 5, 5)
        assert np.array_equal(values(node), expected)


@pytest.mark.parametrize("optimizer", [adaps.SGD(lr=0.1, momentum=0.9), adaps.AdamW(lr=0.1)], ids=str)
def test_rows_in_files_are_restored_with_numbered_steps(tmp_path: Path, optimizer: Any) -> None:
    with adaps.Node([table(optimizer, memory="500B", path=tmp_path)]) as node:
        node.table("emb").set_step(3, idle_rows=False)
        train(node, 0, 5)
        node.checkpoint(tmp_path / "saved")
        expected = values(node)
        train(node, 5, 3)
        node.restore(tmp_path / "saved")
        assert np.array_equal(values(node), expected)
        assert node.table("emb").step == 3


def test_the_files_are_safetensors_with_the_touched_rows_only(saved: Path) -> None:
    found = content(saved, "emb")
    assert found.rows.tolist() == list(range(ROWS // 2))
    assert (found.values.shape, found.state.shape) == ((20, 3), (20, 3))
    with adaps.Node([table()]) as node:
        train(node, 0, 4)
        assert np.array_equal(found.values, values(node)[: ROWS // 2])
    squares = sum(
        np.random.default_rng(step).standard_normal((20, 3)).astype(np.float32) ** 2 for step in range(4)
    )
    assert np.allclose(found.state, squares, rtol=1e-6)


def test_large_tables_are_written_and_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "CHUNK_BYTES", 7 * 32)  # seven rows of 8 + 12 + 12 bytes
    with adaps.Node([table()]) as node:
        train(node, 0, 3)
        node.checkpoint(tmp_path)
        expected = values(node)
    with adaps.Node([table()]) as node:
        node.restore(tmp_path)
        assert np.array_equal(values(node), expected)


def test_a_restore_overwrites_what_came_since(saved: Path) -> None:
    with adaps.Node([table()]) as node:
        untouched = values(node)
    with adaps.Node([table()]) as node:
        train(node, 0, 4)
        expected = values(node)
        train(node, 4, 3, rows=ROWS)  # including rows that the checkpoint lacks
        node.restore(saved)
        assert np.array_equal(values(node), expected)
        assert np.array_equal(values(node)[20:], untouched[20:])
        node.checkpoint(saved)
    assert not content(saved, "emb").state[20:].any()


def test_learning_rates_and_steps_come_back(tmp_path: Path) -> None:
    with adaps.Node([table(adaps.Adam(lr=0.5))]) as node:
        node.table("emb").set_learning_rate(0.25)
        node.table("emb").set_step(17)
        node.checkpoint(tmp_path)
    with adaps.Node([table(adaps.Adam(lr=0.75))]) as node:  # the rate may differ
        node.restore(tmp_path)
        assert node.table("emb").learning_rate == 0.25
        assert node.table("emb").step == 17


def test_rows_catch_up_with_steps_of_other_learning_rates_before_they_are_saved(tmp_path: Path) -> None:
    decaying = adaps.SGD(weight_decay=0.5)
    with adaps.Node([table(decaying)]) as node:
        train(node, 0, 1)
        for step in 1, 2, 3:
            node.table("emb").set_learning_rate(1 / step)
            node.table("emb").set_step(step)
        node.checkpoint(tmp_path)
        node.table("emb").catch_up()
        expected = values(node)
    with adaps.Node([table(decaying)]) as node:
        node.restore(tmp_path)
        node.table("emb").catch_up()
        np.testing.assert_allclose(values(node), expected, rtol=1e-6)


def test_settings_that_are_numbers_of_numpy_or_torch_are_saved_like_numbers(tmp_path: Path) -> None:
    loose: Any = adaps
    rule = loose.Adam(lr=torch.tensor(0.5), eps=np.float32(0.5))
    init = loose.Uniform(np.float32(-1.0), 1.0, seed=np.uint64(2**64 - 1))
    with adaps.Node([table(rule, init=init)]) as node:
        train(node, 0, 1)
        node.checkpoint(tmp_path)
        expected = values(node)
    same = adaps.Uniform(-1.0, 1.0, seed=2**64 - 1)
    with adaps.Node([table(adaps.Adam(lr=0.5, eps=0.5), init=same)]) as node:
        node.restore(tmp_path)
        assert np.array_equal(values(node), expected)


def test_a_worker_gets_back_what_it_gave(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "generator": np.arange(7, dtype=np.uint8),
        "empty": np.empty((0, 3), np.float32),
        "matrix": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "flags": np.array([True, False]),
        "epoch": 3,
        "name": "ctr — ½",
        "nested": {"rates": [0.1, 0.2], "none": None},
    }
    with adaps.Node([table()]) as node:
        node.checkpoint(tmp_path, extra=given)
        restored = node.restore(tmp_path)
    assert restored.same_workers
    assert restored.shares == 1
    assert restored.extra.keys() == given.keys()
    for name, value in given.items():
        assert np.array_equal(restored.extra[name], value)
        assert type(restored.extra[name]) is type(value)


@pytest.mark.parametrize("value", [object(), float("nan"), np.array(["text"]), np.array([1 + 2j])])
def test_what_no_format_holds_is_refused_by_name(tmp_path: Path, value: Any) -> None:
    with adaps.Node([table()]) as node, pytest.raises(TypeError, match=r"extra\['odd'\] is a"):
        node.checkpoint(tmp_path, extra={"odd": value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({5: 1}, "extra is {5: 1}; it must be a mapping of strings to values"),
        ([1], r"extra is \[1\]; it must be a mapping of strings to values"),
        ({"header": np.zeros(1)}, r"extra\['header'\] has a name that the format uses"),
    ],
)
def test_names_that_no_format_holds_are_refused(tmp_path: Path, extra: Any, said: str) -> None:
    with adaps.Node([table()]) as node, pytest.raises(TypeError, match=said):
        node.checkpoint(tmp_path, extra=extra)


def test_the_next_checkpoint_takes_the_place_of_the_last(saved: Path) -> None:
    with adaps.Node([table()]) as node:
        node.restore(saved)
        for step in range(3):
            train(node, 4 + step, 1)
            node.checkpoint(saved)
        expected = values(node)
    assert len(list(saved.iterdir())) == 3
    assert (saved / manifest(saved)["folder"]).is_dir()
    assert (saved / "writer.lock").exists()
    assert manifest(saved)["sequence"] == 4
    assert np.array_equal(content(saved, "emb").values, expected[:20])


def test_every_worker_takes_part_and_gets_its_own(tmp_path: Path) -> None:
    def on_threads(work: Callable[[adaps.Node, int], Any]) -> list[Any]:
        with adaps.Node([table()], workers=3) as node, ThreadPoolExecutor(3) as threads:
            return list(threads.map(partial(work, node), range(3)))

    def write(node: adaps.Node, worker: int) -> None:
        kv = node.worker(worker)
        for _ in range(worker):
            kv.advance_clock()
        kv.push(np.arange(ROWS), np.full((ROWS, LENGTH), 2.0**worker, np.float32))
        node.checkpoint(tmp_path, worker=worker, extra={"worker": worker})
        kv.push(np.arange(ROWS), np.full((ROWS, LENGTH), 100, np.float32))

    def read(node: adaps.Node, worker: int) -> tuple[Any, int, float]:
        restored = node.restore(tmp_path, worker=worker)
        out = np.empty((1, LENGTH), np.float32)
        node.worker(worker).pull([7], out)
        return restored.extra["worker"], node.worker(worker).current_clock, float(out[0, 0])

    with adaps.Node([table()]) as node:
        start = float(values(node)[7, 0])
    on_threads(write)
    expected = float(np.float32(start) + np.float32(7))
    for worker, result in enumerate(on_threads(read)):
        assert result == (worker, worker, pytest.approx(expected, abs=1e-6))
    with adaps.Node([table()]) as node:  # another number of workers
        restored = node.restore(tmp_path)
        assert (restored.extra, restored.same_workers, restored.shares) == ({"worker": 0}, False, 3)
        assert node.worker(0).current_clock == 2


def test_a_directory_of_version_1_is_read_and_goes_on_as_version_2(saved: Path) -> None:
    body = manifest(saved)
    manifest_path(saved).unlink()
    (saved / "writer.lock").unlink()
    old = {"format": "adaps checkpoint, version 1", "crc32": checksum(body), "checkpoint": body}
    (saved / "manifest.json").write_text(json.dumps(old, indent=1))
    assert checkpoint.exists(saved)
    with adaps.Node([table()]) as node:
        train(node, 0, 4)
        expected = values(node)
    with adaps.Node([table()]) as node:
        assert node.restore(saved).extra == {"step": 4}
        assert np.array_equal(values(node), expected)
        node.checkpoint(saved)
    assert manifest(saved)["sequence"] == 2
    assert not (saved / "manifest.json").exists()
    assert len(list(saved.iterdir())) == 3


def test_whether_there_is_a_checkpoint_can_be_asked(saved: Path, tmp_path: Path) -> None:
    assert checkpoint.exists(saved)
    assert not checkpoint.exists(str(tmp_path / "nothing"))
    (tmp_path / "empty").mkdir()
    assert not checkpoint.exists(tmp_path / "empty")


# Refusals


def test_without_a_checkpoint_the_sentence_says_so(tmp_path: Path) -> None:
    with adaps.Node([table()]) as node, pytest.raises(adaps.CheckpointError) as refusal:
        node.restore(tmp_path / "nothing")
    assert str(refusal.value) == (
        f"{tmp_path / 'nothing'} holds no complete checkpoint, because it has no manifest: give a directory "
        "to which `checkpoint` has written; `adaps.checkpoint.exists` tests for one"
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "emp"}, "has the table 'emb', which this node does not have"),
        ({"rows": ROWS + 1}, "has rows 40 in the checkpoint, but 41 on this node"),
        ({"length": 4}, "has length 3 in the checkpoint, but 4 on this node"),
        ({"optimizer": adaps.Adam()}, r"has optimizer Adagrad\(.*\) in the checkpoint, but Adam\("),
        ({"optimizer": adaps.Adagrad(eps=1e-3)}, r"eps=1e-10.*\) in the checkpoint, but .*eps=0.001"),
        ({"init": adaps.Uniform(-1, 1, seed=6)}, r"has init Uniform\(.*seed=5\) .*, but .*seed=6\)"),
    ],
)
def test_tables_that_differ_are_named(saved: Path, changes: Any, sentence: str) -> None:
    with adaps.Node([table(**changes)]) as node:
        train_rows = np.arange(5)
        before = np.empty((5, node.table(changes.get("name", "emb")).length), np.float32)
        node.worker(0).pull(train_rows, before)
        remedy = ": restore into a node with the tables and optimizers that the checkpoint has$"
        with pytest.raises(
            adaps.CheckpointError, match=f"^{saved}/manifest-00000002.json.*{sentence}.*{remedy}"
        ):
            node.restore(saved)
        after = np.empty_like(before)
        node.worker(0).pull(train_rows, after)
        assert np.array_equal(before, after)


def test_a_table_more_is_named(saved: Path) -> None:
    with (
        adaps.Node([table(), table(name="more")]) as node,
        pytest.raises(adaps.CheckpointError, match="has no table 'more', only 'emb': restore into"),
    ):
        node.restore(saved)


def test_another_initializer_does_not_matter_where_every_row_was_written(tmp_path: Path) -> None:
    with adaps.Node([table()]) as node:
        expected = values(node)
        node.checkpoint(tmp_path)
    with adaps.Node([table(init=adaps.Constant(3))]) as node:
        node.restore(tmp_path)
        assert np.array_equal(values(node), expected)
