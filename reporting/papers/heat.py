"""Heat maps: cells of one colour whose opacity is the value, so that they follow the page into the dark."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray


def cell(axes: Axes, x: float, y: float, value: float, colour: str) -> None:
    """A unit square with its lower left corner at ``(x, y)``, as opaque as ``value`` in [0, 1]."""
    if value > 0:
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, alpha=min(1.0, value), linewidth=0))


def heat(axes: Axes, values: NDArray[np.float64], colour: str) -> None:
    """A map of ``values`` ``[columns, rows]`` in [0, 1]; NaN stays empty. Columns and rows are numbered from 0."""
    columns, rows = values.shape
    for x in range(columns):
        for y in range(rows):
            if np.isfinite(values[x, y]):
                cell(axes, x, y, float(values[x, y]), colour)
    axes.set_xlim(0, columns)
    axes.set_ylim(0, rows)
    axes.grid(visible=False)
    for axis, count in ((axes.xaxis, columns), (axes.yaxis, rows)):
        step = next(step for step in (1, 2, 4, 8, 16, 32, 64) if count / step <= 8)
        axis.set_major_locator(FixedLocator([place + 0.5 for place in range(0, count, step)]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value - 0.5:.0f}"))
