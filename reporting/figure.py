"""Write a figure: one SVG that holds a layout for desks and one for phones, and its data as CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import matplotlib
import pandas as pd
import yaml

matplotlib.use("svg")

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from longdecode.reporting.drawing import unit_note
from longdecode.reporting.figure_data import write_data
from longdecode.reporting.identity import DARK, FAINT, GRID, INK, MUTED, PAPER, Look

_FONTS = "system-ui,sans-serif"
NARROW_VIEW = "narrow"
_WIDE, _PHONE, _BETWEEN = 7.32, 3.72, 0.3  # two panels for desks, or one of two, are as wide as a phone
_LEFT, _RIGHT, _BOTTOM, _GAP = 0.54, 0.12, 0.5, 0.44
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "longdecode",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelsize": 9.0,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "figure.dpi": 72,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": FAINT,
    "xtick.labelcolor": MUTED,
    "ytick.color": FAINT,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "xtick.minor.size": 0,
    "ytick.major.size": 0,
    "text.color": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "lines.markeredgewidth": 1.1,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A written figure, as pages show it; ``caption`` and ``alt`` are plain text, sizes are in CSS pixels.

    ``same`` names the columns that its data leaves out because every row has the same value there.
    """

    name: str
    title: str
    caption: str
    alt: str
    wide_size: tuple[int, int]
    narrow_size: tuple[int, int]
    same: str = ""

    @property
    def wide(self) -> str:
        """Path of the SVG for wide screens and print, relative to the pages."""
        return f"figures/{self.name}.svg"

    @property
    def narrow(self) -> str:
        """Path of the SVG's view for phones: the same panels, arranged in fewer columns."""
        return f"{self.wide}#{NARROW_VIEW}"

    @property
    def data(self) -> str:
        """Path of the CSV with every number that is drawn, apart from what is ``same``."""
        return f"figures/{self.name}.csv"


Panel = Callable[[Axes], None]


@dataclass(frozen=True, slots=True)
class Words:
    """Title, caption and alternative text, from captions.yaml.

    Args:
        kind: the entry there.
        about: which model and data, the caption's end.
        fields: what fills the entry's braces, apart from ``panels``.
    """

    kind: str
    about: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Layout:
    """Labels of the axes, the most panels in a row on desks and on phones, their height where it is not the usual.

    ``title_lines``: lines of the longest title of a panel.
    """

    x_label: str
    y_label: str = ""
    wide: int = 3
    narrow: int = 2
    panel_in: float | None = None
    title_lines: int = 1


class FigureWriter:
    """Writes figures below ``folder/figures`` and remembers them, for the index."""

    def __init__(self, folder: Path, looks: dict[str, Look]):
        self.folder = folder / "figures"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.looks = looks
        self.written: list[Figure] = []
        self._captions = yaml.safe_load((Path(__file__).parent / "captions.yaml").read_text(encoding="utf-8"))

    def write(
        self,
        name: str,
        words: Words,
        panels: Sequence[Panel],
        data: pd.DataFrame,
        layout: Layout,
        legend: Sequence[Look] | None = None,
    ) -> Figure:
        """Draw the panels and write the data beside them.

        The legend names the methods in the data's column ``method``, unless the looks to name are given.
        """
        count = "one panel" if len(panels) == 1 else f"{len(panels)} panels"
        texts = {key: text.format(panels=count, **words.fields) for key, text in self._captions[words.kind].items()}
        looks = legend if legend is not None else self._named(set(data["method"]))
        path = self.folder / f"{name}.svg"
        sizes = _draw(path, texts["title"], texts["alt"], panels, looks, layout)
        same = write_data(self.folder / f"{name}.csv", data)
        caption = f"{texts['caption']} {words.about}"
        figure = Figure(name, texts["title"], caption, texts["alt"], *sizes, same)
        self.written.append(figure)
        return figure

    def _named(self, labels: set[str]) -> list[Look]:
        return [look for label, look in self.looks.items() if label in labels]


@dataclass(frozen=True, slots=True)
class Grid:
    """Panels in rows, in inches: the legend on top, the label of the horizontal axes below.

    Args:
        panels: how many.
        columns: panels in a row.
        panel: width and height of one panel's axes.
        title: height above each panel.
        legend_rows: rows of the legend.
        least: width of the whole at least.
    """

    panels: int
    columns: int
    panel: tuple[float, float]
    title: float
    legend_rows: int
    least: float = 0.0

    @property
    def width(self) -> float:
        """Width of the whole."""
        return max(self.least, self.columns * (_LEFT + self.panel[0]) + _RIGHT)

    @property
    def top(self) -> float:
        """Height of the legend."""
        return 0.1 + 0.21 * self.legend_rows

    @property
    def height(self) -> float:
        """Height of the whole."""
        rows = math.ceil(self.panels / self.columns)
        return self.top + rows * (self.title + self.panel[1]) + (rows - 1) * _GAP + _BOTTOM

    def corner(self, place: int) -> tuple[float, float]:
        """Left edge of a panel's axes, and the distance of its lower edge from the top of the whole."""
        row, column = divmod(place, self.columns)
        return _LEFT + column * (self.panel[0] + _LEFT), self.top + (row + 1) * (
            self.title + self.panel[1]
        ) + row * _GAP


def _draw(
    path: Path, title: str, alt: str, panels: Sequence[Panel], looks: Sequence[Look], layout: Layout
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Draw one SVG and return the sizes of its two views in CSS pixels.

    The view for desks is the drawing itself. The one for phones lies to its right, outside the picture, with a legend
    of its own; it shows the same panels by reference, so that nothing is stored twice.
    """
    count, height = len(panels), layout.panel_in or 1.75
    columns = math.ceil(count / math.ceil(count / layout.wide))
    desk = _PHONE if layout.wide == 1 else min(_WIDE, _PHONE * count)
    width = (desk - _RIGHT) / columns - _LEFT
    fitting = max(1, int((_PHONE - _RIGHT) / (_LEFT + width) + 1e-6))
    title_in = 0.3 + 0.14 * (layout.title_lines - 1)
    views = []
    for most, least in ((columns, 0.0), (min(fitting, layout.narrow), _PHONE)):
        outer = max(least, most * (_LEFT + width) + _RIGHT)
        views.append(Grid(count, most, (width, height), title_in, _legend_shape(looks, outer)[1], least))
    wide, narrow = views
    size = (wide.width + _BETWEEN + narrow.width, max(wide.height, narrow.height))
    with matplotlib.rc_context(_SETTINGS):
        canvas = Canvas(figsize=size)
        moves = []
        for place, panel in enumerate(panels):
            (x, down), (x_narrow, down_narrow) = wide.corner(place), narrow.corner(place)
            moves.append((72 * (wide.width + _BETWEEN + x_narrow - x), 72 * (down_narrow - down)))
            box = (x / size[0], 1 - down / size[1], width / size[0], height / size[1])
            axes = canvas.add_axes(box, gid=f"panel{place}")
            panel(axes)
            if place % columns == 0 and layout.y_label:
                unit_note(axes, layout.y_label)
            axes.set_title(axes.get_title(loc="left"), loc="left", pad=16)
        for grid, left in ((wide, 0.0), (narrow, wide.width + _BETWEEN)):
            _surround(canvas, grid, left, looks, layout.x_label)
        canvas.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    svg = _finish(path.read_text(encoding="utf-8"), title, alt)
    path.write_text(_with_views(svg, wide, narrow, moves), encoding="utf-8")
    return _pixels(wide), _pixels(narrow)


def _surround(canvas: Canvas, grid: Grid, left: float, looks: Sequence[Look], x_label: str) -> None:
    """Write legend and axis label of one view, whose left edge is given in inches."""
    width, height = canvas.get_size_inches()
    middle = left + (_LEFT + grid.columns * (_LEFT + grid.panel[0])) / 2
    canvas.text(
        middle / width, 1 - (grid.height - 0.05) / height, x_label, ha="center", va="bottom", color=MUTED, size=9
    )
    columns, _ = _legend_shape(looks, grid.width)
    handles = _row_by_row([_handle(look) for look in looks], columns)
    legend = Legend(
        canvas, handles, [str(handle.get_label()) for handle in handles], loc="upper left", ncols=columns,
        bbox_to_anchor=(left / width, 1.0), bbox_transform=canvas.transSubfigure, borderaxespad=0.1, handlelength=2.2,
        columnspacing=1.4, labelspacing=0.35,
    )  # fmt: skip
    canvas.add_artist(legend)


def _with_views(svg: str, wide: Grid, narrow: Grid, moves: Sequence[tuple[float, float]]) -> str:
    """Crop the picture to the view for desks and add the one for phones, which shows the panels moved."""
    left = 72 * (wide.width + _BETWEEN)
    box = f"{left:.2f} 0 {72 * narrow.width:.2f} {72 * narrow.height:.2f}"
    used = "".join(f'<use href="#panel{place}" x="{x:.2f}" y="{y:.2f}"/>' for place, (x, y) in enumerate(moves))
    svg = re.sub(
        r'width="[\d.]+pt" height="[\d.]+pt" viewBox="[^"]*"',
        f'width="{72 * wide.width:.2f}pt" height="{72 * wide.height:.2f}pt" '
        f'viewBox="0 0 {72 * wide.width:.2f} {72 * wide.height:.2f}"',
        svg,
        count=1,
    )
    return svg.replace("</svg>", f'<view id="{NARROW_VIEW}" viewBox="{box}"/>{used}</svg>')


def _pixels(grid: Grid) -> tuple[int, int]:
    return round(grid.width * 96), round(grid.height * 96)


def _legend_shape(looks: Sequence[Look], width_in: float) -> tuple[int, int]:
    """Columns and rows of a legend that fits the width; a letter of the legend's font is about 0.073 inches wide."""
    longest = max((len(look.label) for look in looks), default=1)
    columns = max(1, min(len(looks), int(width_in / (0.5 + 0.073 * longest))))
    return columns, math.ceil(len(looks) / columns)


def _row_by_row(handles: Sequence[Artist], columns: int) -> list[Artist]:
    """Reorder what a legend shows, which is filled column by column, so that it reads row by row."""
    return [handle for column in range(columns) for handle in handles[column::columns]]


def _handle(look: Look) -> Artist:
    if look.is_area:
        return Patch(facecolor=look.colour, label=look.label)
    return Line2D(
        [],
        [],
        color=look.colour,
        marker=look.marker,
        linestyle=look.dashes,
        markerfacecolor=look.face,
        label=look.label,
    )


def _finish(svg: str, title: str, alt: str) -> str:
    """Add what assistive technology reads; take out what differs between machines."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<\?xml.*?\?>\s*<!DOCTYPE.*?>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    head = (
        f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(alt)}</desc>\n'
        f"<style>text{{font-family:{_FONTS}}}{_night()}</style>\n"
    )
    opening = '<svg role="img" aria-labelledby="title desc" '
    return re.sub(r"<svg ([^>]*)>", lambda found: f"{opening}{found[1]}>\n{head}", svg, count=1)


def _night() -> str:
    """Return the rules that exchange light colours for dark ones in the styles that matplotlib writes."""
    rules = (
        f'[style*="{key}: {light}"]{{{key}:{night}!important}}'
        for light, night in DARK.items()
        for key in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark){{{''.join(rules)}}}"


__all__ = ["PAPER", "Figure", "FigureWriter", "Panel"]
