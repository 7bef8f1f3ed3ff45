"""Stores records: one folder per session, append-only and safe against a crash at any moment."""

import csv
import fcntl
import functools
import io
import lzma
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from adabench.results.checksum import is_sealed, is_whole, seal
from adabench.results.record import READABLE, RecordError, Run, Session

T = TypeVar("T")

UNDECODABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Errors of `msgspec.json.decode` for a damaged file."""

Say = Callable[[str], None]


@functools.cache
def warn(sentence: str) -> None:
    """Print a warning to standard error, once in a process."""
    print(f"warning: {sentence}", file=sys.stderr)


class SessionStore:
    """The folder of one session: ``session.json``, ``runs.jsonl``, ``logs/`` and ``traces/``.

    Each of these files can be compressed, as ``runs.jsonl.xz``. A compressed session can be read, but takes
    no more runs. Methods raise `RecordError` if a file cannot be read or written.

    Parameters
    ----------
    folder : Path
        Folder of the session. It need not exist before `create`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs_file = folder / "runs.jsonl"
        self.session_file = folder / "session.json"
        self.logs = folder / "logs"
        self.traces = folder / "traces"

    def create(self, session: Session) -> None:
        """Create the folder and write ``session.json``."""
        with writing(self.folder):
            self.logs.mkdir(parents=True, exist_ok=True)
        self.describe(session)

    def describe(self, session: Session) -> None:
        """Write ``session.json`` into the existing folder. Errors are as in `create`."""
        encoded = msgspec.json.format(msgspec.json.encode(session), indent=1)
        write_atomically(self.session_file, seal(encoded))

    def session(self) -> Session:
        """Read ``session.json``. Refuses another schema and a modified file."""
        try:
            content = _read(self.session_file)
        except (OSError, lzma.LZMAError) as error:
            raise RecordError(
                f"{self.folder} is not a session: session.json cannot be read ({_reason(error)})"
            ) from error
        return _decoded(content, Session, f"{self.session_file}", "a session's description")

    def runs(self, say: Say = warn) -> list[Run]:
        """All recorded runs in the order they ended, as `read_runs` reads them."""
        return read_runs(self.runs_file, say)

    def append(self, run: Run) -> None:
        """Record a run durably: a crash after the return does not lose it. Earlier runs are always kept."""
        if _compressed(self.runs_file).exists():
            raise RecordError(
                f"{self.folder} is compressed and takes no more runs: start a new session with --fresh"
            )
        line = seal(msgspec.json.encode(run))
        try:
            _cut_torn_line(self.runs_file)
            with self.runs_file.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecordError(
                f"the run {run.run_id} cannot be recorded in {self.runs_file} ({error.strerror}): earlier "
                "runs are kept, and the same command continues with this one"
            ) from error

    def trace_file(self, run_id: str) -> Path:
        """Return the file with the trace of a run, compressed or not, if the run has one."""
        file = self.traces / f"{run_id}.csv"
        return compressed if (compressed := _compressed(file)).is_file() else file

    def write_trace(self, run_id: str, events: Sequence[Mapping[str, object]]) -> None:
        """Write the events of a run's traced rows: a table with one row per event, for all nodes."""
        with writing(self.traces):
            self.traces.mkdir(exist_ok=True)
        text = io.StringIO()
        table = csv.DictWriter(text, list(events[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(events)
        write_atomically(self.traces / f"{run_id}.csv", text.getvalue().encode())

    def compress(self) -> None:
        """Replace the session's description, runs and traces by compressed files, a tenth as large."""
        for file in (self.session_file, self.runs_file, *self.traces.glob("*.csv")):
            write_atomically(_compressed(file), lzma.compress(file.read_bytes(), preset=9))
            file.unlink()

    def figures(self) -> Path:
        """Return the folder for figures, which is created if needed. A symbolic link is refused."""
        folder = self.folder / "figures"
        if folder.is_symlink():
            raise RecordError(f"{folder} is a link, and figures are written into the session only: remove it")
        with writing(folder):
            folder.mkdir(exist_ok=True)
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the session, which need not exist yet, against a second harness that would add to it.

        The kernel releases the lock when this process ends. Raises `RecordError`, which names the process, if
        another process holds it.
        """
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / ".lock").open("a+", encoding="utf-8")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                raise RecordError(
                    f"session {self.folder.name} is being run by {file.read() or 'another process'}: "
                    "wait for it, or use --fresh"
                ) from error
            with writing(self.folder):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()}")
                file.flush()
            yield


def make_results_folder(folder: Path) -> None:
    """Make a folder for results, unless it exists; `RecordError` if this is not possible."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into a `RecordError` that names `path` and the remedy."""
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"{path} cannot be written ({error.strerror or error}): make it writable, free disk space, or "
            "name another results folder with --results"
        ) from error


def read_runs(file: Path, say: Say = warn) -> list[Run]:
    """Read ``runs.jsonl``; a missing file holds no runs.

    Parameters
    ----------
    file : Path
        File of the records. A torn last line is ignored.
    say : callable
        Function that receives a sentence about each line that is damaged, or that repeats an earlier run.
        Such a line is skipped.

    Returns
    -------
    list of Run
        Intact records in the order of their lines, each run once.

    Raises
    ------
    RecordError
        If the file cannot be read, or no line is intact.
    """
    try:
        content = _read(file)
    except FileNotFoundError:
        return []
    except (OSError, lzma.LZMAError) as error:
        raise RecordError(f"{file} cannot be read ({_reason(error)})") from error
    # A crash can leave an incomplete line after the last newline. Its run is not recorded.
    lines = content.split(b"\n")[:-1]
    runs: list[Run] = []
    seen: set[bytes] = set()
    damaged: list[RecordError] = []
    passed_over = []
    for number, line in enumerate(lines, start=1):
        try:
            run = _decoded(line, Run, f"{file}, line {number},", "a run's record")
        except RecordError as error:
            damaged.append(error)
            passed_over.append(f"{error}: the line is passed over")
            continue
        if line in seen:
            passed_over.append(f"{file}, line {number}, repeats run {run.run_id}: the run counts once")
            continue
        seen.add(line)
        runs.append(run)
    if damaged and not runs:
        raise damaged[0]
    for sentence in passed_over[:MOST_SENTENCES]:
        say(sentence)
    if (more := len(passed_over) - MOST_SENTENCES) > 0:
        say(f"{file}: {more} more lines are passed over")
    return runs


def list_sessions(root: Path) -> list[SessionStore]:
    """The sessions below `root`, or `root` itself, in the order of their creation.

    A session that cannot be read is after the others, so that the search for the newest reports it.
    """
    if _is_session(root):
        return [SessionStore(root)]
    try:
        if not root.is_dir():
            return []
        stores = [SessionStore(folder) for folder in root.iterdir() if _is_session(folder)]
    except OSError as error:
        raise RecordError(f"the results folder {root} cannot be read ({_reason(error)})") from error
    return sorted(stores, key=_creation)


def readable_sessions(root: Path, say: Say = warn) -> list[tuple[SessionStore, Session, list[Run]]]:
    """Return readable sessions below `root` with their runs, oldest first. `say` reports the others."""
    return list(_readable(list_sessions(root), say))


def find_session(
    root: Path, name: str | None = None, say: Say = warn, *, profiles: bool = True
) -> SessionStore:
    """Return the session of a path, a name or an unambiguous beginning of a name.

    Without a name, the result is the newest session that can be read; profiles are ignored if `profiles` is
    false. Raises `RecordError` if there is no such session, or more than one.
    """
    if name is not None and _is_session(Path(name)):
        return SessionStore(Path(name))
    stores = list_sessions(root)
    if not stores:
        raise RecordError(
            f"no session in {root}: run one with `adabench run`, or name the folder with --results"
        )
    if name is None or name == "latest":
        for store, _, runs in _readable(reversed(stores), say):
            if profiles or not (runs and all(run.budgets for run in runs)):
                return store
        kind = "can be read" if profiles else "can be read and is no profile"
        raise RecordError(f"no session in {root} {kind}: run another one with `adabench run --fresh`")
    return _only(
        [s for s in stores if s.folder.name == name] or [s for s in stores if s.folder.name.startswith(name)],
        f"session {name!r} in {root}",
        [s.folder.name for s in stores],
    )


def find_run(root: Path, run_id: str, say: Say = warn) -> tuple[SessionStore, Run]:
    """Return a run by its identifier or a unique prefix; `RecordError` unless there is exactly one."""
    found = [(store, run) for store, _, runs in readable_sessions(root, say) for run in runs]
    exact = [pair for pair in found if pair[1].run_id == run_id]
    return _only(
        exact or [pair for pair in found if pair[1].run_id.startswith(run_id)],
        f"run {run_id!r} in {root}",
        [run.run_id for _, run in found],
    )


def write_atomically(file: Path, content: bytes) -> None:
    """Write a complete file or nothing, even if a crash occurs. Raises `RecordError` if that fails."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    # In a folder of another user, a symbolic link with this name would redirect the content.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with writing(file):
        opened = os.open(temporary, flags, 0o666)
        try:
            with open(opened, "wb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
            temporary.replace(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


LARGEST_FILE = 1 << 30
"""Bytes that a file may hold, compressed or not; a small file made to fill the memory holds more."""

MOST_SENTENCES = 5
"""Number of lines of a file that are named because they are passed over."""


def _compressed(file: Path) -> Path:
    return file.with_name(f"{file.name}.xz")


def _read(file: Path) -> bytes:
    """Return the content of a file, or of its compressed form if only that exists."""
    if file.exists() or not (compressed := _compressed(file)).exists():
        return _regular(file)
    reader = lzma.LZMADecompressor()
    content = reader.decompress(_regular(compressed), LARGEST_FILE)
    if not reader.eof:
        raise lzma.LZMAError(f"it is incomplete, or holds more than {LARGEST_FILE >> 20} MiB")
    return content


def _regular(file: Path) -> bytes:
    """Content of a regular file. Reading another one, such as a pipe, may never end."""
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a regular file")
    if status.st_size > LARGEST_FILE:
        raise OSError(f"it holds more than {LARGEST_FILE >> 20} MiB")
    return file.read_bytes()


def _reason(error: OSError | lzma.LZMAError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _is_session(folder: Path) -> bool:
    file = folder / "session.json"
    # Unlike Path.is_file, this is false for a name that is too long for a path.
    return os.path.isfile(file) or os.path.isfile(_compressed(file))


def _creation(store: SessionStore) -> tuple[bool, str, str]:
    """Return a key for the order of creation. Times of files are unsuitable: copies of files are younger."""
    try:
        return (False, store.session().created_at, store.folder.name)
    except RecordError:
        return (True, "", store.folder.name)


def _readable(stores: Iterable[SessionStore], say: Say) -> Iterator[tuple[SessionStore, Session, list[Run]]]:
    for store in stores:
        try:
            found = store.session(), store.runs(say)
        except RecordError as error:
            say(f"session {store.folder.name} is passed over: {error}")
            continue
        yield (store, *found)


Record = TypeVar("Record", Run, Session)


def _decoded(content: bytes, kind: type[Record], where: str, what: str) -> Record:
    try:
        record = msgspec.json.decode(content, type=kind)
    except UNDECODABLE as error:
        raise RecordError(f"{where} is not {what}: {error}") from error
    if record.schema not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise RecordError(f"{where} has schema {record.schema}; this version reads {known}")
    # Records before the introduction of checksums are not sealed.
    if not is_whole(content) and (record.schema > 1 or is_sealed(content)):
        raise RecordError(f"{where} was changed after it was written: its checksum differs")
    return record


def _only(candidates: list[T], what: str, known: list[str]) -> T:
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise RecordError(f"{what} is ambiguous ({len(candidates)} begin with this): write more of the name")
    hint = f"the newest is {known[-1]}" if known else "there is none"
    raise RecordError(f"there is no {what}: {hint}")


def _cut_torn_line(file: Path) -> None:
    """Drop an incomplete line at the end, so that the next record starts on a new line."""
    if not file.exists():
        return
    with file.open("r+b") as handle:
        content = handle.read()
        end = content.rfind(b"\n") + 1
        if end != len(content):
            handle.truncate(end)
            os.fsync(handle.fileno())
