"""The choice of the traced rows, and the output of a traced run."""

from __future__ import annotations

from typing import Any

import msgspec
import pandas as pd
import torch
from torch import Tensor

from adabench.analysis.life_of_keys import lives
from adabench.harness.launch.fork_server import ForkServer
from adabench.harness.launch.local import launch_unrecorded
from adabench.harness.plugins.registry import load_usecase
from adabench.harness.run.spec import RunSpec
from adabench.harness.run.tracing import rows_to_trace
from tests.records import make_cell


class Reads:
    """Batch b reads rows 0 to b of a table, and row 0 of another."""

    def keys(self, batch: int) -> dict[str, Tensor]:
        return {"small": torch.zeros(9, dtype=torch.int64), "large": torch.arange(batch + 1).repeat(2)}


def test_rows_from_the_most_to_the_least_used_are_traced() -> None:
    usecase: Any = Reads()
    assert rows_to_trace(usecase, range(100)) == {"large": [0, 10, 25, 50, 99]}
    assert rows_to_trace(usecase, range(2)) == {"large": [0, 1]}


def test_a_traced_run_tells_the_life_of_its_rows(warm: ForkServer) -> None:
    params = msgspec.to_builtins(msgspec.convert({"rows": 8192, "epochs": 1}, load_usecase("ctr").Params))
    outcome = launch_unrecorded(warm, make_cell(RunSpec, params=params, trace=True), 120)
    assert outcome.status == "ok", outcome.reason
    frames = [pd.DataFrame(result.trace) for result in outcome.results]
    found = lives(frames)
    assert len(found) == 5
    assert len({life.name.partition("[")[0] for life in found}) == 1
    hottest = max(found, key=lambda life: sum(span.kind == "intent" for span in life.spans))
    assert {span.node for span in hottest.spans if span.kind == "intent"} == {0, 1}
    assert {span.kind for span in hottest.spans} >= {"owned", "intent"}
