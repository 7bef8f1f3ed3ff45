"""Style of all figures: one palette, and one way to write an SVG."""

import io
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib.figure import Figure

from adabench.results.record import Run

Colour = tuple[float, float, float]

SVG: dict[Any, Any] = {"svg.hashsalt": "adabench", "svg.fonttype": "none", "text.parse_math": False}
"""Text stays text, also with a dollar sign, and equal records give equal files."""

INK, GRID = "#262626", "#cccccc"

BACKENDS = (
    *("single", "manual", "prefetch", "autoada-manual", "autoada-automatic"),
    *("ddp", "rpc", "torchrec", "floor", "gensim", "pykeen"),
)
"""Built-in backends in the order of all figures, with a distinct colour each.

The last two are never in one figure.
"""


@contextmanager
def styled() -> Iterator[None]:
    """Return the context for drawing figures."""
    colours = {"text.color": INK, "axes.labelcolor": INK, "grid.color": GRID}
    # Names and values of parameters are not formulas.
    with sns.axes_style("whitegrid", colours), mpl.rc_context({"text.parse_math": False}):
        yield


def palette(count: int) -> list[Colour]:
    """Return colours that are also distinct for colour-blind readers, up to ten."""
    return [(red, green, blue) for red, green, blue in sns.color_palette("colorblind", count)]


def rank(backend: str) -> tuple[int, str]:
    """Return the position of a backend in figures: built-in backends first, others by name."""
    return (BACKENDS.index(backend) if backend in BACKENDS else len(BACKENDS), backend)


def in_order(cells: Mapping[str, Run]) -> list[str]:
    """Cells as figures show them, each given by one of its runs: by backend, then from small to large."""
    return sorted(
        cells,
        key=lambda cell: (
            *(rank(cells[cell].backend), cells[cell].nodes, cells[cell].workers, cells[cell].network),
        ),
    )


def colours_of(cells: Mapping[str, str]) -> dict[str, Colour]:
    """Return the colour of each cell: its backend's colour, in shades for several cells."""
    by_backend: dict[str, list[str]] = {}
    for cell, backend in cells.items():
        by_backend.setdefault(backend, []).append(cell)
    found = {}
    for backend, own in by_backend.items():
        for number, cell in enumerate(own):
            white = 0.6 * number / len(own)
            red, green, blue = ((1 - white) * part + white for part in _colour(backend))
            found[cell] = (red, green, blue)
    return found


def decimals_of(numbers: Sequence[float]) -> int:
    """Decimals of all numbers of a figure: three digits of the largest, and two of the smallest."""
    known = [number for number in numbers if number > 0]
    if not known:
        return 0
    return max(2 - math.floor(math.log10(max(known))), 1 - math.floor(math.log10(min(known))), 0)


def _colour(backend: str) -> Colour:
    if backend in BACKENDS:
        # There are ten such colours. The last two train different use cases, and share one.
        colours = palette(len(BACKENDS) - 1)
        return colours[min(BACKENDS.index(backend), len(colours) - 1)]
    # Other plugins may be any number: the name decides, so that a colour is the same in every figure.
    hues = sns.color_palette("husl", 24)
    red, green, blue = hues[zlib.crc32(backend.encode(errors="replace")) % len(hues)]
    return red, green, blue


def as_svg(figure: Figure, *, transparent: bool = False) -> str:
    """An SVG element without metadata, with coordinates in tenths of a point, so that a file is small."""
    buffer = io.StringIO()
    with mpl.rc_context(SVG):
        figure.savefig(buffer, format="svg", transparent=transparent, metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r" *<metadata>.*?</metadata>\n", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r" (?:[dxy]|cx|cy)=\"[^\"]+|translate\([^)]+\)", _in_tenths, text)
    return re.sub(r"\n\s+", "\n", text)


def _in_tenths(numbers: re.Match[str]) -> str:
    return re.sub(r"-?\d+\.\d+", lambda one: f"{float(one[0]):.1f}".removesuffix(".0"), numbers[0])


def adaptive_svg(figure: Figure) -> str:
    """Return an SVG element for a page, without background and with text in the page's colour.

    Grid lines are faint in light and dark. The element is about as wide as the figure, and shrinks to two
    thirds of that on a small page.
    """
    return _in_current_colour(figure).replace("<svg ", f'<svg style="{_widths(figure)}" ', 1)


def standalone_svg(figure: Figure) -> str:
    """An SVG file that is shown as an image on a light or a dark page.

    An image has no access to the page's colour, so it uses the reader's colour scheme.
    """
    element = _in_current_colour(figure)
    end_of_tag = element.index(">") + 1
    return f"{element[:end_of_tag]}\n{_SCHEMES}{element[end_of_tag:]}"


_SCHEMES = """\
 <style>
  svg { color: #1f2328; }
  @media (prefers-color-scheme: dark) { svg { color: #d1d7e0; } }
 </style>"""


def _in_current_colour(figure: Figure) -> str:
    element = as_svg(figure, transparent=True)
    for ink in (INK, "#000000"):
        element = element.replace(f"fill: {ink}", "fill: currentColor").replace(
            f"stroke: {ink}", "stroke: currentColor"
        )
    # Matplotlib writes no fill for black text.
    return element.replace(f"stroke: {GRID}", "stroke: currentColor; stroke-opacity: 0.2").replace(
        "<svg ", '<svg fill="currentColor" role="img" ', 1
    )


def _widths(figure: Figure) -> str:
    pixels = 96 * figure.get_figwidth()
    return f"max-width: {1.1 * pixels:.0f}px; min-width: {0.65 * pixels:.0f}px"
