"""Assignment of calls of AutoAda and the parameter server to the parts of a step."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import adaps
from adabench.backends.interface import Timed
from autoada.loader.intent_source import HandWrittenKeys, PredictedKeys

ACCESSES = {"pull": "pull", "push": "push", "push_gradients": "push", "set": "push"}
"""Calls of a worker that may wait for rows on other nodes."""

OTHERS = {
    "pull_rows": "pull",
    "changed": "pull",
    "push_sums": "push",
    "step_rows": "push",
    "step_copies": "push",
    "wait_intent": "waiting for rows",
    "wait_sync": "waiting for the others",
    "barrier": "waiting for the others",
    "intent": "signalling",
    "advance_clock": "signalling",
}


@contextmanager
def server_calls(timed: Timed, session: Any) -> Iterator[None]:
    """Measure calls of workers, and of functions that find rows and signal intent for them, with `timed`.

    Parameters
    ----------
    timed : Timed
        Wrapper that measures a function.
    session : type
        Class with a method `announce` that finds rows by hand-written keys.
    """
    worker = adaps.Worker
    with ExitStack() as replaced:
        for name, part in ACCESSES.items():
            replaced.enter_context(_replaced(worker, name, _with_wait(timed, part, getattr(worker, name))))
        for name, part in OTHERS.items():
            replaced.enter_context(_replaced(worker, name, timed(part, getattr(worker, name))))
        for kind, name in ((PredictedKeys, "expected"), (HandWrittenKeys, "expected"), (session, "announce")):
            replaced.enter_context(_replaced(kind, name, timed("prediction", getattr(kind, name))))
        deduplicate = timed("de-duplication", adaps.deduplicate)
        replaced.enter_context(_replaced(adaps, "deduplicate", deduplicate))
        yield


def _with_wait(timed: Timed, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Divide a blocking call into its begin, which serves local rows, and the wait for the others."""
    begin = timed(part, call)
    wait = timed("waiting for rows", adaps.Worker.wait)

    @functools.wraps(call)
    def whole(worker: Any, keys: Any, values: Any, asynchronous: bool = False) -> Any:
        ticket = begin(worker, keys, values, True)
        if asynchronous:
            return ticket
        if ticket != _DONE:
            wait(worker, ticket)
        return None

    return whole


_DONE = -1


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
