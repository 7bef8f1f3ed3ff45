"""What the harness's processes on several hosts say to each other."""

from __future__ import annotations

from typing import Any

import msgspec

from adabench.harness.launch.launcher import Failure
from adabench.harness.run.spec import RunSpec

__all__ = [
    "Alive",
    "Bye",
    "CellPrint",
    "End",
    "Ended",
    "File",
    "Hello",
    "Message",
    "Met",
    "Planned",
    "Prepare",
    "Prepared",
    "Probe",
    "Probed",
    "Refused",
    "Said",
    "Start",
    "Stopped",
    "Vanished",
    "Welcome",
]


class _Message(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, tag=True):
    """Any of them."""


class CellPrint(msgspec.Struct, kw_only=True, frozen=True):
    """What has to be alike on all hosts of a cell that they run together.

    `given` is what the study and the command line say of it, by name.
    """

    id: str
    label: str
    given: dict[str, Any]
    data: str | None
    source: str | None
    policy: str | None


class Hello(_Message, kw_only=True, frozen=True):
    """A follower's first message: who it is.

    `host` tells machines and network namespaces apart, `software` is version by package, `environment` what a
    session is recorded with.
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
    """The leader's first: the time on its monotonic clock."""

    clock: float


class Alive(_Message, kw_only=True, frozen=True):
    """Nothing new."""


class Planned(_Message, kw_only=True, frozen=True):
    """The cells that a follower made of the command that it was given."""

    cells: list[CellPrint]


class Refused(_Message, kw_only=True, frozen=True):
    """A follower cannot take part; one sentence."""

    reason: str


class Prepare(_Message, kw_only=True, frozen=True):
    """Make ready for runs, which import these modules."""

    modules: list[str]


class Prepared(_Message, kw_only=True, frozen=True):
    """A follower is ready."""


class Probe(_Message, kw_only=True, frozen=True):
    """Say how busy the machine is."""


class Probed(_Message, kw_only=True, frozen=True):
    """The load of its last minute, and the seconds of a fixed computation."""

    load: float
    seconds: float


class Start(_Message, kw_only=True, frozen=True):
    """Start a part of a run's ranks."""

    run: int
    cell: str
    spec: RunSpec


class End(_Message, kw_only=True, frozen=True):
    """Kill them."""

    run: int


class Met(_Message, kw_only=True, frozen=True):
    """The store where a run's ranks meet is open at a port of the follower's address."""

    run: int
    port: int


class File(_Message, kw_only=True, frozen=True):
    """A rank has written a file."""

    run: int
    rank: int
    kind: str
    content: bytes


class Said(_Message, kw_only=True, frozen=True):
    """Ranks have written to standard output, or to standard error."""

    run: int
    error: bool
    content: bytes


class Vanished(_Message, kw_only=True, frozen=True):
    """Ranks that have ended without a word."""

    run: int
    ranks: list[int]


class Ended(_Message, kw_only=True, frozen=True):
    """All processes of a follower's part of a run have ended.

    `reason` says why they were never started; failures have times of the leader's clock.
    """

    run: int
    exit_code: int
    failures: list[Failure] = []
    left: list[str] = []
    out_of_memory: bool = False
    reason: str | None = None


class Stopped(_Message, kw_only=True, frozen=True):
    """A follower was told by its user to stop."""


class Bye(_Message, kw_only=True, frozen=True):
    """The leader needs nothing more; with what was wrong, if something was."""

    reason: str | None = None


Message = (
    Hello
    | Welcome
    | Alive
    | Planned
    | Refused
    | Prepare
    | Prepared
    | Probe
    | Probed
    | Start
    | End
    | Met
    | File
    | Said
    | Vanished
    | Ended
    | Stopped
    | Bye
)
