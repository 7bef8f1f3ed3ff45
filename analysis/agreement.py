"""Whether two cells did the same work to the same end, without which their times say nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from adabench.analysis.statistics import paired_interval
from adabench.results.record import Run

__all__ = ["QUALITY_TOLERANCE", "different_quality", "different_work"]

QUALITY_TOLERANCE = 0.01
"""For records that do not say how much of their metric does not matter."""

_CONFIDENCE = 0.95


def different_work(pairs: Sequence[tuple[Run, Run]]) -> str | None:
    """What differs, if the two did not train on equally many samples.

    Parameters
    ----------
    pairs : sequence of (Run, Run)
        Of each block, the finished run of a cell and that of the baseline.
    """
    for one, other in pairs:
        allowed = 0
        if one.nodes * one.workers != other.nodes * other.workers:
            # Workers get equal shares: the rest, less than a batch per worker and epoch, is left out.
            batches = int(one.params.get("epochs", 1)) * max(run.nodes * run.workers for run in (one, other))
            allowed = batches * int(one.params.get("batch", 1))
        if abs(one.samples - other.samples) > allowed:
            return f"block {one.block + 1} trained on {one.samples} samples, the baseline on {other.samples}"
    return None


def different_quality(pairs: Sequence[tuple[Run, Run]]) -> str | None:
    """What differs, if the metric that the use case is judged by surely differs by more than its tolerance.

    Surely: the 95 % interval of the paired differences lies outside. With fewer than six blocks there is
    none, and no verdict on time either.

    Parameters
    ----------
    pairs : sequence of (Run, Run)
        Of each block, the finished run of a cell and that of the baseline.
    """
    first = pairs[0][1]
    metric = first.metric or next(iter(first.metrics), None)
    if metric is None:
        return None
    tolerance = QUALITY_TOLERANCE if first.tolerance is None else first.tolerance
    values = [tuple(run.metrics.get(metric, math.nan) for run in pair) for pair in pairs]
    lost = sum(math.isnan(ours) and not math.isnan(theirs) for ours, theirs in values)
    if lost:
        return f"{metric} is not a number in {lost} of {len(values)} blocks"
    known = [ours - theirs for ours, theirs in values if not math.isnan(theirs)]
    if not known:
        return None
    interval = paired_interval(known, _CONFIDENCE)
    if interval.low > tolerance or interval.high < -tolerance:
        return (
            f"{metric} differs by {interval.median:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}], "
            f"more than ± {tolerance:g}"
        )
    return None
