"""The options of a node: the keyword arguments, and their checked form for the core."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict, get_args

from adaps import _argument_checks, _core
from adaps._typing import NonFinite, Technique
from adaps.policy import Policy
from adaps.rendezvous import host_addresses

__all__ = [
    "TECHNIQUES",
    "NodeOptions",
    "NodeSettings",
    "checked_agreement",
    "checked_channels",
    "checked_path",
    "checked_policy",
    "checked_settings",
    "listening_address",
    "wants_frame_mac",
]

TECHNIQUES: tuple[Technique, ...] = get_args(Technique)
"""Techniques to manage keys. `adaptive` decides for each key; the others are for comparison."""


_WORKERS_PER_CHANNEL = 4
"""Number of workers that one channel serves by default."""


class NodeOptions(TypedDict, total=False):
    """The keyword arguments of `Node`. All have a default.

    Attributes
    ----------
    workers : int
        Number of worker threads of this node, 1 by default. It must be equal on all nodes.
    channels : int or None
        Number of communication threads of this node. Keys are distributed over them. It must be equal on all
        nodes. Default: a quarter of `workers`, rounded down, but at least 1. The default does not depend on
        the number of cores, because nodes with different machines must agree.
    techniques : str
        Technique for all tables, one of `TECHNIQUES`. Default: ``adaptive``.
    policy : Policy or None
        Policy that sets the technique and other settings of each table. It replaces `techniques`. The
        `parameters` of its rules are names of tables, and all tables are of the kind ``tables``. It must be
        equal on all nodes.
    timing : bool
        Whether the server waits until the start of an intent is near. Otherwise it acts on the intent at
        once. Default: True.
    max_rounds_per_second : float
        Maximum rate of exchange rounds, 500 by default. A round takes place only if there are changes to
        exchange.
    nonfinite : str
        Treatment of rows in `push_gradients` with NaN or infinity in their gradient. With ``raise``, the
        default, the call raises a ValueError that names table and row, and changes nothing. With ``skip``,
        these rows are unchanged, and ``stats()["gradients_skipped"]`` counts them. With ``pass``, the
        gradients are applied.
    peer_timeout : float
        Time in seconds after which a silent node counts as lost, 5 by default.
    stall_timeout : float
        Time in seconds after which a node counts as lost although it is alive, 1800 by default. Such a node
        does not arrive at a barrier, a checkpoint, `close` or its end while other nodes wait for it, for
        example because its code hangs. The timeout must be longer than any work that a single node does while
        others wait, such as an evaluation. The value of node 0 applies to all nodes.
    connect_timeout : float
        Maximum time in seconds until all nodes are connected, 60 by default.
    network : str or None
        Network to imitate between nodes: ``loopback`` (none), ``sockets`` (none, but nodes on one host do not
        exchange frames through shared memory), ``lan``, ``slow``, or delay and bandwidth such as
        ``0.5ms,2gbit``. Default: the environment variable ADAPS_NETWORK, else ``loopback``.
    listen : str or None
        Address where this node listens for other nodes: ``host`` or ``host:port``. Default: the environment
        variable ADAPS_LISTEN. Without it, any port is used. If all nodes are on this host, the port is on the
        loopback interface, so that only processes of this host can connect. Otherwise it is on the interface
        that leads to MASTER_ADDR.
    max_queued_bytes : int
        Maximum size, in bytes, of each worker's calls that are on the network in either direction, 256 MiB by
        default. At this limit, a call that needs another node waits, even if it is asynchronous, and
        ``stats()["queue_full_micros"]`` counts the time. A single call may be larger.
    max_unsent_bytes : int
        Maximum size, in bytes, of rows and replica changes that are queued for one other node because it
        receives more slowly than this node sends. The default is 64 MiB. At this limit, further values stay
        in their rows, where newer values replace older ones. Only calls that need them wait, and
        ``stats()["unsent_full_micros"]`` counts the time.
    frame_mac : bool or None
        Whether every frame has a MAC (HMAC-SHA256 with keys of this connection). A frame that was changed,
        repeated, reordered or removed on the network then raises `PeerLost`. Frames are not encrypted. The
        cost at each end is 3.8 ns per byte and 0.8 µs per frame, on a core that hashes 260 MB per second. It
        must be equal on all nodes. Default: whether the environment variable ADAPS_FRAME_MAC is 1.
    path : str, os.PathLike or None
        Existing folder on a local disk for the rows that do not fit into the ``memory`` that a policy gives
        to a table. Default: the environment variable ADAPS_PATH. The files are deleted when the process ends.
    agreement : mapping of str to str or None
        Further values, by name, that must be equal on all nodes.
    """

    workers: int
    channels: int | None
    techniques: Technique
    policy: Policy | None
    timing: bool
    max_rounds_per_second: float
    nonfinite: NonFinite
    peer_timeout: float
    stall_timeout: float
    connect_timeout: float
    network: str | None
    listen: str | None
    max_queued_bytes: int
    max_unsent_bytes: int
    frame_mac: bool | None
    path: str | os.PathLike[str] | None
    agreement: Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """Checked options for the core; `NodeOptions` describes them."""

    workers: int
    channels: int
    technique: _core.Technique
    timing: bool = True
    max_rounds_per_second: float = 500.0
    nonfinite: _core.NonFinite = _core.NonFinite.RAISE
    peer_timeout: float = 5.0
    stall_timeout: float = 1800.0
    network: str = "loopback"
    listen: tuple[str, int] | None = None
    max_queued_bytes: int = 256 << 20
    max_unsent_bytes: int = 64 << 20
    frame_mac: bool = False


def checked_settings(options: NodeOptions) -> NodeSettings:
    """Check the options for the core; TypeError or ValueError names the option and its value."""
    _argument_checks.known_options("Node", options, NodeOptions)
    timing = options.get("timing", True)
    if not isinstance(timing, bool):
        raise TypeError(f"timing is {timing!r}; it must be True or False")
    technique = _argument_checks.one_of("technique", options.get("techniques", "adaptive"), TECHNIQUES)
    nonfinite = _argument_checks.one_of("nonfinite", options.get("nonfinite", "raise"), get_args(NonFinite))
    rounds = options.get("max_rounds_per_second", 500.0)
    network = options.get("network")

    def count(name: str, default: int, most: int) -> int:
        return _argument_checks.count(name, options.get(name, default), most=most)  # type: ignore[arg-type]

    def seconds(name: str, default: float) -> float:
        return _argument_checks.seconds(name, options.get(name, default))  # type: ignore[arg-type]

    workers = count("workers", 1, _core.MAX_WORKERS)
    return NodeSettings(
        workers=workers,
        channels=checked_channels(options.get("channels"), workers),
        technique=_core.Technique[technique.upper()],
        timing=timing,
        max_rounds_per_second=_argument_checks.positive("max_rounds_per_second", rounds),
        nonfinite=_core.NonFinite[nonfinite.upper()],
        peer_timeout=seconds("peer_timeout", 5.0),
        stall_timeout=seconds("stall_timeout", 1800.0),
        network=os.environ.get("ADAPS_NETWORK", "loopback") if network is None else network,
        listen=listening_address(options.get("listen")),
        max_queued_bytes=count("max_queued_bytes", 256 << 20, 2**62),
        max_unsent_bytes=count("max_unsent_bytes", 64 << 20, 2**62),
        frame_mac=wants_frame_mac(options.get("frame_mac")),
    )


def checked_channels(channels: int | None, workers: int, name: str = "channels") -> int:
    """Return a node's number of channels; None is the default for this number of workers."""
    if channels is None:
        return max(workers // _WORKERS_PER_CHANNEL, 1)
    return _argument_checks.count(name, channels, most=_core.MAX_CHANNELS)


def checked_agreement(options: NodeOptions) -> Mapping[str, str] | None:
    """Return the values that all nodes must have; TypeError unless they are strings."""
    given = options.get("agreement")
    if given is not None and not (
        isinstance(given, Mapping) and all(isinstance(text, str) for pair in given.items() for text in pair)
    ):
        raise TypeError(f"agreement is {given!r}; it must be a mapping of strings to strings")
    return given


def checked_policy(options: NodeOptions) -> Policy | None:
    """Return the policy; TypeError or ValueError if it is invalid, or given together with techniques."""
    policy, techniques = options.get("policy"), options.get("techniques", "adaptive")
    if policy is None:
        return None
    if not isinstance(policy, Policy):
        raise TypeError(f"policy is {policy!r}; it must be an adaps.Policy")
    if techniques != "adaptive":
        raise ValueError(f"techniques is {techniques!r} in addition to a policy: give only one of the two")
    return policy


def checked_path(options: NodeOptions) -> str | None:
    """Return the folder for rows that do not fit into memory; an error if it does not exist."""
    given = options.get("path")
    name = "path" if given is not None else "the environment variable ADAPS_PATH"
    path = os.environ.get("ADAPS_PATH") if given is None else os.fspath(given)
    if path and not os.path.isdir(path):
        raise ValueError(f"{name} is {path!r}; it must be an existing folder")
    return path or None


def listening_address(listen: str | None) -> tuple[str, int] | None:
    """Return host and port of `listen`, else of ADAPS_LISTEN. With None, the rendezvous chooses."""
    if listen is not None:
        return host_addresses.split_address(listen, "listen")
    chosen = os.environ.get("ADAPS_LISTEN")
    return host_addresses.split_address(chosen, "ADAPS_LISTEN") if chosen else None


def wants_frame_mac(option: bool | None) -> bool:
    """Whether frames have a MAC, according to the option of `Node` or else the environment."""
    if option is None:
        given = os.environ.get("ADAPS_FRAME_MAC", "0")
        return _argument_checks.one_of("the environment variable ADAPS_FRAME_MAC", given, ["0", "1"]) == "1"
    if not isinstance(option, bool):
        raise TypeError(f"frame_mac is {option!r}; it must be True or False")
    return option
