import errno
import os
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adabench.results.checksum import seal
from adabench.results.record import Budget, RecordError, Run, Seconds, Session, sum_counters
from adabench.results.store import (
    LARGEST_FILE,
    SessionStore,
    find_run,
    find_session,
    list_sessions,
    read_runs,
    readable_sessions,
    write_atomically,
)
from tests.records import make_run, make_session


def a_run(run_id: str = "r1", **changes: object) -> Run:
    run = make_run(
        "manual",
        0,
        run_id=run_id,
        cell="c",
        params={"dim": 16},
        nodes=2,
        data="sha256:0",
        started_at="2026-01-01T00:00:00+00:00",
        seconds=Seconds(total=1.5),
    )
    return msgspec.structs.replace(run, **changes)


def a_session(name: str) -> Session:
    return make_session(name, study={}, study_id="0")


def test_a_line_has_every_name_of_the_schema_even_when_empty() -> None:
    line = msgspec.json.decode(msgspec.json.encode(a_run()))
    names = {
        *(
            "schema",
            "run_id",
            "session",
            "cell",
            "usecase",
            "backend",
            "params",
            "nodes",
            "workers",
            "network",
        ),
        *("data", "block", "position", "seed", "phase", "attempt", "status", "failed_phase", "reason"),
        *("exit_code", "signal", "started_at", "seconds", "epoch_seconds", "samples", "metrics", "history"),
        *("target_met", "counters", "cpu_seconds", "peak_rss_mib", "noise"),
    }
    assert names <= set(line)
    assert set(line["seconds"]) == {"setup", "train", "eval", "teardown", "total"}


@given(cut=st.integers(min_value=0, max_value=2000))
def test_a_crash_at_any_byte_loses_at_most_the_run_that_was_being_written(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    store = SessionStore(tmp_path_factory.mktemp("session"))
    for number in range(3):
        store.append(a_run(f"r{number}"))
    whole = store.runs_file.read_bytes()
    cut = min(cut, len(whole))
    os.truncate(store.runs_file, cut)
    complete = whole[:cut].count(b"\n")
    assert [run.run_id for run in store.runs()] == [f"r{number}" for number in range(complete)]
    store.append(a_run("next"))
    assert [run.run_id for run in store.runs()] == [*(f"r{number}" for number in range(complete)), "next"]


def test_a_damaged_line_is_named_and_hides_no_intact_run(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.append(a_run("first"))
    with store.runs_file.open("ab") as file:
        file.write(b'{"schema": 1}\n')
    store.append(a_run("third"))
    said: list[str] = []
    assert [run.run_id for run in store.runs(said.append)] == ["first", "third"]
    (sentence,) = said
    assert "runs.jsonl, line 2, is not a run's record: " in sentence
    assert sentence.endswith("the line is passed over")


def test_without_an_intact_line_there_are_no_runs(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.runs_file.write_bytes(b'{"schema": 1}\n')
    with pytest.raises(RecordError, match=r"runs\.jsonl, line 1, is not a run's record: .*missing"):
        store.runs()


def test_a_repeated_record_is_one_run_and_is_named(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    for run_id in ("a", "b", "a"):
        store.append(a_run(run_id))
    said: list[str] = []
    assert [run.run_id for run in store.runs(said.append)] == ["a", "b"]
    assert said == [f"{store.runs_file}, line 3, repeats run a: the run counts once"]


def test_a_file_of_many_damaged_lines_is_told_in_few_sentences(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.append(a_run())
    with store.runs_file.open("ab") as file:
        file.write(1000 * b"[]\n")
    said: list[str] = []
    assert len(store.runs(said.append)) == 1
    assert said[5:] == [f"{store.runs_file}: 995 more lines are passed over"]


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.jsonl.xz"])
def test_a_pipe_in_place_of_a_record_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(RecordError, match="it is not a regular file"):
        SessionStore(tmp_path).runs()


def test_a_record_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.runs_file.touch()
    os.truncate(store.runs_file, LARGEST_FILE + 1)
    with pytest.raises(RecordError, match="it holds more than 1024 MiB"):
        store.runs()


def test_a_name_that_is_too_long_is_no_session(tmp_path: Path) -> None:
    SessionStore(tmp_path / "s").create(a_session("s"))
    with pytest.raises(RecordError, match="there is no session 'nnn"):
        find_session(tmp_path, 5000 * "n")
    with pytest.raises(RecordError, match=r"the results folder nnn.* cannot be read"):
        list_sessions(Path(5000 * "n"))


def test_a_changed_digit_is_found(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.create(a_session("s"))
    store.append(a_run(metrics={"auc": 0.7412}))
    store.append(a_run("r2"))
    assert [run.metrics for run in store.runs()] == [{"auc": 0.7412}, {}]
    kept = store.runs_file.read_bytes()
    for before, after in ((b"0.7412", b"0.7512"), (b'"schema":2', b'"schema":1'), (b'"r1"', b'"r9"')):
        assert before in kept
        store.runs_file.write_bytes(kept.replace(before, after, 1))
        said: list[str] = []
        assert [run.run_id for run in store.runs(said.append)] == ["r2"]
        (sentence,) = said
        assert "runs.jsonl, line 1, was changed after it was written: its checksum" in sentence
    session = store.session_file.read_bytes()
    store.session_file.write_bytes(session.replace(b'"seed": 1', b'"seed": 2'))
    with pytest.raises(RecordError, match=r"session\.json was changed after it was written"):
        store.session()


@given(place=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_no_changed_byte_gives_another_record(
    tmp_path_factory: pytest.TempPathFactory, place: int, flip: int
) -> None:
    store = SessionStore(tmp_path_factory.mktemp("session"))
    store.append(a_run(metrics={"auc": 0.7412}))
    content = bytearray(store.runs_file.read_bytes())
    content[place % len(content)] ^= flip
    store.runs_file.write_bytes(content)
    try:
        runs = store.runs()
    except RecordError:
        return
    # The changed byte was the end of the line.
    assert runs in ([a_run(metrics={"auc": 0.7412})], [])


def test_records_of_before_there_were_checksums_are_read(tmp_path: Path) -> None:
    old = msgspec.json.encode(a_run(schema=1))
    (tmp_path / "runs.jsonl").write_bytes(old + b"\n")
    (tmp_path / "session.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(a_session("s"), schema=1))
    )
    store = SessionStore(tmp_path)
    assert store.runs() == [a_run(schema=1)]
    assert store.session().session == "s"
    store.append(a_run("next"))
    assert [run.schema for run in store.runs()] == [1, 2]
    store.runs_file.write_bytes(msgspec.json.encode(a_run()) + b"\n")
    with pytest.raises(RecordError, match="its checksum"):
        store.runs()


def test_unknown_fields_of_a_record_are_ignored(tmp_path: Path) -> None:
    fields = msgspec.json.encode({**msgspec.to_builtins(a_run()), "choices": [{"table": "rows"}]})
    (tmp_path / "runs.jsonl").write_bytes(seal(fields))
    assert SessionStore(tmp_path).runs() == [a_run()]


def test_a_damaged_session_is_named_and_passed_over(tmp_path: Path) -> None:
    for name in ("a-good", "b-torn", "c-good", "d-torn", "e-odd"):
        store = SessionStore(tmp_path / name)
        store.create(a_session(name))
        store.append(a_run(f"{name}-run"))
    (tmp_path / "d-torn" / "session.json").write_bytes(b'{"schema": 1, "sess')
    (tmp_path / "e-odd" / "session.json").write_bytes(b'{"schema": "\xff"}')
    (tmp_path / "b-torn" / "runs.jsonl").write_bytes(b"[]\n")
    said: list[str] = []
    sessions = readable_sessions(tmp_path, said.append)
    assert [(store.folder.name, session.session) for store, session, _ in sessions] == [
        ("a-good", "a-good"),
        ("c-good", "c-good"),
    ]
    assert [sentence.split()[1] for sentence in said] == ["b-torn", "d-torn", "e-odd"]
    assert all("is passed over" in sentence and len(sentence.splitlines()) == 1 for sentence in said)
    said.clear()
    assert find_session(tmp_path, say=said.append).folder.name == "c-good"
    assert [sentence.split()[1] for sentence in said] == ["e-odd", "d-torn"]
    assert find_run(tmp_path, "a-good", said.append)[1].run_id == "a-good-run"
    with pytest.raises(RecordError, match=r"d-torn/session\.json is not a session's description"):
        find_session(tmp_path, "d-torn", said.append).session()


@pytest.mark.parametrize("name", ["../../x", "a/b", "/etc/x", ".hidden", "", "a\nb", "a\n", "x" * 300])
@pytest.mark.parametrize("field", ["run_id", "usecase", "backend"])
def test_a_name_that_leads_elsewhere_is_no_record(tmp_path: Path, field: str, name: str) -> None:
    store = SessionStore(tmp_path)
    store.append(a_run(**{field: name}))
    with pytest.raises(RecordError, match=rf"line 1, is not a run's record: .*{field}"):
        store.runs()


def test_another_schema_is_refused(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.append(a_run(schema=99))
    with pytest.raises(RecordError, match="has schema 99; this version reads 1 and 2"):
        read_runs(store.runs_file)


def test_a_session_can_be_named_as_the_folder_of_results(tmp_path: Path) -> None:
    for name in ("ctr-1", "gcn-1"):
        SessionStore(tmp_path / name).create(a_session(name))
    SessionStore(tmp_path / "ctr-1").append(a_run("abc-b0"))
    for wanted in (None, "latest", "ctr"):
        assert find_session(tmp_path / "ctr-1", wanted).folder == tmp_path / "ctr-1"
    assert find_run(tmp_path / "ctr-1", "abc")[1].run_id == "abc-b0"
    assert [store.folder.name for store in list_sessions(tmp_path / "gcn-1")] == ["gcn-1"]


def test_the_newest_session_can_be_one_that_is_no_profile(tmp_path: Path) -> None:
    for name, budgets in (
        ("compared", []),
        ("profiled", [Budget(rank=0, steps=1, seconds=1.0, parts={}, background={})]),
    ):
        SessionStore(tmp_path / name).create(a_session(name))
        SessionStore(tmp_path / name).append(a_run(budgets=budgets))
    assert find_session(tmp_path).folder.name == "profiled"
    assert find_session(tmp_path, profiles=False).folder.name == "compared"
    assert find_session(tmp_path, "profiled", profiles=False).folder.name == "profiled"
    (tmp_path / "compared" / "session.json").unlink()
    with pytest.raises(RecordError, match=r"no session in .* can be read and is no profile: run another one"):
        find_session(tmp_path, profiles=False)


def test_sessions_are_found_by_name_beginning_and_path(tmp_path: Path) -> None:
    for name in ("ctr-1", "ctr-2", "gcn-1"):
        SessionStore(tmp_path / name).create(a_session(name))
    SessionStore(tmp_path / "gcn-1").append(a_run("abc-b0"))
    assert [store.folder.name for store in list_sessions(tmp_path)] == ["ctr-1", "ctr-2", "gcn-1"]
    assert find_session(tmp_path).folder.name == "gcn-1"
    assert find_session(tmp_path, "ctr-1").folder.name == "ctr-1"
    assert find_session(tmp_path, "gcn").folder.name == "gcn-1"
    assert find_session(Path("elsewhere"), str(tmp_path / "ctr-2")).session().session == "ctr-2"
    assert find_run(tmp_path, "abc")[1].run_id == "abc-b0"
    with pytest.raises(RecordError, match=r"'ctr' in .* is ambiguous"):
        find_session(tmp_path, "ctr")
    with pytest.raises(RecordError, match=r"there is no session 'mf' in .*: the newest is gcn-1"):
        find_session(tmp_path, "mf")


def test_the_newest_session_is_the_one_created_last(tmp_path: Path) -> None:
    for name, day in (("a", 2), ("b", 3), ("c", 1)):
        created_at = f"2026-01-0{day}T00:00:00+00:00"
        store = SessionStore(tmp_path / name)
        store.create(msgspec.structs.replace(a_session(name), created_at=created_at))
        store.append(a_run())
    SessionStore(tmp_path / "a").compress()
    os.utime(tmp_path / "c" / "session.json")
    assert [store.folder.name for store in list_sessions(tmp_path)] == ["c", "a", "b"]
    assert find_session(tmp_path).folder.name == "b"


def test_a_session_is_held_by_one_process(tmp_path: Path) -> None:
    store = SessionStore(tmp_path / "s")
    store.create(a_session("s"))
    held = pytest.raises(RecordError, match=rf"session s is being run by process {os.getpid()} on \S+: wait")
    for _ in range(2):  # it is free again afterwards
        with store.locked(), held, store.locked():
            pass


def test_counters_of_nodes_are_summed_but_maxima_and_means_are_not() -> None:
    merged = sum_counters(
        [{"sent": 1, "age_max": 5, "age_mean": 2}, {"sent": 2, "age_max": 3, "age_mean": 4}]
    )
    assert merged == {"sent": 3, "age_max": 5, "age_mean": 3}


def test_file_that_cannot_be_written_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match=r"report.html cannot be written \(No space left on device\): make"):
        write_atomically(tmp_path / "report.html", b"content")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_and_earlier_runs_are_kept(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if (done := subprocess.run(mount, capture_output=True, text=True)).returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        store = SessionStore(tmp_path)
        store.append(a_run("first"))
        with pytest.raises(RecordError, match=r"the run large cannot be recorded .*No space left on device"):
            store.append(a_run("large", reason="x" * 100_000))
        assert [run.run_id for run in store.runs()] == ["first"]
        store.append(a_run("next"))
        assert [run.run_id for run in store.runs()] == ["first", "next"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
