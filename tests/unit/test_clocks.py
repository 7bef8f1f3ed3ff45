"""A wall clock that is set must not change how long anything takes: times are of a steady clock."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WALL_CLOCK = re.compile(r"time\.time\(|datetime\.now|utcnow|system_clock|high_resolution_clock|gettimeofday")
DATES = {
    "harness/estimate/predict.py": "when runs that are predicted would begin, as sessions' dates count",
    "harness/session/one_run.py": "when a run began, for its record",
    "harness/session/open_session.py": "when a session began, for its name",
}
"""Files that need the date."""


def test_only_dates_are_taken_from_the_wall_clock() -> None:
    folders = ("backends/adaps", "csrc/bindings", "csrc/core", "harness", "backends", "usecases")
    sources = [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".h", ".cc")
    ]
    assert len(sources) > 100
    found = {
        str(path.relative_to(ROOT)) for path in sources if WALL_CLOCK.search(path.read_text(encoding="utf-8"))
    }
    assert found == set(DATES)
