"""The matrix of faults as Markdown."""

from __future__ import annotations

import datetime
from typing import Any

from adabench.harness.environment import capture, machine_name

from .cell import FAULTS
from .rank import PEER_TIMEOUT, PHASES, STALL_TIMEOUT

__all__ = ["markdown"]

_TEXT = """# What happens when a node fails

Recorded by `make stress-faults` on {date}, on {machine}.

Each cell is a cluster of processes; one of them meets the fault while all of them are in the phase. In
`finalize` the others are in `close()`, and the victim is not yet. With `PeerLost(rank)`, the blocked call of
every other node raised it, and it names the rank that met the fault; the seconds are those from the fault
until the last node knew. A node that says nothing counts as lost after `peer_timeout`, here {peer_timeout} s;
one that hangs still answers, and is missed at the next barrier after `stall_timeout`, here {stall_timeout} s.
Afterwards every other call (pull, push, set, intent, wait_sync, barrier, begin_setup, end_setup, checkpoint,
close) raised it at once, each process ended by itself (or, where it hung, by SIGKILL), none left a process or
a file, and a cluster of one restored the last complete checkpoint. Where all complete, the seconds are those
of {turns} turns with the fault and of the end, and every sum is exact.
"""


def markdown(outcomes: list[dict[str, Any]], turns: int) -> str:
    """A page with a table for each number of nodes."""
    lines = [
        _TEXT.format(
            date=datetime.date.today(),
            machine=machine_name(capture()),
            peer_timeout=PEER_TIMEOUT,
            stall_timeout=STALL_TIMEOUT,
            turns=turns,
        )
    ]
    for nodes in sorted({one["nodes"] for one in outcomes}):
        lines += [
            f"## {nodes} nodes",
            "",
            "| the fault | " + " | ".join(f"`{name}`" for name in PHASES) + " |",
        ]
        lines.append("|---|" + "---|" * len(PHASES))
        for fault, meaning in FAULTS.items():
            found = {one["phase"]: one for one in outcomes if (one["fault"], one["nodes"]) == (fault, nodes)}
            if found:
                cells = " | ".join(_cell(found[phase]) for phase in PHASES)
                lines.append(f"| **{fault}**: {meaning} | {cells} |")
        lines.append("")
    return "\n".join(lines)


def _cell(one: dict[str, Any]) -> str:
    failed = "**not as promised:** " if one["problems"] else ""
    return f"{failed}{one['outcome']}, {one['seconds']:.2f} s"
