"""A gloo group of nodes or workers, in which nobody waits for a node that is lost."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from datetime import timedelta
from typing import Any

import adaps

LOOK = timedelta(seconds=0.5)
"""How long to wait for the others between two looks at whether all nodes are alive."""


class Group:
    """Collective operations apart from any group that the user has.

    Parameters
    ----------
    node : adaps.Node
        Whose cluster it is.
    name : str
        Where the members meet, workers of one or of several nodes; the same for all of them.
    rank, size : int
        Which member this one is, and how many there are.
    what : str
        What is not done if it fails, for the message.
    """

    def __init__(self, node: adaps.Node, name: str, rank: int, size: int, what: str) -> None:
        from torch.distributed import ProcessGroupGloo  # not every build of PyTorch has it

        store, host = _meeting_place(node, name)
        kind: Any = ProcessGroupGloo
        options = kind._Options()  # there is no other way to say at which address
        options._devices = [kind.create_device(hostname=host)]
        options._timeout = timedelta(seconds=node.stall_timeout)
        self.begin: Any = kind(store, rank, size, options)
        """Its methods begin an operation, for which `wait` waits."""
        self._node = node
        self._what = what
        # Its destructor waits for all that was begun, also for a node that is lost: only who left may run it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.begin))

    def wait(self, work: Any) -> None:
        """Wait for something that all members do.

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
                if ended:  # and not just not yet
                    raise self._failed(str(error).partition("\n")[0]) from error
            else:
                return
            self._node.check()
            if time.monotonic() >= deadline:
                raise self._failed(f"another node did not come within {self._node.stall_timeout:g} s")

    def release(self) -> None:
        """Nothing is begun any more, and nothing is under way."""
        begin, self.begin = self.begin, None
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(begin))

    def _failed(self, reason: str) -> Exception:
        """What to raise: the server knows soon which node is lost, if one is."""
        deadline = time.monotonic() + self._node.peer_timeout + 1
        while time.monotonic() < deadline:
            try:
                self._node.check()
            except adaps.PeerLost as lost:
                return lost
            time.sleep(0.02)
        return adaps.AdapsError(
            f"gradients were not {self._what}: {reason}; a node that ends before others has to close its "
            "model"
        )


_stores: weakref.WeakKeyDictionary[adaps.Node, Any] = weakref.WeakKeyDictionary()
"""Where the workers of a cluster of one node meet."""
_lock = threading.Lock()


def _meeting_place(node: adaps.Node, name: str) -> tuple[Any, str]:
    if node.world_size > 1:
        store, host = node.meeting_place(name)
        # A connection is one call's at a time, and a worker waits for what others of its node write.
        return store.clone(), host  # type: ignore[attr-defined]
    from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

    with _lock:
        if node not in _stores:
            _stores[node] = HashStore()
        return PrefixStore(name, _stores[node]), "127.0.0.1"
