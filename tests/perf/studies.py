"""Rows of the newest sessions that ``make bench`` runs: ours against its floor, its peers and itself."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from adabench.analysis.costs import cpu_microseconds, samples_per_second
from adabench.analysis.load import SUCCESS, cell_labels, last_attempts
from adabench.harness.machine.environment import processor_name
from adabench.results.record import Run
from adabench.results.store import readable_sessions

from .goals import Cost, Row

FLOOR = "floor"
PEERS = ("torchrec", "rpc", "ddp", "single")
OURS = "autoada-automatic"
LINKS = {"namespaces:lan": "links of 0.25 ms and 10 Gbit/s", "namespaces:slow": "links of 1 ms and 1 Gbit/s"}

Measure = Callable[[Run], float]
Best = Callable[[Sequence[float]], float]


def newest_complete(sessions: Path, study: str, processor: str) -> list[Run]:
    """Return the measured runs of a study's newest session, however the runs ended.

    Only sessions that were run to their end on this kind of processor count. The list is empty if there is
    none.
    """
    for _, session, recorded in reversed(readable_sessions(sessions)):
        if session.study["name"] != study or processor_name(session.environment) != processor:
            continue
        runs = {
            (run.cell, run.phase, run.block): run
            for run in last_attempts(recorded)
            if run.status != "interrupted"
        }
        if all(planned.key in runs for planned in session.plan):
            return [run for run in runs.values() if run.phase == "measured"]
    return []


def rows_of_studies(sessions: Path, processor: str) -> tuple[list[Row], list[Cost]]:
    """All rows, whether measured on this kind of processor or not, and the cost of each cell."""
    found = {study: newest_complete(sessions, study, processor) for study in STUDIES}
    rows = [row for study, rows_of in STUDIES.items() for row in rows_of(found[study])]
    return rows, [cost for study, runs in found.items() for cost in costs(study, runs)]


def costs(study: str, runs: Sequence[Run]) -> list[Cost]:
    """A line per cell, cheapest first."""
    done = [run for run in runs if run.status in SUCCESS]
    found = []
    for cell, label in cell_labels(done).items():
        own = [run for run in done if run.cell == cell]
        links = [run.link for run in own if run.link is not None]
        relay = [1e6 * run.link.relay_cpu_seconds / run.samples for run in own if run.link is not None]
        quality = next(iter(own[0].metrics))
        found.append(
            Cost(
                study=study,
                usecase=own[0].usecase,
                backend=label,
                cpu_microseconds_per_sample=round(median(map(cpu_microseconds, own)), 2),
                samples_per_second=round(median(map(samples_per_second, own))),
                quality=round(median(run.metrics[quality] for run in own), 4),
                runs=len(own),
                round_trip_ms=round(median(link.round_trip_ms for link in links), 3) if links else None,
                gbit_per_second=round(median(link.gbit_per_second for link in links), 3) if links else None,
                relay_microseconds_per_sample=round(median(relay), 2) if relay else None,
            )
        )
    return sorted(found, key=lambda cost: (cost.usecase, cost.cpu_microseconds_per_sample))


def rows_against_peers(runs: Sequence[Run]) -> list[Row]:
    """Automatic intent as ratios to the floor and to whichever peer was the best in a block."""
    runs = [run for run in runs if run.usecase == "ctr"]
    what, ours, peers = "CTR on 2 nodes", _ours(runs), _of(runs, *PEERS)
    return [
        _row(f"{what}, CPU per sample", ours, _of(runs, FLOOR), cpu_microseconds, min, 1.25, "× the floor"),
        _row(f"{what}, CPU per sample", ours, peers, cpu_microseconds, min, 0.9, _best_of(peers)),
        _row(f"{what}, samples per second", ours, peers, samples_per_second, max, 1.3, _best_of(peers)),
        *_left_out(what, peers),
    ]


def rows_behind_links(runs: Sequence[Run]) -> list[Row]:
    """Automatic intent against the best peer behind the same links."""
    rows = []
    for network, link in LINKS.items():
        behind = [run for run in runs if run.network == network]
        what, peers = f"CTR on 2 nodes, {link}", _of(behind, *PEERS)
        rows.append(
            _row(
                f"{what}, samples per second",
                _ours(behind),
                peers,
                samples_per_second,
                max,
                1.5,
                _best_of(peers),
            )
        )
        rows += _left_out(what, peers)
    return rows


def rows_of_namespaces(runs: Sequence[Run]) -> list[Row]:
    """Links between hosts compared with loopback, and with links that have only the cost of the relay."""
    rows = []
    for network, reference, goal in (
        ("namespaces:lan", "loopback", 0.95),
        ("namespaces:slow", "loopback", 0.8),
        ("namespaces:loopback", "loopback", None),
        ("namespaces:lan", "namespaces:loopback", None),
        ("namespaces:slow", "namespaces:loopback", None),
    ):
        own, others = ([run for run in _ours(runs) if run.network == one] for one in (network, reference))
        what = f"CTR between namespaces, {LINKS.get(network, 'links that delay nothing')}, samples per second"
        unit = "× loopback's" if reference == "loopback" else "× those of links that delay nothing"
        rows.append(_row(what, own, others, samples_per_second, max, goal, unit))
    return rows


def rows_of_latency(runs: Sequence[Run]) -> list[Row]:
    """Links of the transport's `lan` against loopback; without intent only for comparison."""
    rows = []
    for policy, words, goal in (("adaptive", "with intent", 0.95), ("static", "no row moves", None)):
        own = _ours(runs, policy)
        slow, fast = ([run for run in own if run.network == network] for network in ("lan", "loopback"))
        what = f"CTR over lan links, {words}, samples per second"
        rows.append(_row(what, slow, fast, samples_per_second, max, goal, "× loopback's"))
    return rows


def rows_of_scaling(runs: Sequence[Run]) -> list[Row]:
    """Two pinned nodes compared with one, and the cost of the second node beyond the training itself."""
    rows = []
    goals = (
        ("ctr", "loader", 1.6),
        ("gcn", "loader", 1.6),
        ("kge", "local", 1.85),
        ("kge", "loader", None),
        ("mf", "loader", None),
        ("word2vec", "loader", None),
    )
    pinned = [run for run in runs if run.pinned]
    for usecase, sampling, goal in goals:
        own = [run for run in _ours(pinned) if run.params.get("sampling", "loader") == sampling]
        two, one = (_nodes(own, usecase, nodes) for nodes in (2, 1))
        by = "server" if sampling == "local" else "loader"
        drawn = f"negatives drawn by the {by}, " if usecase == "kge" else ""
        what = f"{_named(usecase)} on 2 nodes, a core each, {drawn}samples per second"
        rows.append(_row(what, two, one, samples_per_second, max, goal, "× 1 node on 1 core"))
    for usecase, reference, goal, unit in (
        ("ctr", _of(pinned, FLOOR), 0.28, "× the floor"),
        ("gcn", _ours(pinned), 0.2, "× 1 node's"),
    ):
        two, one = (_nodes(_ours(pinned), usecase, nodes) for nodes in (2, 1))
        what = f"{_named(usecase)} on 2 nodes, a core each, CPU per sample beyond 1 node's"
        rows.append(_tax(what, two, one, _nodes(reference, usecase, 1), goal, unit))
    return rows


def rows_of_intent(runs: Sequence[Run]) -> list[Row]:
    """Training time with relocation and replication by intent, divided by the least of all others."""
    rows = []
    for usecase in ("ctr", "gcn"):
        for nodes in (2, 4):
            for network in ("loopback", "lan"):
                cell = [run for run in _nodes(runs, usecase, nodes) if run.network == network]
                others = [run for run in cell if _policy(run) != "adaptive"]
                what = f"adaptive, {_named(usecase)} on {nodes} nodes, {network}, seconds"
                rows.append(_row(what, _ours(cell), others, _seconds, min, 1, "× the best other technique"))
    return rows


STUDIES = {
    "peers": rows_against_peers,
    "links": rows_behind_links,
    "namespaces": rows_of_namespaces,
    "latency": rows_of_latency,
    "scaling": rows_of_scaling,
    "intent": rows_of_intent,
}


def _seconds(run: Run) -> float:
    return sum(run.epoch_seconds)


def _named(usecase: str) -> str:
    return usecase if usecase == "word2vec" else usecase.upper()


def _nodes(runs: Sequence[Run], usecase: str, nodes: int) -> list[Run]:
    return [run for run in runs if run.usecase == usecase and run.nodes == nodes]


def _tax(
    what: str, two: Sequence[Run], one: Sequence[Run], reference: Sequence[Run], goal: float, unit: str
) -> Row:
    """The median over blocks of the CPU time on two nodes minus that on one, over that of `reference`."""
    more, less, of = (
        {run.block: cpu_microseconds(run) for run in runs if run.status in SUCCESS}
        for runs in (two, one, reference)
    )
    ratios = [(more[block] - less[block]) / of[block] for block in more.keys() & less.keys() & of.keys()]
    if not ratios:
        return Row(what, unit, None, goal, True, _obstacle([*two, *one, *reference]))
    return Row(what, unit, round(median(ratios), 4), goal, True)


def _row(
    what: str,
    ours: Sequence[Run],
    others: Sequence[Run],
    measure: Measure,
    best: Best,
    goal: float | None,
    unit: str,
) -> Row:
    """The median over blocks of ours over the best of the others in the same block."""
    at_most = best is min
    ratios = []
    for own in ours:
        beside = [measure(run) for run in others if run.block == own.block and run.status in SUCCESS]
        if own.status in SUCCESS and beside:
            ratios.append(measure(own) / best(beside))
    if not ratios:
        return Row(what, unit, None, goal, at_most, _obstacle([*ours, *others]))
    return Row(what, unit, round(median(ratios), 4), goal, at_most)


def _left_out(what: str, peers: Sequence[Run]) -> list[Row]:
    """A row per peer that has no finished run."""
    done = {run.backend for run in peers if run.status in SUCCESS}
    absent = [name for name in dict.fromkeys(run.backend for run in peers) if name not in done]
    return [Row(f"{what}, {name}", "", missing=_obstacle(_of(peers, name))) for name in absent]


def _obstacle(runs: Sequence[Run]) -> str:
    bad = [run for run in runs if run.status not in SUCCESS]
    return (
        f"{bad[0].status}: {bad[0].reason}"
        if bad
        else "not measured: there is no complete session of this processor"
    )


def _ours(runs: Sequence[Run], policy: str = "adaptive") -> list[Run]:
    return [run for run in runs if run.backend == OURS and _policy(run) == policy]


def _policy(run: Run) -> str:
    """The policy in the run's options; older records have a technique for all parameters instead."""
    return str(run.params.get("policy", run.params.get("techniques")))


def _of(runs: Sequence[Run], *backends: str) -> list[Run]:
    return [run for run in runs if run.backend in backends]


def _best_of(peers: Sequence[Run]) -> str:
    done = {run.backend for run in peers if run.status in SUCCESS}
    return f"× the best of {', '.join(name for name in PEERS if name in done)}" if done else "× the best peer"
