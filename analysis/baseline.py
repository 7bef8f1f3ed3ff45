"""Baseline cells of a session. The other cells are compared with them."""

import re
from collections.abc import Mapping, Sequence

from adabench.analysis.load import shown_value
from adabench.results.record import PlannedRun, RecordError, Run

Topology = tuple[int, int, str, bool]
"""Nodes, workers per node, network, and whether each node has a dedicated core."""


class Baseline:
    """The baseline's cells of one use case, at most one per topology.

    Parameters
    ----------
    cells : mapping of str to Run or PlannedRun
        The use case's cells, each with one of its measured runs.
    labels : mapping of str to str
        Labels of the cells.
    text : str or None
        Name of a backend, alone or with some of its parameters as in ``prefetch[lookahead=20]``, or label of
        a cell. None selects the first set of parameters of `default_baseline`, on its smallest topology if
        there is nothing else to compare.
    usecase : str
        Name of the use case.

    Raises
    ------
    RecordError
        If there is no such cell, or there are several of one topology.
    """

    def __init__(
        self, cells: Mapping[str, Run | PlannedRun], labels: Mapping[str, str], text: str | None, usecase: str
    ) -> None:
        self._runs = cells
        self._labels = labels
        self._text = default_baseline(list(cells.values())) if text is None else text
        exact = [cell for cell in cells if labels[cell] == self._text]
        self.cells = exact or self._selected()
        if text is None:
            self._choose()
        names = ", ".join(labels[cell] for cell in cells)
        if not self.cells:
            raise RecordError(
                f"there is no baseline {self._text!r} among the runs of {usecase!r}: there is {names}"
            )
        topologies = [topology(cells[cell]) for cell in self.cells]
        if len(set(topologies)) < len(topologies):
            twice = [labels[cell] for cell in self.cells if topologies.count(topology(cells[cell])) > 1]
            raise RecordError(
                f"baseline {self._text!r} of {usecase!r} is ambiguous: it may be {' or '.join(twice)}; "
                f"name its parameters, such as {self._example()!r}"
            )

    def beside(self, cell: str) -> str:
        """Return the baseline's cell of the same topology, or its only cell."""
        same = [one for one in self.cells if topology(self._runs[one]) == topology(self._runs[cell])]
        if not same and len(self.cells) > 1:
            where = shown_topology(topology(self._runs[cell]))
            raise RecordError(
                f"{self._labels[cell]} was run on {where}, which baseline {self._text!r} was not: "
                f"name one of its cells, such as {self._labels[self.cells[0]]!r}"
            )
        return same[0] if same else self.cells[0]

    def _choose(self) -> None:
        """Choose one set of parameters; with nothing else to compare, the smallest topology."""
        first = min(self.cells, key=lambda cell: (self._labels[cell], topology(self._runs[cell])))
        self.cells = [cell for cell in self.cells if self._runs[cell].params == self._runs[first].params]
        if len(self.cells) == len(self._runs):
            self.cells = [min(self.cells, key=lambda cell: topology(self._runs[cell]))]

    def _selected(self) -> list[str]:
        match = re.fullmatch(r"([^\[\]]+?)(?:\[(.*)\])?", self._text.strip())
        if match is None:
            return []
        found = [cell for cell, run in self._runs.items() if run.backend == match[1]]
        for part in (match[2] or "").split(",") if match[2] else []:
            name, separator, value = (piece.strip() for piece in part.partition("="))
            if not separator:
                raise RecordError(
                    f"{part.strip()!r} in baseline {self._text!r} is not of the form parameter=value"
                )
            known = sorted({parameter for cell in found for parameter in self._runs[cell].params})
            if found and name not in known:
                raise RecordError(
                    f"baseline {self._text!r} has no parameter {name!r}; it has {', '.join(known)}"
                )
            found = [cell for cell in found if _means(value, self._runs[cell].params.get(name))]
        return found

    def _example(self) -> str:
        run = self._runs[self.cells[0]]
        others = [self._runs[cell].params for cell in self.cells]
        varying = [name for name in run.params if len({repr(other.get(name)) for other in others}) > 1]
        chosen = ",".join(f"{name}={shown_value(run.params[name])}" for name in varying)
        return f"{run.backend}[{chosen}]" if chosen else self._labels[self.cells[0]]


def default_baseline(runs: Sequence[Run | PlannedRun]) -> str:
    """`prefetch` where it was run, else `single`, else the first backend by name."""
    backends = {run.backend for run in runs}
    return next((name for name in ("prefetch", "single") if name in backends), min(backends))


def topology(run: Run | PlannedRun) -> Topology:
    """Return the nodes, workers, network and cores of a run."""
    return (run.nodes, run.workers, run.network, run.pinned)


def shown_topology(given: Topology) -> str:
    """A topology in a few words, such as ``2 nodes, lan``."""
    nodes, workers, network, pinned = given
    parts = [f"{nodes} node{'s' * (nodes > 1)}"]
    if workers > 1:
        parts.append(f"{workers} workers each")
    if nodes > 1:
        parts.append(network)
    if pinned:
        parts.append("a core each")
    return ", ".join(parts)


def across_topologies(here: Topology, there: Topology) -> str:
    """Return the text of a comparison of topologies, such as ``2 nodes, lan against 1 node``."""
    if here[3] == there[3]:
        here, there = (*here[:3], False), (*there[:3], False)
    return f"{shown_topology(here)} against {shown_topology(there)}"


def _means(text: str, value: object) -> bool:
    return text in (shown_value(value), str(value), str(value).lower())
