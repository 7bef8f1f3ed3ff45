"""Opens nodes of the core, and ends nodes that are still open when their process ends."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import sys
import time
import weakref
from collections.abc import Sequence

from adaps import _core
from adaps.errors import AdapsError
from adaps.node_options import NodeSettings
from adaps.rendezvous import Rendezvous

__all__ = ["open_node"]


def open_node(
    specs: Sequence[_core.TableSpec], settings: NodeSettings, rendezvous: Rendezvous | None, deadline: float
) -> _core.Node:
    """Create a node and connect it to any other nodes before the deadline (of `time.monotonic`)."""
    try:
        _core.check_network(settings.network)
    except ValueError as error:
        raise ValueError(f"{error}; correct network= or ADAPS_NETWORK") from error
    node = _core.Node(
        specs,
        rank=0 if rendezvous is None else rendezvous.rank,
        world_size=1 if rendezvous is None else rendezvous.world_size,
        workers=settings.workers,
        channels=settings.channels,
        technique=settings.technique,
        timing=settings.timing,
        max_rounds_per_second=settings.max_rounds_per_second,
        nonfinite=settings.nonfinite,
        stall_timeout=settings.stall_timeout,
        max_queued_bytes=settings.max_queued_bytes,
        max_unsent_bytes=settings.max_unsent_bytes,
    )
    _open_nodes.add(node)
    _end_with_child()
    if rendezvous is not None:
        try:
            result = rendezvous.meet(_listen(node, settings.listen or (rendezvous.interface(), 0)), deadline)
            node.connect(
                result.addresses,
                secret=result.secret,
                network=settings.network,
                connect_timeout=max(deadline - time.monotonic(), 1.0),
                peer_timeout=settings.peer_timeout,
                frame_mac=settings.frame_mac,
            )
        except BaseException:
            node.abandon()
            raise
    return node


def _listen(node: _core.Node, address: tuple[str, int]) -> str:
    """Listen at a host and a port, and return the address for other nodes; an error names the option."""
    try:
        return node.listen(*address)
    except AdapsError as error:
        raise AdapsError(
            f"{error}; set listen= or ADAPS_LISTEN to an address and a free port of this machine"
        ) from error


_open_nodes: weakref.WeakSet[_core.Node] = weakref.WeakSet()
"""Nodes that may still be open."""

_child_that_ends_nodes = 0
"""Process id of a child of `multiprocessing` that will end its nodes."""


def _leave_nodes_unclosed() -> None:
    """Detach nodes that were not closed from the interpreter, which is about to end."""
    for node in list(_open_nodes):
        node.leave_unclosed()
    _core.use_logging(False)


def _end_with_child() -> None:
    """Register `_end_nodes_of_child` if this process is a child of `multiprocessing`."""
    global _child_that_ends_nodes
    if multiprocessing.parent_process() is not None and _child_that_ends_nodes != os.getpid():
        _child_that_ends_nodes = os.getpid()
        multiprocessing.util.Finalize(None, _end_nodes_of_child, exitpriority=0)


def _end_nodes_of_child() -> None:
    """End the nodes of a process that `multiprocessing` forked and that runs no handlers of `atexit`."""
    error = sys.exc_info()[1]
    _leave_nodes_unclosed()
    _core.end_served_nodes(error is None or (isinstance(error, SystemExit) and not error.code))


_core.use_logging(True)
atexit.register(_leave_nodes_unclosed)
