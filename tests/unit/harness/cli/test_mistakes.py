"""A user's mistake: one clear sentence, exit code 2, no traceback, nothing recorded."""

from pathlib import Path
from typing import Any

import pytest

from tests.mistakes import mistakes

PLUGINS = Path(__file__).parents[3] / "integration" / "plugins"
RUN = ("run", "-u", "fake-line", "-b", "single")

COMMANDS = """
run -u fake-lime => unknown use case 'fake-lime': did you mean 'fake-line'?
run -u '' => '' is not of the form name or name[param=value,…]
run -u fake-line -b singel => unknown backend 'singel': did you mean 'single'?
run -b single => --backend alone does not say what to train: add --usecase, such as -u ctr
run --study defalt => unknown study 'defalt': did you mean 'default'?
run absent.toml => there is no study file absent.toml
run -u fake-line[epoch=1] -b single => did you mean 'epochs'?
run -u fake-line[dim=wide] -b single => parameter dim of use case 'fake-line' cannot be 'wide'
run -u fake-line[dim=8 -b single => the brackets of 'fake-line[dim=8' do not match
run -u ctr[rows=1000] -b manual --nodes 8 => use case 'ctr':
run -u ctr[rows=99999999999999999999] -b single => cannot be 99999999999999999999: it has more than 64 bits
run -u ctr[rows=9223372036854775807] -b single => rows is 9223372036854775807: no more than
run -u ctr[rows=2000] -b prefetch[policy=limited[memory=9]] => memory is '9'; it must be a number of bytes
run -u ctr[rows=2000] -b prefetch[policy=limited[memory=9B]] => table 'wide.weight' has memory=9 bytes; one of
run -u ctr[rows=2000] -b prefetch[policy=limited[evict=lru]] => evict is 'lru', and no table has ids of any
list backend => unknown kind 'backend': did you mean 'backends'?
list sessions --results nowhere => --results nowhere: there is no such folder
history --results nowhere => --results nowhere: there is no such folder
show nothing => no session in adabench-results
plot => no session in adabench-results
show --results a --results b => --results is given 2 times: give it once
plan -u ctr --seed 1 --seed 2 => --seed is given 2 times: give it once
plan -u ctr -r 3 --repeats 4 => --repeats is given 2 times: give it once
profile -u ctr[rows=3000] => profile takes one cell, and this selection has 4
profile -u ctr -b single,prefetch => profile takes one cell, and this selection has 2
profile -u ctr -b prefetchh => did you mean 'prefetch'?
profile -b prefetch => add --usecase
"""

OPTIONS_OF_RUN = """
--nodes 0 => option nodes: 0 is too small: it has to be at least 1
--nodes -2 => option nodes: -2 is too small
-r 0 => option repeats: 0 is too small
-r -1 => option repeats: -1 is too small
-r 1000000000 => option repeats: 1000000000 is too large: it can be at most 10000
--workers two => option workers: 'two' is not a whole number
--turn-steps 5 => option turn_steps: 5 is the length of a turn, but the runs take none
--interleaved --turn-steps -1 => option turn_steps: -1 is too small
--network wan => option network: unknown network 'wan'
--timeout soon => option timeout: 'soon' is not a duration
--timeout 9999999999999999999999999999999999999999999999999999999999999999999h => is not a duration
--data nowhere => use case 'fake-line': there is no data file
--target auc=0.7 => target 'auc' of use case 'fake-line' is not the use case's metric: rmse
--target rmse => target 'rmse' is not of the form metric=value
--target rmse=nan => target 'rmse=nan' can never be reached
--results file => cannot be written (Not a directory)
--nodes 99999999999999999999 => option nodes: 99999999999999999999 is too large
--seed 99999999999999999999 => option seed: 99999999999999999999 is too large
"""


@pytest.fixture(autouse=True)
def plugins_and_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))
    (tmp_path / "file").write_text("a file where a folder is expected")


@mistakes(COMMANDS)
def test_a_mistake_is_one_sentence(
    refused: Any, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refused(*arguments)
    assert not list(tmp_path.rglob("runs.jsonl"))


@mistakes(OPTIONS_OF_RUN)
def test_a_mistake_in_an_option_of_run_is_one_sentence(
    refused: Any, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refused(*RUN, *arguments)
    assert not list(tmp_path.rglob("runs.jsonl"))


def test_names_that_are_no_utf_8_are_refused(refused: Any) -> None:
    note = refused("run", "-u", "fake-line[note=\udcff]", "-b", "single")
    assert note == r"b'fake-line[note=\xff]' is not UTF-8: records can only hold names that are"
    assert refused("show", "\udce9").startswith(r"b'\xe9' is not UTF-8")
