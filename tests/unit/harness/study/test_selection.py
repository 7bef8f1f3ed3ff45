"""Which cells of all combinations a study runs."""

from pathlib import Path

import pytest

from adabench.harness.errors import UsageError
from adabench.harness.study.cell import Cell
from adabench.harness.study.selection import select
from adabench.harness.study.study import load_study
from tests.records import make_cell


def cells() -> list[Cell]:
    return [
        make_cell(Cell, backend=backend, params={"dim": dim}, options={"lookahead": 20}, nodes=nodes)
        for backend in ("manual", "prefetch")
        for dim in (8, 16)
        for nodes in (1, 2)
    ]


def test_patterns_include_and_exclude() -> None:
    assert len(select(cells(), [], [], 0, 1)) == 8
    one_node = select(cells(), [{"nodes": 1}], [], 0, 1)
    assert {cell.nodes for cell in one_node} == {1}
    several = select(cells(), [{"backend": "manual", "dim": [8, 16]}, {"dim": 8, "nodes": 2}], [], 0, 1)
    assert len(several) == 5
    rest = select(cells(), [{"backend": "manual"}], [{"dim": 8, "nodes": 2}], 0, 1)
    assert [(cell.params["dim"], cell.nodes) for cell in rest] == [(8, 1), (16, 1), (16, 2)]


def test_a_sample_is_the_same_for_the_same_seed_and_keeps_the_order() -> None:
    drawn = select(cells(), [], [], 3, 1)
    assert drawn == select(cells(), [], [], 3, 1)
    assert [cells().index(cell) for cell in drawn] == sorted(cells().index(cell) for cell in drawn)
    assert any(select(cells(), [], [], 3, seed) != drawn for seed in range(2, 8))
    assert select(cells(), [], [], 100, 1) == cells()


def test_what_no_cell_has_is_named() -> None:
    with pytest.raises(UsageError, match="dimm"):
        select(cells(), [{"dimm": 8}], [], 0, 1)
    with pytest.raises(UsageError, match="leave no cell"):
        select(cells(), [], [{"usecase": "ctr"}], 0, 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("exclude = 'manual'", "exclude: 'manual' is not an array of tables"),
        ("include = [{}]", "include: a pattern without any key matches every cell"),
        ("sample = -1", "sample: -1"),
    ],
)
def test_wrong_patterns_of_a_file_are_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(f"usecases = ['ctr']\n{line}\n")
    with pytest.raises(UsageError, match=message):
        load_study(file, "s", {})


def test_a_file_says_what_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("usecases = ['ctr']\nsample = 4\n[[exclude]]\nbackend = 'manual'\nnodes = 1\n")
    study = load_study(file, "s", {})
    assert (study.exclude, study.sample) == ([{"backend": "manual", "nodes": 1}], 4)
