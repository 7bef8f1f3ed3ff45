"""The options of a node: how a caller gives them, and how the core takes them once they are checked."""

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
    "checked_policy",
    "checked_settings",
    "listening_address",
    "wants_frame_mac",
]

TECHNIQUES: tuple[Technique, ...] = get_args(Technique)
"""How keys may be managed: `adaptive` decides for each key, the others are for comparison."""


class NodeOptions(TypedDict, total=False):
    """The keyword arguments of `Node`; each has a default.

    Attributes
    ----------
    workers : int
        Number of worker threads of this node, 1 by default. The same on every node.
    channels : int
        Number of communication threads of this node, 1 by default. Keys are distributed over them. The same
        on every node.
    techniques : str
        One of `TECHNIQUES`, for all tables. Default: ``adaptive``.
    policy : Policy or None
        How each table is managed, instead of `techniques`. The `parameters` of its rules are names of tables,
        and all tables are of the kind ``tables``. The same on every node.
    timing : bool
        Whether an intent waits until its start is near. Otherwise the server acts on it at once. Default:
        True.
    max_rounds_per_second : float
        Upper bound of exchange rounds, 500 by default. A round happens only if there is something to
        exchange.
    nonfinite : str
        How `push_gradients` treats rows whose gradient contains NaN or infinity. ``raise``, the default:
        ValueError naming table and row, and nothing of the call is applied. ``skip``: these rows stay as they
        are, and ``stats()["gradients_skipped"]`` counts them. ``pass``: they are applied as they are.
    peer_timeout : float
        Seconds after which a silent node counts as lost, 5 by default.
    stall_timeout : float
        Seconds after which a node counts as lost although it lives, 1800 by default: its code hangs, and it
        does not come to a barrier, a checkpoint, `close` or its end where another node waits for it. The
        timeout must be longer than any work that one node does alone while others wait, such as an
        evaluation. The value of node 0 holds for all.
    connect_timeout : float
        Seconds until all nodes must have come together, 60 by default.
    network : str or None
        The network to imitate between nodes: ``loopback`` (none), ``sockets`` (none, but nodes of one host do
        not exchange frames through shared memory), ``lan``, ``slow``, or delay and bandwidth as in
        ``0.5ms,2gbit``. Default: the environment variable ADAPS_NETWORK, else ``loopback``.
    listen : str or None
        ``host`` or ``host:port`` where this node listens for the others. Default: the environment variable
        ADAPS_LISTEN. Without it, any port of the loopback interface if all nodes are on this host, so that
        only its processes can connect; else any port of the interface by which MASTER_ADDR is reached.
    max_queued_bytes : int
        Maximum size, in bytes, of each worker's calls that are on the way to other nodes, or back: 256 MiB by
        default. Beyond it a call that needs another node waits until less is on the way, also an asynchronous
        one, and ``stats()["queue_full_micros"]`` counts the time. A single call may be larger.
    max_unsent_bytes : int
        Maximum size, in bytes, of rows and changes of replicas that wait on this node for another node which
        takes them more slowly than they come: 64 MiB by default, for each other node. Beyond it they stay
        where they are, where newer values replace older ones, until less waits. Only callers that wait for
        them are blocked, and ``stats()["unsent_full_micros"]`` counts the time.
    frame_mac : bool or None
        Whether every frame carries a MAC (HMAC-SHA256 with keys of this connection). Then a frame that was
        changed, repeated, reordered or left out on its way raises `PeerLost`. Nothing is encrypted. Each end
        pays 3.8 ns per byte and 0.8 µs per frame, on a core that hashes 260 MB per second. The same on every
        node. Default: whether the environment variable ADAPS_FRAME_MAC is 1.
    agreement : mapping of str to str or None
        Further values, by name, that must be equal on all nodes.
    """

    workers: int
    channels: int
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
    agreement: Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """Checked options, as the core takes them; `NodeOptions` describes them."""

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
    """Check the options that the core takes; TypeError or ValueError names the option and its value."""
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

    return NodeSettings(
        workers=count("workers", 1, _core.MAX_WORKERS),
        channels=count("channels", 1, _core.MAX_CHANNELS),
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


def checked_policy(options: NodeOptions) -> Policy | None:
    """The policy among the options; TypeError or ValueError if it is none, or not the only technique."""
    policy, techniques = options.get("policy"), options.get("techniques", "adaptive")
    if policy is None:
        return None
    if not isinstance(policy, Policy):
        raise TypeError(f"policy is {policy!r}; it must be an adaps.Policy")
    if techniques != "adaptive":
        raise ValueError(f"techniques is {techniques!r} beside a policy, which says it: give one of the two")
    return policy


def listening_address(listen: str | None) -> tuple[str, int] | None:
    """Host and port of `listen`, else of ADAPS_LISTEN; None leaves the choice to the rendezvous."""
    if listen is not None:
        return host_addresses.split_address(listen, "listen")
    chosen = os.environ.get("ADAPS_LISTEN")
    return host_addresses.split_address(chosen, "ADAPS_LISTEN") if chosen else None


def wants_frame_mac(option: bool | None) -> bool:
    """Whether frames get a MAC, by the option of `Node` or else the environment."""
    if option is None:
        given = os.environ.get("ADAPS_FRAME_MAC", "0")
        return _argument_checks.one_of("the environment variable ADAPS_FRAME_MAC", given, ["0", "1"]) == "1"
    if not isinstance(option, bool):
        raise TypeError(f"frame_mac is {option!r}; it must be True or False")
    return option
