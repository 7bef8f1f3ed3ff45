"""The matrix of faults as Markdown."""

from __future__ import annotations

import datetime
from statistics import median
from typing import Any

from adabench.harness.machine.environment import capture, machine_name

from . import agents
from .cell import FAULTS
from .rank import CONNECT_TIMEOUT, PEER_TIMEOUT, PHASES, STALL_TIMEOUT

__all__ = ["agents_page", "markdown"]

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

In `two hosts`, the victim is in another network namespace than all others, which is another host to them, and
all push and write checkpoints in turns. In `during restart`, all have closed their nodes after a checkpoint
and make new ones; the victim has not come yet. `RendezvousError(rank)`: every other node was refused after
`connect_timeout`, here {connect_timeout} s, by a sentence that names that rank.
"""


_AGENTS = """# An hour of faults on two hosts

Recorded by `make stress-hosts` on {date}, on {machine}.

Two torchrun agents in two network namespaces, each with a rank of its own, trained for {minutes:.0f}
minutes (seed {seed}). Again and again a fault met one of them, and some met a job that was still recovering
from the one before. An agent that had ended was started again, as a scheduler does. Each life restored the
checkpoint, compared every row with what had been added to it in all lives before it went on, and compared the
checkpoints that it wrote itself. {verdict}

{lives} processes were started as ranks by {agents} agents. {restored} of them came to work, {checkpoints}
checkpoints were complete, of {turns} turns in all.
Ranks ended like this: {ends}; the others were killed.

| fault | times | of these during a restart | seconds until the next checkpoint: median | longest |
|---|---|---|---|---|
{rows}

What ranks that ended by themselves gave as the reason, with `#` for digits:

| times | reason |
|---|---|
{reasons}
"""


def agents_page(result: dict[str, Any], seed: int) -> str:
    """A page of what two agents went through."""
    rows = []
    for kind, meaning in agents.FAULTS.items():
        met = [fault for fault in result["faults"] if fault["kind"] == kind]
        if met:
            seconds = [fault["recovered"] for fault in met]
            restarts = sum(fault["during_restart"] for fault in met)
            rows.append(
                f"| **{kind}**: {meaning} | {len(met)} | {restarts} |"
                f" {median(seconds):.1f} | {max(seconds):.1f} |"
            )
    return _AGENTS.format(
        **{name: result[name] for name in ("lives", "agents", "restored", "checkpoints", "turns")},
        verdict=(
            f"**Not as promised:** {'; '.join(result['problems'])}"
            if result["problems"]
            else "None that was complete was ever lost, and no sum was ever wrong."
        ),
        date=datetime.date.today(),
        machine=machine_name(capture()),
        minutes=result["seconds"] / 60,
        seed=seed,
        ends=", ".join(f"{count} {end}" for end, count in sorted(result["ends"].items())),
        rows="\n".join(rows),
        reasons="\n".join(f"| {count} | {why} |" for why, count in result["why"]),
    )


def markdown(outcomes: list[dict[str, Any]], turns: int) -> str:
    """A page with a table for each number of nodes."""
    lines = [
        _TEXT.format(
            date=datetime.date.today(),
            machine=machine_name(capture()),
            peer_timeout=PEER_TIMEOUT,
            stall_timeout=STALL_TIMEOUT,
            connect_timeout=CONNECT_TIMEOUT,
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
                cells = " | ".join(_cell(found[phase]) if phase in found else "–" for phase in PHASES)
                lines.append(f"| **{fault}**: {meaning} | {cells} |")
        lines.append("")
    return "\n".join(lines)


def _cell(one: dict[str, Any]) -> str:
    failed = "**not as promised:** " if one["problems"] else ""
    return f"{failed}{one['outcome']}, {one['seconds']:.2f} s"
