"""Draw what is read: bytes per token, and tokens read against tokens declared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from longdecode.evals.budgets import bytes_share
from longdecode.reporting import drawing
from longdecode.reporting.curves import MAX_PANELS
from longdecode.reporting.figure import Figure, FigureWriter, Layout, Words
from longdecode.reporting.identity import Look
from longdecode.reporting.quality import with_traffic
from longdecode.reporting.results import ALL_TASKS, REFERENCE_METHOD, Results
from longdecode.reporting.wording import budget, megabytes, short_tokens, slug

_PLACE = ["model", "method", "kind", "budget", "budget_tokens", "share", "context"]
_MEASURES = ["kv_bytes_per_step", "metadata_bytes_per_step", "bytes_per_step", "bytes_share"]
_GUIDE_POINTS = 100
_READS = ["kv_tokens_read", "kv_tokens_read_sparse"]


def cells(results: Results, model: str) -> pd.DataFrame:
    """Return bytes and tokens read per token by method, budget and context: means over tasks."""
    rows = with_traffic(results.summary[(results.summary["model"] == model) & (results.summary["task"] != ALL_TASKS)])
    keyed = rows.assign(budget_tokens=rows["budget_tokens"].fillna(-1))
    table = keyed.groupby(_PLACE, sort=False)[[*_MEASURES, *_READS]].mean().reset_index()
    table["budget_tokens"] = table["budget_tokens"].replace(-1, np.nan)
    statuses = keyed.groupby(_PLACE, sort=False)["status"].agg(lambda found: "; ".join(sorted(set(found))))
    table["status"] = statuses.to_numpy()
    table["kept"] = table["kv_tokens_read_sparse"] / table["budget_tokens"]
    order = {label: place for place, label in enumerate(results.labels)}
    return table.sort_values(["context", "share", "method"], key=lambda c: c.map(order) if c.name == "method" else c)


def against_context(results: Results, writer: FigureWriter, model: str, about: str) -> Figure | None:
    """Draw bytes per token against context, a panel for each of a few budgets."""
    table = _in_tokens(cells(results, model))
    table = table[table["bytes_per_step"].notna()]
    swept = table[table["kind"] != REFERENCE_METHOD].sort_values("share")
    budgets = list(dict.fromkeys(swept["budget"]))
    if not budgets or table["context"].nunique() < 2:
        return None
    if len(budgets) > MAX_PANELS:
        budgets = [budgets[round(i)] for i in np.linspace(0, len(budgets) - 1, MAX_PANELS)]
    panels = [_context_panel(writer.looks, table, text) for text in budgets]
    layout = Layout("context (tokens)", "MB per token", wide=4)
    return writer.write(f"traffic-context-{slug(model)}", Words("traffic_context", about, {}), panels, table, layout)


def against_budget(results: Results, writer: FigureWriter, model: str, about: str) -> Figure | None:
    """Draw bytes per token as a share of Full's against budget, at the longest context; others look alike."""
    table = _in_tokens(cells(results, model))
    swept = table[(table["kind"] != REFERENCE_METHOD) & table["bytes_share"].notna()]
    if swept.empty:
        return None
    swept = swept[swept["context"] == swept["context"].max()]
    panels = [_share_panel(writer.looks, swept)]
    layout = Layout("budget (% of context)", "bytes read (% of Full)", panel_in=2.6)
    return writer.write(f"traffic-budget-{slug(model)}", Words("traffic_budget", about, {}), panels, swept, layout)


def achieved(results: Results, writer: FigureWriter, model: str, about: str) -> Figure | None:
    """Draw tokens really read against tokens declared, a panel for each context."""
    table = _in_tokens(cells(results, model))
    swept = table[(table["kind"] != REFERENCE_METHOD) & table["kept"].notna()]
    contexts = sorted(set(swept["context"]))
    if not contexts:
        return None
    panels = [_kept_panel(writer.looks, swept[swept["context"] == context]) for context in contexts]
    layout = Layout("declared budget (tokens per KV head)", "read (% of declared)", wide=4)
    return writer.write(f"achieved-{slug(model)}", Words("achieved", about, {}), panels, swept, layout)


def _in_tokens(table: pd.DataFrame) -> pd.DataFrame:
    """The cells at budgets in tokens; at equal bytes every method reads the same by construction."""
    return table[table["budget"].map(bytes_share).isna()]


def _context_panel(looks: dict[str, Look], table: pd.DataFrame, text: str) -> Callable[[Axes], None]:
    rows = table[(table["budget"] == text) | (table["kind"] == REFERENCE_METHOD)]

    def draw(axes: Axes) -> None:
        axes.set_title(f"budget {budget(text)}")
        contexts = sorted(set(table["context"]))
        drawing.token_axis(axes, contexts, [short_tokens(context) for context in contexts])
        axes.set_yscale("log")
        for label in looks:
            mine = rows[rows["method"] == label].sort_values("context")
            if len(mine):
                _plain_line(axes, looks[label], mine["context"], mine["bytes_per_step"])
        values = table["bytes_per_step"]
        axes.set_ylim(values.min() / 1.4, values.max() * 1.4)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: megabytes(value)))

    return draw


def _share_panel(looks: dict[str, Look], rows: pd.DataFrame) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title(f"{int(rows['context'].iloc[0]):,} tokens")
        drawing.budget_axis(axes, rows["share"])
        guide = np.geomspace(*axes.get_xlim(), _GUIDE_POINTS)  # two points would draw a chord on a logarithmic axis
        drawing.guide(axes, list(guide), list(guide))
        for label in looks:
            mine = rows[rows["method"] == label].sort_values("share")
            if len(mine):
                _plain_line(axes, looks[label], 100 * mine["share"], 100 * mine["bytes_share"])
        drawing.level(axes, 100, "Full")
        axes.set_ylim(0, max(112.0, 105 * float(rows["bytes_share"].max())))

    return draw


def _kept_panel(looks: dict[str, Look], rows: pd.DataFrame) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title(f"{int(rows['context'].iloc[0]):,} tokens")
        drawing.token_axis(axes, rows["budget_tokens"])
        for place, label in enumerate(looks):
            mine = rows[rows["method"] == label].sort_values("budget_tokens")
            if len(mine):
                at = drawing.dodged(axes, list(mine["budget_tokens"]), place - 1)
                _plain_line(axes, looks[label], pd.Series(at), 100 * mine["kept"])
        drawing.level(axes, 100, "as declared")
        axes.set_ylim(0, max(110.0, 108 * float(rows["kept"].max())))

    return draw


def _plain_line(axes: Axes, look: Look, x: pd.Series, y: pd.Series) -> None:
    marker = look.marker if look.marker or len(x) > 1 else "_"  # a line of one point would not show
    axes.plot(x, y, color=look.colour, linestyle=look.dashes, marker=marker, markerfacecolor=look.face)
