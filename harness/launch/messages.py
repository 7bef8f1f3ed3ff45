"""Messages between the coordinator of a session and its agents, one on each other host.

An agent introduces itself (`Hello`, `Welcome`) and sends its plan (`Reply`). It answers each `Prepare` and
`Probe` with a `Reply`. A run is a `Start`, and ends with `RunEnded`; in between the agent sends its ranks'
output and files.
"""

from typing import Any

import msgspec

from adabench.harness.run.spec import FileKind, RunSpec


class _Message(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, tag=True):
    """Any message."""


class CellFingerprint(msgspec.Struct, kw_only=True, frozen=True):
    """Properties of a cell that must be equal on all hosts; `given` are its settings by name."""

    id: str
    label: str
    given: dict[str, Any]
    data: str | None
    source: str | None
    policy: str | None


class Hello(_Message, kw_only=True, frozen=True):
    """Description of an agent's host.

    `host` distinguishes machines and network namespaces, `software` is version by package, `environment` is
    the environment that a session records.
    """

    rank: int
    host: str
    address: str
    interface: str | None
    machine: str
    cores: int
    software: dict[str, str]
    environment: dict[str, Any] = {}


class Welcome(_Message, kw_only=True, frozen=True):
    """The coordinator's answer to `Hello`: the time on its monotonic clock."""

    clock: float


class Alive(_Message, kw_only=True, frozen=True):
    """Sent every second, by both sides."""


class Prepare(_Message, kw_only=True, frozen=True):
    """Request to get ready for runs that import these modules."""

    modules: list[str]


class Probe(_Message, kw_only=True, frozen=True):
    """Request to measure how busy the machine is."""


class Reply(_Message, kw_only=True, frozen=True):
    """An agent's cells, or its answer to a request; with `refusal`, one sentence, it cannot take part.

    `probe` is the load of the last minute and the seconds of a fixed computation.
    """

    refusal: str | None = None
    cells: list[CellFingerprint] = []
    probe: tuple[float, float] | None = None


class Start(_Message, kw_only=True, frozen=True):
    """Request to start the ranks of a run that `spec.place` lists."""

    run: int
    spec: RunSpec


class Kill(_Message, kw_only=True, frozen=True):
    """Request to kill the ranks of a run."""

    run: int


class LogChunk(_Message, kw_only=True, frozen=True):
    """Output of ranks, to standard output or standard error."""

    run: int
    error: bool
    content: bytes


class RunFile(_Message, kw_only=True, frozen=True):
    """A file that a rank or a process group has written, by its kind and the rank's or the group's number.

    Files of exceptions and failures have times of the coordinator's clock.
    """

    run: int
    kind: FileKind
    number: int
    content: bytes


class RunEnded(_Message, kw_only=True, frozen=True):
    """All processes of an agent's part of a run have ended; with `refusal` they were never started."""

    run: int
    exit_code: int
    refusal: str | None = None


class Interrupted(_Message, kw_only=True, frozen=True):
    """The agent's user wants to stop the session."""


class Shutdown(_Message, kw_only=True, frozen=True):
    """The coordinator needs nothing more; `reason` is the error that ended it, if there was one."""

    reason: str | None = None


Request = Prepare | Probe | Start | Kill | Shutdown
"""Messages of the coordinator to an agent."""

RunMessage = LogChunk | RunFile | RunEnded
"""Messages of an agent about a run that it has started."""

Message = Hello | Welcome | Alive | Request | Reply | Interrupted | RunMessage
