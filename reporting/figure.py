"""Writing a figure: two widths of SVG with title, description and dark colours, and its data as CSV."""

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
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from longdecode.reporting.drawing import unit_note
from longdecode.reporting.identity import DARK, FAINT, GRID, INK, MUTED, PAPER, Look

_FONTS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif'
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "longdecode",
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelsize": 8.0,
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
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.minor.size": 0,
    "ytick.major.size": 0,
    "text.color": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "lines.markeredgewidth": 1.1,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A written figure, as pages show it; ``caption`` and ``alt`` are plain text."""

    name: str
    title: str
    caption: str
    alt: str
    wide_size: tuple[int, int]
    narrow_size: tuple[int, int]

    @property
    def wide(self) -> str:
        """Path of the SVG for wide screens and print, relative to the pages."""
        return f"figures/{self.name}.svg"

    @property
    def narrow(self) -> str:
        """Path of the SVG for phones."""
        return f"figures/{self.name}.narrow.svg"

    @property
    def data(self) -> str:
        """Path of the CSV with every number that is drawn."""
        return f"figures/{self.name}.csv"


@dataclass(frozen=True, slots=True)
class Form:
    """The shape of one drawing: small panels in rows.

    Args:
        width_in: width of the whole in inches.
        columns: panels in a row.
        panel_in: height of one panel's axes in inches.
    """

    width_in: float
    columns: int
    panel_in: float


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
    """Labels of the axes, for each width the most panels in a row, their height where it is not the usual.

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
        """Draw the panels in both widths and write the data beside them.

        The legend names the methods in the data's column ``method``, unless the looks to name are given.
        """
        count = "one panel" if len(panels) == 1 else f"{len(panels)} panels"
        texts = {key: text.format(panels=count, **words.fields) for key, text in self._captions[words.kind].items()}
        looks = legend if legend is not None else self._named(set(data["method"]))
        narrow_in = 1.7 if layout.narrow == 1 else 1.25
        sizes = []
        for suffix, form in (
            ("", Form(min(7.8, 4.2 * len(panels)), _even(len(panels), layout.wide), layout.panel_in or 1.75)),
            (".narrow", Form(3.7, _even(len(panels), layout.narrow), layout.panel_in or narrow_in)),
        ):
            path = self.folder / f"{name}{suffix}.svg"
            sizes.append(_draw(path, texts["title"], texts["alt"], panels, form, looks, layout))
        data.to_csv(self.folder / f"{name}.csv", index=False, float_format="%.9g", lineterminator="\n")
        caption = f"{texts['caption']} {words.about}"
        figure = Figure(name, texts["title"], caption, texts["alt"], sizes[0], sizes[1])
        self.written.append(figure)
        return figure

    def _named(self, labels: set[str]) -> list[Look]:
        return [look for label, look in self.looks.items() if label in labels]


def _draw(
    path: Path,
    title: str,
    alt: str,
    panels: Sequence[Panel],
    form: Form,
    looks: Sequence[Look],
    layout: Layout,
) -> tuple[int, int]:
    """Draw one SVG; returns its size in CSS pixels. Margins are in inches, so that text keeps its size."""
    rows = math.ceil(len(panels) / form.columns)
    left, right, bottom, gap_in = 0.5, 0.12, 0.44, 0.42
    title_in = 0.3 + 0.14 * (layout.title_lines - 1)
    legend_columns, legend_rows = _legend_shape(looks, form.width_in)
    top = 0.1 + 0.19 * legend_rows
    height = top + rows * (title_in + form.panel_in) + (rows - 1) * gap_in + bottom
    panel_width = (form.width_in - left * form.columns - right) / form.columns
    with matplotlib.rc_context(_SETTINGS):
        canvas = Canvas(figsize=(form.width_in, height))
        for place, panel in enumerate(panels):
            row, column = divmod(place, form.columns)
            x = left + column * (panel_width + left)
            y = height - top - (row + 1) * (title_in + form.panel_in) - row * gap_in
            axes = canvas.add_axes((x / form.width_in, y / height, panel_width / form.width_in, form.panel_in / height))
            panel(axes)
            if column == 0 and layout.y_label:
                unit_note(axes, layout.y_label)
            axes.set_title(axes.get_title(loc="left"), loc="left", pad=16)
        middle = (left + form.width_in - right) / 2 / form.width_in
        canvas.text(middle, 0.05 / height, layout.x_label, ha="center", va="bottom", color=MUTED, size=8)
        handles = [_handle(look) for look in looks]
        canvas.legend(
            handles=_row_by_row(handles, legend_columns), loc="upper left", ncols=legend_columns,
            bbox_to_anchor=(0.0, 1.0), borderaxespad=0.1, handlelength=2.2, columnspacing=1.4, labelspacing=0.35,
        )  # fmt: skip
        canvas.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    path.write_text(_finish(path.read_text(encoding="utf-8"), title, alt), encoding="utf-8")
    return round(form.width_in * 96), round(height * 96)


def _even(panels: int, most: int) -> int:
    """Columns of at most ``most`` that leave no row much emptier than the others."""
    return math.ceil(panels / math.ceil(panels / most))


def _legend_shape(looks: Sequence[Look], width_in: float) -> tuple[int, int]:
    """Columns and rows of a legend that fits the width; a letter of the legend's font is about 0.065 inches wide."""
    longest = max((len(look.label) for look in looks), default=1)
    columns = max(1, min(len(looks), int(width_in / (0.48 + 0.065 * longest))))
    return columns, math.ceil(len(looks) / columns)


def _row_by_row(handles: Sequence[Artist], columns: int) -> list[Artist]:
    """Reordered so that a legend, which is filled column by column, reads row by row."""
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
    """Add what assistive technology reads and what a dark page needs; take out what differs between machines."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<\?xml.*?\?>\s*<!DOCTYPE.*?>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    head = (
        f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(alt)}</desc>\n'
        f"<style>text{{font-family:{_FONTS}}}{_dark_style()}</style>\n"
    )
    opening = '<svg role="img" aria-labelledby="title desc" '
    return re.sub(r"<svg ([^>]*)>", lambda found: f"{opening}{found[1]}>\n{head}", svg, count=1)


def _dark_style() -> str:
    rules = "".join(
        f'[style*="{attribute}: {light}"]{{{attribute}:{dark}!important}}'
        for light, dark in DARK.items()
        for attribute in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark){{{rules}}}"


__all__ = ["PAPER", "Figure", "FigureWriter", "Panel"]
