import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.patches import Rectangle

from adabench.analysis.costs import draw_costs
from adabench.analysis.figures import draw_bars, draw_figures
from adabench.analysis.load import cell_labels, load_frame, measured
from adabench.analysis.style import BACKENDS, colours_of, decimals_of, rank
from adabench.analysis.tables import broken, fitted, markdown, session_table
from adabench.analysis.thesis import draw_thesis
from adabench.harness.plugins.registry import names
from adabench.results.record import RecordError, Run, Seconds, Status
from adabench.results.store import SessionStore
from tests.records import make_run, make_session, plan_of

TIMES = {"manual": [10.0, 11.0, 12.0], "prefetch": [12.0, 14.0, 13.0]}


def a_run(
    backend: str, block: int, seconds: float, status: Status = "ok", usecase: str = "ctr", **params: int
) -> Run:
    done = status == "ok"
    return make_run(
        backend,
        block,
        cell=f"{usecase} {backend} {params}",
        usecase=usecase,
        params={"epochs": 3, **params},
        nodes=2,
        phase="measured" if block >= 0 else "warmup",
        status=status,
        seconds=Seconds(train=seconds if done else None, total=seconds + 2),
        metrics={"auc": 0.74, "logloss": 0.5} if done else {},
        counters={"pulled_local": 3, "pulled_remote": 1, "bytes_sent": 2e6} if done else {},
    )


@pytest.fixture
def runs() -> list[Run]:
    good = [a_run(backend, block, one) for backend, times in TIMES.items() for block, one in enumerate(times)]
    return [a_run("manual", -1, 99.0), *good, a_run("manual", 3, 5.0, "failed")]


@pytest.fixture
def store(tmp_path: Path, runs: list[Run]) -> SessionStore:
    plan = plan_of(runs)
    store = SessionStore(tmp_path / "s")
    session = make_session(created_at="", command=[], study={}, study_id="", plan=plan)
    store.create(session)
    for run in runs:
        store.append(run)
    return store


def test_bars_are_means_whiskers_the_extremes_and_every_run_a_dot(runs: list[Run]) -> None:
    axes = draw_bars([run for run in runs if run.phase == "measured"]).axes[0]
    widths = [patch.get_width() for patch in axes.patches if isinstance(patch, Rectangle)]
    assert widths == pytest.approx([11, 13])
    lines = [found for found in axes.collections if isinstance(found, LineCollection)]
    ends = {tuple(float(x) for x, _ in segment) for found in lines for segment in found.get_segments()}
    assert ends == {(10, 12), (12, 14)}
    dots = [
        np.asarray(found.get_offsets()) for found in axes.collections if isinstance(found, PathCollection)
    ]
    assert [sorted(one[:, 0]) for one in dots] == [sorted(times) for times in TIMES.values()]


def test_many_cells_have_one_axis_and_a_colour_a_backend() -> None:
    names = ("manual", "prefetch", "autoada-manual", "autoada-automatic")
    runs = [
        msgspec.structs.replace(a_run(name, block, 10.0 * nodes), nodes=nodes, cell=f"{name} {nodes}")
        for nodes in (1, 2)
        for name in names
        for block in (0, 1)
    ]
    axes, beside = draw_bars(runs).axes
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == [f"{name} (nodes={nodes})" for name in names for nodes in (1, 2)]
    assert len(beside.get_yticklabels()) == len(shown)
    colours = [patch.get_facecolor() for patch in axes.patches]
    assert len(set(colours)) == len(names)
    assert colours[::2] == colours[1::2]
    assert "node" not in axes.get_title()
    assert axes.get_xlim()[0] == 0.0


def test_a_title_is_true_for_all_bars_and_other_bars_have_their_topology() -> None:
    runs = [a_run("manual", block, 10.0) for block in range(2)]
    (axes, _) = draw_bars(runs).axes
    assert axes.get_title() == "ctr: training time, 3 epochs, 2 nodes, loopback"
    alone = [msgspec.structs.replace(a_run("single", block, 10.0), nodes=1) for block in range(2)]
    (axes, _) = draw_bars([*alone, *runs]).axes
    assert axes.get_title() == "ctr: training time, 3 epochs"
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == ["single, 1 node", "manual, 2 nodes, loopback"]


def test_all_numbers_of_a_figure_have_equal_digits() -> None:
    (_, beside) = draw_bars([a_run("manual", 0, 9.75), a_run("prefetch", 0, 123.0)]).axes
    assert [label.get_text().split(" ")[0] for label in beside.get_yticklabels()] == ["9.8", "123.0"]
    assert [decimals_of(numbers) for numbers in ([6.08, 2.0], [54.0, 123.0], [0.0, 0.012], [0.0])] == [
        *(2, 0, 4, 0)
    ]


def test_a_backend_has_one_place_and_one_colour_in_all_figures() -> None:
    assert set(BACKENDS) == {name for name, origin in names("backend").items() if origin == "built in"}
    # No figure has both gensim and PyKEEN, which train different use cases.
    assert colour_of("gensim") == colour_of("pykeen")
    assert len({colour_of(name) for name in BACKENDS}) == len(BACKENDS) - 1
    assert [colour_of(name) for name in ("mine", "yours")] == [colour_of(name) for name in ("mine", "yours")]
    for given in (["prefetch", "manual", "mine"], ["mine", "prefetch"]):
        axes, _ = draw_bars([a_run(name, block, 10.0) for name in given for block in range(2)]).axes
        shown = [text.get_text() for text in axes.get_yticklabels()]
        assert shown == sorted(given, key=rank)
        drawn = [bar.get_facecolor()[:3] for bar in axes.patches if isinstance(bar, Rectangle)]
        assert drawn == [colour_of(name) for name in shown]


def colour_of(backend: str) -> tuple[float, float, float]:
    return colours_of({"cell": backend})["cell"]


def test_single_runs_are_dots_without_a_mean_or_a_range() -> None:
    figure = draw_bars([a_run(name, 0, 10.0) for name in ("manual", "prefetch")])
    axes, _ = figure.axes
    assert not axes.patches
    assert not [one for one in axes.collections if isinstance(one, LineCollection)]
    assert len([one for one in axes.collections if isinstance(one, PathCollection)]) == 2
    assert figure.get_supxlabel() == "dots: single runs"


def test_a_figure_states_n_units_and_failures(store: SessionStore) -> None:
    png, svg, *_ = draw_figures(store)
    assert png.read_bytes().startswith(b"\x89PNG")
    text = " ".join(ElementTree.parse(svg).getroot().itertext())
    for part in (
        "mean of n = 3 runs",
        "min and max",
        "(seconds)",
        "2 nodes, loopback",
        "1 failed",
        "auc 0.740",
    ):
        assert part in text


def test_the_thesis_stands_beside_as_ratios_to_prefetch(runs: list[Run], store: SessionStore) -> None:
    names = [file.name for file in draw_figures(store)]
    assert names == ["ctr.png", "ctr.svg", "ctr-thesis.png", "ctr-thesis.svg"]
    figure = draw_thesis(runs)
    assert figure is not None
    heights = [patch.get_height() for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    # Thesis: prefetch 5520 s, manual 5630 s; here: prefetch 13 s, manual 11 s.
    assert heights == pytest.approx([1, 5630 / 5520, 1, 11 / 13])
    assert draw_thesis([run for run in runs if run.backend != "prefetch"]) is None
    assert draw_thesis([msgspec.structs.replace(run, usecase="mf") for run in runs]) is None


def test_costs_stand_beside_those_of_other_systems_and_nowhere_else() -> None:
    runs = [
        msgspec.structs.replace(
            a_run(name, block, 0.0),
            samples=1_000_000,
            train_cpu_seconds=cpu + block,
            epoch_seconds=[2.0, 3.0],
            counters=counters,
        )
        for name, cpu, counters in (("ddp", 30.0, {}), ("manual", 20.0, {"bytes_sent": 1.0}))
        for block in range(3)
    ]
    figure = draw_costs(runs)
    assert figure is not None
    cpu, speed = figure.axes
    assert [label.get_text() for label in cpu.get_yticklabels()] == ["manual", "ddp"]
    assert [patch.get_width() for patch in cpu.patches if isinstance(patch, Rectangle)] == [21.0, 31.0]
    assert [patch.get_width() for patch in speed.patches if isinstance(patch, Rectangle)] == [200.0, 200.0]
    assert draw_costs([run for run in runs if run.backend == "manual"]) is None


def test_equal_records_give_equal_figures(store: SessionStore) -> None:
    first = [file.read_bytes() for file in draw_figures(store)]
    assert [file.read_bytes() for file in draw_figures(store)] == first


def test_a_session_without_a_finished_run_cannot_be_drawn(tmp_path: Path) -> None:
    store = SessionStore(tmp_path)
    store.append(a_run("manual", 0, 1.0, "failed"))
    with pytest.raises(RecordError, match="has no finished run to draw"):
        draw_figures(store)


def test_a_label_names_every_parameter_in_which_cells_of_a_use_case_differ() -> None:
    runs = [
        a_run("prefetch", 0, 1.0, lookahead=10, dim=8),
        a_run("prefetch", 0, 1.0, lookahead=50, dim=8),
        a_run("manual", 0, 1.0, lookahead=20, dim=8),
        a_run("single", 0, 1.0, dim=8),
        a_run("prefetch", 0, 1.0, usecase="gcn", lookahead=7),
    ]
    assert list(cell_labels(runs).values()) == [
        "prefetch (lookahead=10)",
        "prefetch (lookahead=50)",
        "manual (lookahead=20)",
        "single",
        "prefetch",
    ]


def test_names_of_policies_are_wrapped_beside_bars() -> None:
    techniques = ("full_replication", "relocation")
    runs = [
        msgspec.structs.replace(run, params={"policy": f"uniform[technique={technique}]"}, cell=technique)
        for technique in techniques
        for run in [a_run("manual", block, 1.0) for block in range(2)]
    ]
    names = [tick.get_text() for tick in draw_bars(runs).axes[0].get_yticklabels()]
    assert max(len(line) for name in names for line in name.splitlines()) <= 40
    assert ["".join(name.split()) for name in names] == [
        f"manual(policy=uniform[technique={technique}])" for technique in techniques
    ]


def test_only_the_last_attempt_of_measured_runs_counts(runs: list[Run]) -> None:
    again = msgspec.structs.replace(runs[1], attempt=2, run_id="again")
    assert [run.run_id for run in measured([*runs, again])] == [
        "again", "manual-1", "manual-2", "prefetch-0", "prefetch-1", "prefetch-2",
    ]  # fmt: skip


def test_the_table_counts_failures_and_leaves_warm_ups_out(runs: list[Run]) -> None:
    lines = session_table(runs).splitlines()
    row = next(line for line in lines if line.startswith("| manual"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:5] == ["manual", "3", "1 failed", "11.00 [10.00, 12.00]", "13.00 [12.00, 14.00]"]
    assert cells[-2:] == ["75.0%", "2.0"]


def test_the_table_shows_the_facts_about_the_data_once() -> None:
    facts = {"liked_ratings": 1200, "liked_pairs": 400}
    runs = [make_run("manual", block, data_facts=facts) for block in range(2)]
    for width in (None, 80, 30):
        lines = session_table([*runs, make_run("single", 0)], width).splitlines()
        shown = " ".join(lines[1 : lines.index("")])
        assert shown == "data: liked_ratings 1200, liked_pairs 400"


def test_the_frame_has_every_run(store: SessionStore, runs: list[Run]) -> None:
    frame = load_frame(store)
    assert list(frame["run_id"]) == [run.run_id for run in runs]
    assert frame["seconds.train"].iloc[1] == 10
    assert frame["metrics.auc"].count() == 7


def test_markdown_columns_line_up() -> None:
    assert (
        len({len(line) for line in markdown(["a", "long name"], [["1", "2"], ["333333", ""]]).splitlines()})
        == 1
    )


NAMES = ("autoada-automatic (lookahead=10, policy=adaptive)", "a" * 100, "manual")


@pytest.mark.parametrize("columns", [2, 4, 9])
@pytest.mark.parametrize("keys", [1, 2])
@pytest.mark.parametrize("width", [70, 80, 100])
def test_names_are_wrapped_and_every_part_of_a_table_has_them(columns: int, keys: int, width: int) -> None:
    names = ["name", *(f"column {number}" for number in range(columns))]
    rows = [[name, *(f"{row} {number}" for number in range(columns))] for row, name in enumerate(NAMES)]
    text = fitted(names, rows, width, keys=keys)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for table in text.split("\n\n"):
        head, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
        assert head[:keys] == names[:keys]
        assert "".join(line[0] for line in lines).replace(" ", "") == "".join(NAMES).replace(" ", "")
        # The other cells of a row are in the first of its lines.
        assert [line[keys:] for line in lines if any(line[1:])] == [
            [row[names.index(name)] for name in head[keys:]] for row in rows
        ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("manual (policy=adaptive)", ["manual", "(policy=adaptive)"]),
        ("m (lookahead=10,policy=nups[times=50])", ["m (lookahead=10,", "policy=nups[times=50])"]),
        ("x" * 30, ["x" * 22, "x" * 8]),
        ("short name", ["short name"]),
    ],
)
def test_a_name_is_broken_at_spaces_else_after_punctuation(text: str, lines: list[str]) -> None:
    assert broken(text, 22) == lines


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_table_fits_the_terminal_with_every_column(runs: list[Run], width: int) -> None:
    wide, narrow = session_table(runs), session_table(runs, width)
    assert max(map(len, narrow.splitlines())) <= width
    cells = [
        {cell.strip() for line in text.splitlines() for cell in line.split("|")[2:-1]}
        for text in (wide, narrow)
    ]
    assert {cell for cell in cells[0] if set(cell) - set("-")} <= cells[1]
    assert session_table(runs, 10_000) == wide
