"""Declaration of a run's options.

Each option is one field of `RunSettings`, with its type, default, limits and help.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

__all__ = ["RunSettings", "Setting"]


class Setting(msgspec.Struct, kw_only=True, frozen=True):
    """Description of a field of `RunSettings`. The field itself defines its type and limits.

    Attributes
    ----------
    help : str
        Help text of the command line's option.
    default : object, optional
        Default value in a study, if the field itself has no default.
    several : bool
        Whether a study may give several values. Each value creates separate cells.
    needs : str, optional
        Name of the field without which this field has no meaning.
    because : str
        Reason for that dependency: the end of the message that refuses a value.
    """

    help: str
    default: Any = None
    several: bool = False
    needs: str | None = None
    because: str = ""


class RunSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Options of a run's execution, without its use case, its backend and their parameters.

    Studies, cells, plans, specifications of processes, and records contain these fields. A new field needs a
    default that is true for older records. It becomes a key of studies, an option of ``run``, ``plan`` and
    ``profile``, a part of a cell's identity, and a field of records. Code that executes runs must implement
    it.

    Attributes
    ----------
    nodes : int
        Number of node processes.
    workers : int
        Number of worker threads per node.
    network : str
        Links between nodes: ``loopback``, ``lan``, ``slow``, a delay and a rate, or ``namespaces:…``.
    pinned : bool
        Whether each node process was bound to a separate core for all its threads.
    interleaved : bool
        Whether the runs of its block took turns. Times during other runs' turns are not counted, except in
        the total time of a run that did not end successfully.
    turn_steps : int
        Number of steps of a turn; 0 for an epoch and its evaluation. Older records have it in the session's
        study.
    node_percent : int
        Processor time of each node, in percent of an equal part of the cores, one core at most.
    last_node_percent : int
        Processor time of the last of several nodes, in percent of the other nodes' time.
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
            help="Links between nodes: loopback; sockets, which is loopback without shared memory; lan; "
            "slow; or a delay and a rate such as 0.5ms,2gbit. namespaces:lan slows down all sockets by "
            "network namespaces. With namespaces:lan:0-1/10, one link is slower by the factor 10.",
            default="loopback",
            several=True,
        ),
    ]
    pinned: Annotated[bool, Setting(help="Each node process gets one core for all its threads.")] = False
    interleaved: Annotated[
        bool,
        Setting(
            help="The runs of a block take turns of one epoch, for noisy machines. All of them are in memory "
            "at once."
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
            help="Processor time of each node, in percent of an equal part of the cores, one core at most. "
            "The relay of namespaces gets the rest. Less than 100 needs root."
        ),
    ] = 100
    last_node_percent: Annotated[
        int,
        msgspec.Meta(ge=1, le=100),
        Setting(
            help="Processor time of the last of several nodes, in percent of the other nodes' time, to "
            "imitate a slow node. Less than 100 needs root."
        ),
    ] = 100

    def settings(self) -> dict[str, Any]:
        """Values of the fields of `RunSettings` by name."""
        return {name: getattr(self, name) for name in RunSettings.__struct_fields__}
