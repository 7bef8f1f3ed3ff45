"""The table of hit ratios in the documentation has a line for each order."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest

from tests.scripts import load_script

script = load_script("tools/judge_replacement.py")


def test_hit_ratios_of_each_order_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "window_tinylfu", lambda ids, capacity: 0.5)  # the library is optional
    ids = np.exp(np.random.default_rng(1).uniform(0, 6, 3000)).astype(np.int64)
    trace = tmp_path / "trace.xz"
    trace.write_bytes(lzma.compress(ids.astype(">i8").tobytes()))
    assert script.main([str(trace), "--print"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 8
    unlimited = (len(ids) - len(np.unique(ids))) / len(ids)
    assert lines[-1].split()[-2] == f"{unlimited:.3f}"
    ratios = script.hit_ratios(ids, (25,))
    half = ratios['half of the way from `"lru"` to the optimum']
    assert ratios['`"lru"`'] < half < ratios["optimum: all requests announced"] <= ratios["unlimited rows"]
