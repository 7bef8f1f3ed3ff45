"""Spans of time when a node owned a key, held a replica of it or had intent for it, from traced events."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["spans_of"]

# Kind of span that each event begins or ends on its node.
_BEGINS = {"alloc": "owned", "relocated_here": "owned", "replica_set_up": "replica", "intent_start": "intent"}
_ENDS = {"relocated_away": "owned", "replica_dropped": "replica", "intent_stop": "intent"}
_WITHOUT_SPAN = {"retired"}
"""Events that begin and end no span: the node that retires a row stays its owner."""


def spans_of(
    events: Iterable[tuple[float, str]], first: float, last: float
) -> list[tuple[str, float, float]]:
    """Join the events of one key on one node to spans.

    Parameters
    ----------
    events : iterable of (float, str)
        Time and kind of each event, in the order of time.
    first, last : float
        Times of the first and the last event of all keys. A span without a recorded beginning starts at the
        first one, and a span without a recorded end ends at the last one. A replica ends when its node
        becomes the owner.

    Returns
    -------
    list of (str, float, float)
        Kind (owned, replica or intent), beginning and end of each span.

    Raises
    ------
    ValueError
        If an event is of an unknown kind.
    """
    begun: dict[str, float] = {}
    spans = []
    seen: set[str] = set()
    for time, event in events:
        if event in _BEGINS:
            kind = _BEGINS[event]
            begun.setdefault(kind, time)
            if kind == "owned" and "replica" in begun:
                spans.append(("replica", begun.pop("replica"), time))
        elif event in _ENDS:
            kind = _ENDS[event]
            # An end without a beginning: only the first span of its kind can be older than the trace.
            if kind in begun or kind not in seen:
                spans.append((kind, begun.pop(kind, first), time))
        elif event in _WITHOUT_SPAN:
            continue
        else:
            raise ValueError(f"the trace holds an event of an unknown kind: {event}")
        seen.add(kind)
    return [*spans, *((kind, begin, last) for kind, begin in begun.items())]
