"""Writes the tables of pages on faults, below the prose that explains them."""

import datetime
from pathlib import Path
from statistics import median
from typing import Any

from adabench.harness.machine.environment import capture, machine_name

from . import agents
from .cell import FAULTS
from .rank import CONNECT_TIMEOUT, PEER_TIMEOUT, PHASES, STALL_TIMEOUT, TURNS

_HEADING = "## Recorded\n"


def record_agents(page: Path, result: dict[str, Any], seed: int) -> None:
    """Write what two agents went through."""
    verdict = "No complete checkpoint was lost, and no sum was wrong."
    if result["problems"]:
        verdict = f"**Not as promised:** {'; '.join(result['problems'])}"
    ends = ", ".join(f"{count} {end}" for end, count in sorted(result["ends"].items()))
    lines = [
        f"{verdict}\n",
        "{agents} agents started {lives} processes as ranks. {restored} of these processes began to train.\n"
        "The job reached turn {turns} and completed {checkpoints} checkpoints.".format(**result),
        f"Ends of ranks: {ends}; all other ranks were killed.\n",
        "| fault | times | of these during a restart | seconds until the next checkpoint: median | longest |",
        "|---|---|---|---|---|",
    ]
    for kind, meaning in agents.FAULTS.items():
        met = [fault for fault in result["faults"] if fault["kind"] == kind]
        if met:
            seconds = [fault["recovered"] for fault in met]
            counts = f"{len(met)} | {sum(fault['during_restart'] for fault in met)}"
            lines.append(f"| **{kind}**: {meaning} | {counts} | {median(seconds):.1f} | {max(seconds):.1f} |")
    lines += [
        "\nError messages with which ranks ended. Each digit is replaced by `#`:\n",
        "| ranks | error message |",
        "|---|---|",
    ]
    lines += [f"| {count} | {why} |" for why, count in result["why"]]
    _record(page, "make stress-hosts", f"{result['seconds'] / 60:.0f} minutes, seed {seed}.", lines)


def record_faults(page: Path, outcomes: list[dict[str, Any]]) -> None:
    """Write a table for each number of nodes."""
    lines = []
    for nodes in sorted({one["nodes"] for one in outcomes}):
        lines += [
            f"### {nodes} nodes\n",
            "| the fault | " + " | ".join(f"`{name}`" for name in PHASES) + " |",
            "|---|" + "---|" * len(PHASES),
        ]
        for fault, meaning in FAULTS.items():
            found = {one["phase"]: one for one in outcomes if (one["fault"], one["nodes"]) == (fault, nodes)}
            if found:
                cells = " | ".join(_cell(found[phase]) if phase in found else "–" for phase in PHASES)
                lines.append(f"| **{fault}**: {meaning} | {cells} |")
        lines.append("")
    settings = (
        f"`peer_timeout` was {PEER_TIMEOUT} s,\n`stall_timeout` {STALL_TIMEOUT} s and `connect_timeout` "
        f"{CONNECT_TIMEOUT} s; {TURNS} turns.\n"
    )
    _record(page, "make stress-faults", settings, lines)


def _record(page: Path, command: str, settings: str, lines: list[str]) -> None:
    prose, heading, _ = page.read_text().partition(_HEADING)
    assert heading, f"{page} has no line {_HEADING!r}"
    machine = machine_name(capture())
    first = f"Recorded by `{command}` on {datetime.date.today()}, on {machine}. {settings}"
    page.write_text("\n".join([f"{prose}{heading}", first, *lines]).rstrip() + "\n")


def _cell(one: dict[str, Any]) -> str:
    failed = "**not as promised:** " if one["problems"] else ""
    return f"{failed}{one['outcome']}, {one['seconds']:.2f} s"
