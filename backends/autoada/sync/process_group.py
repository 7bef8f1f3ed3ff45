"""A gloo group of nodes or workers with operations that fail soon if a node is lost."""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
import weakref
from collections import Counter
from datetime import timedelta
from typing import Any

from torch import Tensor

import adaps

LOOK = timedelta(seconds=0.5)
"""Interval between two checks that all nodes are alive."""


class ProcessGroup:
    """Collective operations on a group that is independent of the user's own process groups.

    Each member makes the groups of a kind in the same order. `task` is a participle for error messages. If
    the process ends and no operation is under way, the group is closed, so that the other members notice.
    """

    def __init__(self, node: adaps.Node, kind: str, rank: int, size: int, task: str) -> None:
        from torch.distributed import ProcessGroupGloo  # Some builds of PyTorch do not include gloo.

        store, host = _store_of(node, f"{kind}/{number_of(node, kind, rank)}")
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()  # There is no other way to choose the address.
        options._devices = [gloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=node.stall_timeout)
        self._group: Any = gloo(store, rank, size, options)
        self._node = node
        self._task = task
        self._under_way = 0  # Number of operations that have begun and are not complete.
        # Its destructor waits for all operations, even with a lost node. So it only runs after `release`.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))
        atexit.register(_release_idle, weakref.ref(self))

    def begin(self, operation: str, *args: Any) -> Any:
        """Begin an operation, which is a method of PyTorch's group; `wait` completes it."""
        self._under_way += 1
        return getattr(self._group, operation)(*args)

    def hold(self) -> None:
        """Keep the group open until `release`, also at the end of the process."""
        self._under_way += 1

    def broadcast(self, value: Tensor) -> None:
        """Collective: replace bytes in host memory by the bytes of member 0."""
        self.wait(self.begin("broadcast", value, 0))

    def wait(self, work: Any) -> None:
        """Wait for a collective operation.

        Raises
        ------
        adaps.PeerLost
            If a node is lost.
        adaps.AdapsError
            If it failed, or a member did not come in time.
        """
        deadline = time.monotonic() + self._node.stall_timeout
        while True:
            ended = work.is_completed()
            try:
                work.wait(LOOK)
            except RuntimeError as error:
                if ended:  # It has failed and not only timed out.
                    raise self._failed(str(error).partition("\n")[0]) from error
            else:
                self._under_way -= 1
                return
            self._node.check()
            if time.monotonic() >= deadline:
                raise self._failed(f"another node did not come within {self._node.stall_timeout:g} s")

    def release(self) -> None:
        """Close the group, if it is open; no operation may be under way."""
        if self._group is not None:
            group, self._group = self._group, None
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(group))

    def _failed(self, reason: str) -> Exception:
        """The error of a failed operation; PeerLost if the server finds that a node is lost."""
        deadline = time.monotonic() + self._node.peer_timeout + 1
        while time.monotonic() < deadline:
            try:
                self._node.check()
            except adaps.PeerLost as lost:
                return lost
            time.sleep(0.02)
        return adaps.AdapsError(
            f"gradients were not {self._task}: {reason}; a node that ends before others has to close its "
            "model"
        )


def _release_idle(reference: weakref.ref[ProcessGroup]) -> None:
    """Close a group that still exists at the end of the process, if no operation is under way."""
    if (group := reference()) is not None and group._under_way == 0:
        group.release()


def number_of(node: adaps.Node, kind: str, member: int) -> int:
    """Count the objects of a kind that a member makes; all members make them in the same order."""
    with _lock:
        made = _made.setdefault(node, Counter())
        made[kind, member] += 1
        return made[kind, member]


_made: weakref.WeakKeyDictionary[adaps.Node, Counter[tuple[str, int]]] = weakref.WeakKeyDictionary()
"""Numbers of objects that each member of a node has made, by kind and member."""
_stores: weakref.WeakKeyDictionary[adaps.Node, Any] = weakref.WeakKeyDictionary()
"""Stores for the workers of clusters of one node."""
_lock = threading.Lock()


def _store_of(node: adaps.Node, name: str) -> tuple[Any, str]:
    if node.world_size > 1:
        store, host = node.meeting_place(name)
        # A connection serves one call at a time, and a worker waits for data from other workers of its node.
        return store.clone(), host  # type: ignore[attr-defined]
    from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

    with _lock:
        if node not in _stores:
            _stores[node] = HashStore()
        return PrefixStore(name, _stores[node]), "127.0.0.1"
