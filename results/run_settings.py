"""Declaration of a run's options.

Each option is one field of `RunSettings`, with its type, default, limits and help.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

__all__ = ["RunSettings", "Setting"]


class Setting(msgspec.Struct, kw_only=True, frozen=True):
    """How a field of `RunSettings` is given; its type and limits are the field's own.

    Attributes
    ----------
    help : str
        Help text of the command line's option.
    default : object, optional
        The value in a study that gives none, where the field itself has no default.
    several : bool
        Whether a study may give several values, each of which makes cells of its own.
    needs : str, optional
        Name of the field without which this one has no meaning.
    because : str
        Reason for that: the end of the sentence that refuses a value.
    """

    help: str
    default: Any = None
    several: bool = False
    needs: str | None = None
    because: str = ""


class RunSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Options of a run's execution, apart from its use case, its backend and their parameters.

    Studies, cells, plans, the specification of a run's processes and records contain these fields. A new
    field, with a default that is true of older records, becomes a key of studies, an option of ``run``,
    ``plan`` and ``profile``, a part of a cell's identity, and is recorded. Code that executes runs has to
    implement it.

    Attributes
    ----------
    nodes : int
        Node processes.
    workers : int
        Worker threads per node.
    network : str
        Links between nodes: ``loopback``, ``lan``, ``slow``, a delay and a rate, or ``namespaces:…``.
    pinned : bool
        Whether each node process had one core of its own for all its threads.
    interleaved : bool
        Whether the runs of its block took turns. Seconds of other runs' turns count nowhere, except in the
        total of a run that did not end well.
    turn_steps : int
        Steps of a turn; 0 for an epoch and its evaluation. Older records have it in the session's study.
    node_percent : int
        Share of the processor that each node got, in percent of an equal part of the cores, one core at most.
    last_node_percent : int
        Share of the last of several nodes, in percent of the others'.
    """

    nodes: Annotated[
        int,
        msgspec.Meta(ge=1, le=1024),
        Setting(help="Node processes; several values make several cells.", default=2, several=True),
    ]
    workers: Annotated[
        int,
        msgspec.Meta(ge=1, le=1024),
        Setting(help="Worker threads per node.", default=1, several=True),
    ]
    network: Annotated[
        str,
        Setting(
            help="Links between nodes: loopback, sockets (the same without shared memory), lan, slow, or "
            "such as 0.5ms,2gbit; namespaces:lan, between network namespaces, slows down all sockets, and "
            "namespaces:lan:0-1/10 one link more.",
            default="loopback",
            several=True,
        ),
    ]
    pinned: Annotated[bool, Setting(help="Each node process gets one core for all its threads.")] = False
    interleaved: Annotated[
        bool,
        Setting(
            help="The runs of a block take turns, an epoch each: for noisy machines; all are in memory at "
            "once."
        ),
    ] = False
    turn_steps: Annotated[
        int,
        msgspec.Meta(ge=0, le=10**9),
        Setting(
            help="Steps of a turn with --interleaved, instead of an epoch.",
            needs="interleaved",
            because="is the length of a turn, but the runs take none",
        ),
    ] = 0
    node_percent: Annotated[
        int,
        msgspec.Meta(ge=1, le=100),
        Setting(
            help="How much of an equal part of the cores, one core at most, each node gets, in percent: the "
            "rest is left to the relay of namespaces; less than 100 needs root."
        ),
    ] = 100
    last_node_percent: Annotated[
        int,
        msgspec.Meta(ge=1, le=100),
        Setting(
            help="How much of what the others get the last of several nodes gets, in percent: a slow "
            "node; less than 100 needs root."
        ),
    ] = 100

    def settings(self) -> dict[str, Any]:
        """Name -> value of the fields of `RunSettings`."""
        return {name: getattr(self, name) for name in RunSettings.__struct_fields__}
