"""Search fuzz targets with libFuzzer for a given CPU time and report executions and findings.

    python tests/fuzz/search.py --seconds 60 frames checkpoint

A target is an executable that `make fuzz` builds, or a Python file in this folder. The search begins
with the committed corpus of the target and stores new inputs in ``build/fuzz/corpus/TARGET``, where the next
search continues. An input that causes a failure is left in ``build/fuzz/found/TARGET``. Once the failure is
fixed, the input belongs in ``csrc/tests/fuzz/corpus/TARGET``, where the tests run it.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TARGETS = HERE.parents[1] / "csrc" / "tests" / "fuzz"
"""The folder of C++ targets and of all corpora."""
BUILD = HERE.parents[1] / "build" / "fuzz"
EXECUTABLES = HERE.parents[1] / "build" / "address" / "csrc" / "tests"
LEAST_ROUND_SECONDS = 5
MOST_ROUND_SECONDS = 300
"""Limit of a round's wall time; the CPU time is checked after each round."""

CANNOT = 2
FOUND = 1


@dataclass
class Search:
    """The result of searching one target."""

    target: str
    executions: int = 0
    cpu_seconds: float = 0.0
    covered: int = 0
    failure: str | None = None

    def __str__(self) -> str:
        said = (
            f"{self.target}: {self.executions:,} executions in {self.cpu_seconds:.0f} CPU seconds, "
            f"{self.covered} edges"
        )
        return f"{said}, {self.failure or 'nothing found'}"


def main() -> int:
    """Search the targets of the command line; the exit status is nonzero if anything was found."""
    parser = argparse.ArgumentParser(description="Search fuzz targets with libFuzzer.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: {', '.join(known())}")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU time for each (default: 60)")
    parser.add_argument("--jobs", type=int, default=1, help="targets searched at a time (default: 1)")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(known()):
        parser.error(f"there is no target {min(unknown)!r}; there are {', '.join(known())}")
    if not given.seconds > 0 or given.jobs < 1:
        parser.error(f"--seconds {given.seconds:g} and --jobs {given.jobs} have to be positive")
    with ThreadPoolExecutor(given.jobs) as pool:
        searches = list(pool.map(lambda target: search(target, given.seconds), given.targets or known()))
    return FOUND if any(search.failure for search in searches) else 0


def known() -> list[str]:
    """The targets."""
    sources = [
        path for folder in (TARGETS, HERE) for path in folder.iterdir() if path.suffix in (".cc", ".py")
    ]
    return sorted({path.stem for path in sources} - {"libfuzzer", "mutate", "search"})


def search(target: str, seconds: float) -> Search:
    """Search one target until the CPU time is used up or something is found."""
    result = Search(target)
    found, grown = BUILD / "found" / target, BUILD / "corpus" / target
    for folder in (found, grown):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as examples:
        while result.failure is None and (left := seconds - result.cpu_seconds) > 0:
            limit = min(max(left, LEAST_ROUND_SECONDS), MOST_ROUND_SECONDS)
            options = [f"-max_total_time={limit:.0f}", f"-artifact_prefix={found}/", *OPTIONS]
            corpus = [str(grown), str(TARGETS / "corpus" / target), examples]
            _round(result, [*_command(target), *options, *corpus], Path(examples))
            print(result, flush=True)
    return result


OPTIONS = [
    "-print_final_stats=1",
    "-max_len=8192",
    "-len_control=0",
    "-timeout=20",
    "-rss_limit_mb=2048",
    "-verbosity=1",
    f"-dict={TARGETS / 'words.dict'}",
]


def _command(target: str) -> list[str]:
    source = HERE / f"{target}.py"
    if source.exists():
        return [sys.executable, str(source)]
    return [str(EXECUTABLES / f"search_{target}")]


def _round(result: Search, command: Sequence[str], examples: Path) -> None:
    log = BUILD / f"{result.target}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "ADAPS_EXAMPLES": str(examples)},
            cwd=BUILD,
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    said = log.read_text(errors="replace")
    result.cpu_seconds += usage.ru_utime + usage.ru_stime
    executed = re.search(r"stat::number_of_executed_units: (\d+)", said)
    result.executions += int(executed[1]) if executed else 0
    covered = re.findall(r" cov: (\d+) ", said)
    result.covered = max(result.covered, *map(int, covered), 0)
    if process.returncode != 0:
        result.failure = f"ended with {process.returncode}: see {log}"


if __name__ == "__main__":
    sys.exit(main())
