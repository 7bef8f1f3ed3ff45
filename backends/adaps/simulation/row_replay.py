"""Replays the ids that a training requests from a table with fewer rows than ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaps import _argument_checks, _core
from adaps.policy.eviction import Admission, Eviction

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["RowReplay", "replay_rows"]

_MOST_REQUESTS = 2**31 - 1


@dataclass(frozen=True)
class RowReplay:
    """Numbers of requests of a replay.

    Attributes
    ----------
    requests : int
        Number of all requests.
    hits : int
        Number of requests of ids that had a row.
    created : int
        Number of rows that were created.
    not_admitted : int
        Number of requests of ids that were not seen often enough to get a row.
    full : int
        Number of requests of ids that got no row because no row could be retired.
    """

    requests: int
    hits: int
    created: int
    not_admitted: int
    full: int

    @property
    def hit_ratio(self) -> float:
        """Share of the requests that were hits."""
        return self.hits / self.requests if self.requests else 0.0


def replay_rows(
    ids: npt.ArrayLike,
    capacity: int,
    *,
    evict: Eviction | str | Mapping[str, int] | None = None,
    admit: Admission | Mapping[str, int] | None = None,
    lookahead: int = 0,
    batch: int = 1024,
) -> RowReplay:
    """Replay requests of ids with the server's own choice of the rows that are retired.

    Ids are requested one by one. An id without a row gets one, for which another row is retired if the table
    is full. No server is started, and rows have no values.

    Parameters
    ----------
    ids : array of int
        Ids in the order of their requests, of any 64-bit values.
    capacity : int
        Number of rows.
    evict : Eviction, str or mapping, optional
        Order in which rows are retired, as in `Table`. Default: the first ids keep their rows.
    admit : Admission or mapping, optional
        Number of requests after which an id gets a row, as in `Table`. Default: the first request.
    lookahead : int
        Number of batches after the present one whose ids are announced, as by intent. Only ``"intent"`` uses
        them.
    batch : int
        Number of requests of a batch. The clocks of ``{"ttl": clocks}`` are batches.

    Raises
    ------
    TypeError
        If the ids are not integers.
    ValueError
        If another argument is invalid.

    Examples
    --------
    >>> adaps.replay_rows([1, 2, 3, 1, 2, 3], 2, evict="lru").hits
    0
    >>> adaps.replay_rows([1, 2, 3, 1, 2, 3], 2, evict="intent", batch=1, lookahead=3).hits
    2
    """
    import numpy as np  # imported here, so that importing the package is fast

    requests = np.ascontiguousarray(_argument_checks.int64_array("ids", ids)).reshape(-1)
    _argument_checks.count("number of requests", max(1, requests.size), most=_MOST_REQUESTS)
    order = None if evict is None else Eviction.of(evict)
    found = _core.replay_rows(
        requests,
        rows=_argument_checks.count("capacity", capacity, most=_core.MAX_CAPACITY),
        evict="none" if order is None else order.order,
        ttl=0 if order is None else order.ttl or 0,
        admit_seen=1 if admit is None else Admission.of(admit).seen,
        batch=_argument_checks.count("batch", batch, most=_MOST_REQUESTS),
        lookahead=min(_argument_checks.whole("lookahead", lookahead, "batches"), _MOST_REQUESTS),
    )
    return RowReplay(requests.size, found.hits, found.created, found.not_admitted, found.full)
