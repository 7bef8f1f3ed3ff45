"""How figures look: one palette, one way to write an SVG."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib.figure import Figure

__all__ = ["INK", "SVG", "adaptive_svg", "palette", "standalone_svg", "styled"]

Colour = tuple[float, float, float]

SVG: dict[Any, Any] = {"svg.hashsalt": "adabench", "svg.fonttype": "none", "text.parse_math": False}
"""Text stays text, a dollar in it too, and equal records give equal files."""

INK, GRID = "#262626", "#cccccc"


@contextmanager
def styled() -> Iterator[None]:
    """The context that figures are made in."""
    colours = {"text.color": INK, "axes.labelcolor": INK, "grid.color": GRID}
    # Names and values of parameters are no formulas.
    with sns.axes_style("whitegrid", colours), mpl.rc_context({"text.parse_math": False}):
        yield


def palette(count: int) -> list[Colour]:
    return [(red, green, blue) for red, green, blue in sns.color_palette("muted", count)]


def adaptive_svg(figure: Figure) -> str:
    """An SVG element for a page: no background, text in the page's colour, grid lines faint in light and
    dark; about as wide as the figure is, on a small page down to two thirds of it.
    """
    return _in_current_colour(figure).replace("<svg ", f'<svg style="{_widths(figure)}" ', 1)


def standalone_svg(figure: Figure) -> str:
    """An SVG file that is shown as an image on a light or a dark page.

    An image does not know the page's colour, so it goes by the reader's scheme.
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
    buffer = io.StringIO()
    with mpl.rc_context(SVG):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    element = text[text.index("<svg") :]
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
