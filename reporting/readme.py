"""Write README.md and its figure; every measured number is looked up in a table of ``results/``.

``python -m longdecode.reporting.readme``. A template (``docs/README.md.j2``) names rows and holds no result itself: a
row that is not there, or is there twice, ends with an error.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from longdecode.analysis.declaration import read_table
from longdecode.engine.errors import LongDecodeError
from longdecode.reporting import charts, tradeoff
from longdecode.reporting.runs import read_run
from longdecode.reporting.site import Site
from longdecode.reporting.tradeoff import PLACE, choose

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = "README.md.j2"
FIGURE = Path("docs/figures/trade-off.svg")
SHOWN = {"model": "qwen2.5-coder-1.5b", "context": 16384, "batch": 8, "suite": "ruler", "task": "all"}
"""The cells of the figure, of the run ``qwen``."""
_UNITS = {"points": 1, "nats": 3, "nats/token": 3, "ms": 2}


def render(root: Path = ROOT) -> str:
    """Return the text of README.md.

    Raises:
        LongDecodeError: a row that the template names is missing, or not the only one.
    """
    lookups = _Tables(root / "results")
    environment = Environment(
        loader=FileSystemLoader(root / "docs"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    names = ("score", "loss", "speed", "range_", "count", "verdict", "claim")
    return environment.get_template(TEMPLATE).render({name: getattr(lookups, name) for name in names})


def figure(root: Path = ROOT) -> str:
    """Return the README's figure as SVG: times as fast as Full against points lost."""
    rows = Site([read_run(root / "results" / "qwen")], root / "build" / "readme").joined
    place = rows[(rows[PLACE[1:]] == [SHOWN[name] for name in PLACE[1:]]).all(axis=1)]
    part = place[(place.suite == SHOWN["suite"]) & (place.task == SHOWN["task"])]
    view = tradeoff.tradeoff_view(part, choose(place))
    picture = charts.static(tradeoff.filled(tradeoff.tradeoff("points"), view), width=860)
    return picture.replace("<svg ", '<svg style="background:#fff" ', 1)


class _Tables:
    """Look up single rows of the tables of ``results/``, as text."""

    def __init__(self, results: Path):
        self.table = cache(lambda profile, name: read_table(results / profile / f"{name}.csv"))

    def row(self, profile: str, table: str, **wanted: Any) -> pd.Series:
        """Return the one row whose columns have these values."""
        found = self.table(profile, table)
        for column, value in wanted.items():
            found = found[found[column] == value]
        if len(found) != 1:
            raise LongDecodeError(f"results/{profile}/{table}.csv has {len(found)} rows with {wanted}; one is wanted")
        return found.iloc[0]

    def score(self, profile: str, side: str, **wanted: Any) -> str:
        """Return the score of side ``a`` or ``b`` of a comparison."""
        return f"{self.row(profile, 'comparisons', **wanted)[f'{side}_value']:.1f} %"

    def loss(self, profile: str, **wanted: Any) -> str:
        """Return a difference with its interval."""
        row = self.row(profile, "comparisons", **wanted)
        digits = _UNITS[row.unit]
        shown = [_signed(row[name], digits) for name in ("difference", "low", "high")]
        return f"{shown[0]} {row.unit.replace('/', ' a ')} [{shown[1]}, {shown[2]}]"

    def verdict(self, profile: str, **wanted: Any) -> str:
        """Return the verdict of a comparison."""
        return str(self.row(profile, "comparisons", **wanted).verdict)

    def count(self, profile: str, **wanted: Any) -> str:
        """Return the units behind a comparison."""
        return f"{int(self.row(profile, 'comparisons', **wanted).n)}"

    def speed(self, profile: str, **wanted: Any) -> str:
        """Return the times as fast as its reference of a timed row."""
        return f"{self.row(profile, 'speed', **wanted).ratio:.2f}"

    def range_(self, profile: str, **wanted: Any) -> str:
        """Return the interval of ``speed``."""
        row = self.row(profile, "speed", **wanted)
        return f"[{row.ratio_low:.2f}, {row.ratio_high:.2f}]"

    def claim(self, profile: str, paper: str, claim: str) -> str:
        """Return the cells of a claim's row: published, like for like, verdict, why."""
        row = self.row(profile, "claims", paper=paper, claim=claim)
        sign = {"times": "×", "percent": " %"}.get(str(row.unit), f" {row.unit}")
        ours = "–" if pd.isna(row.like_for_like) else f"{row.like_for_like:.2f}{sign}"
        if pd.notna(row.low) and pd.notna(row.like_for_like):
            ours += f" [{row.low:.2f}, {row.high:.2f}]"
        why = "" if pd.isna(row.why) else str(row.why)
        return f"{row.published}{sign} | {ours} | {row.verdict} | {why}"


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


if __name__ == "__main__":
    (ROOT / "README.md").write_text(render(), encoding="utf-8")
    (ROOT / FIGURE).write_text(figure(), encoding="utf-8")
