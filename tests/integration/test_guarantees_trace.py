"""The trace of a real run is consistent and can be drawn."""

from itertools import pairwise
from pathlib import Path

import pandas as pd

from adabench.analysis.life_of_keys import lives, save_life_of_keys
from tests.conftest import Launch


def test_a_key_has_one_owner_at_a_time(launch: Launch, tmp_path: Path) -> None:
    ranks = launch("tests.integration.guarantees.traced", 3, folder=str(tmp_path))
    frames = [pd.read_csv(tmp_path / f"{rank}.csv") for rank in range(3)]
    found = lives(frames)
    assert [life.key for life in found] == [0, 1, 2, 3]
    for kind, name in (("owned", "relocations"), ("replica", "replicas")):
        spans = [span for life in found for span in life.spans if span.kind == kind]
        first_touches = 4 if kind == "owned" else 0
        assert len(spans) == sum(rank[name] for rank in ranks) + first_touches
    for life in found:
        owned = sorted((span.begin, span.end, span.node) for span in life.spans if span.kind == "owned")
        assert all(before[1] <= after[0] and before[2] != after[2] for before, after in pairwise(owned))
        assert {span.node for span in life.spans if span.kind == "intent"} == {0, 1, 2}
        # The last node that wants the key keeps it.
        assert owned[-1][2] == 2
    assert not any(span.kind == "replica" for span in found[0].spans)
    assert any(span.kind == "replica" for span in found[2].spans)
    save_life_of_keys(frames, tmp_path / "life.png")
    assert (tmp_path / "life.png").stat().st_size > 10_000
