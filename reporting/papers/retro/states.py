"""Show what selections share along a text, how near corrected states come to Full's, and the loss along it."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes

from longdecode.evals.storage import read_frame
from longdecode.reporting import drawing, wording
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.papers.blocks import Block, Compared, Comparison, Level, Picture, Prose, compared
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.printed import printed_only
from longdecode.reporting.wording import number, short_tokens, slug

MINUS = "_minus_quest"
STATES = {"key": "keys", "value": "values", "output": "output, own step", "output_final": "output, corrected"}
OVERLAPS = {"overlap_top": "in its top k", "overlap_next": "among its next k"}
BUDGETS = {"effective_budget": "times"}


def overlaps(inputs: PaperInputs) -> list[Block]:
    """Return overlap and effective budget by distance beside the figures in print."""
    words, published = inputs.words("overlap"), inputs.published
    texts = {name: published.tables[name].what for name in ("overlap", "effective_budget")}
    found: list[Block] = [Prose(words["text"].format(**texts))]
    tables = _tables(inputs)
    if not tables:
        missing = inputs.missing(words["missing"], "retro")
        return [*found, printed_only(published, "overlap"), printed_only(published, "effective_budget"), missing]
    for model, table in tables.items():
        rows = [
            _overlap_row(inputs, str(measure), row)
            for measure in (*OVERLAPS, *BUDGETS)
            for _, row in table[(table["measure"] == measure) & table["index"].isin((1, 3, 7, 15))].iterrows()
        ]
        caption = words["caption"].format(about=inputs.about(model, None))
        found.append(Comparison(caption, ("What", "Steps", "Context", "Budget"), rows, "%, times"))
    return found


def exposure(inputs: PaperInputs) -> Compared | None:
    """Return the largest effective budget of seven steps ahead that was measured."""
    rows = [
        row
        for table in _tables(inputs).values()
        for _, row in table[(table["measure"] == "effective_budget") & (table["index"] == 7)].iterrows()
    ]
    return _overlap_row(inputs, "effective_budget", max(rows, key=lambda row: float(row["value"]))) if rows else None


def states(inputs: PaperInputs) -> list[Block]:
    """Return the errors by layer as a figure, and each label's error minus Quest's."""
    words = inputs.words("states")
    found: list[Block] = [Prose(text) for text in words["text"]]
    tables = _tables(inputs)
    for model, table in tables.items():
        found.append(Picture(_by_layer(inputs, model, table)))
        rows = []
        for state, name in STATES.items():
            mine = table[(table["measure"] == f"{state}_error{MINUS}") & (table["layer"] < 0)]
            rows += [_nearer(row, [str(row["label"]), name]) for _, row in mine.iterrows()]
        caption = words["caption"].format(about=inputs.about(model, None))
        found.append(Comparison(caption, ("Label", "State", "Context", "Budget"), rows, "% of Full's norm"))
    return found if tables else [*found, inputs.missing(words["missing"], "retro")]


def along(inputs: PaperInputs) -> list[Block]:
    """Return the loss over Full's along the continuation as a figure, and each label's over Quest's."""
    words = inputs.words("along")
    found: list[Block] = [Prose(words["text"])]
    tables = _tables(inputs)
    for model, table in tables.items():
        found.append(Picture(_along(inputs, model, table)))
        mine = table[table["measure"] == f"loss_gap{MINUS}"]
        rows = [_lower(row) for _, row in mine.iterrows()]
        caption = words["caption"].format(about=inputs.about(model, None))
        heads = ("Label", "Up to step", "Context", "Budget")
        found.append(Comparison(caption, heads, rows, "millinats", fold="Minus Quest, part by part"))
    return found if tables else [*found, inputs.missing(words["missing"], "retro")]


def _tables(inputs: PaperInputs) -> dict[str, pd.DataFrame]:
    """Return what was measured by model."""
    folder = inputs.folder / "retrospection"
    return {path.stem: read_frame(path) for path in sorted(folder.glob("*.parquet"))}


def _where(row: pd.Series) -> list[str]:
    return [short_tokens(int(row["context"])), wording.budget(str(row["budget"]))]


def _overlap_row(inputs: PaperInputs, measure: str, row: pd.Series) -> Compared:
    published, index = inputs.published, int(row["index"])
    bounds = [row[name] for name in ("value", "low", "high")]
    if measure in BUDGETS:
        printed = published.figure("effective_budget", "times", steps=index)
        of = ["effective budget", str(index), *_where(row)]
        measured, interval = number(bounds[0], 2), wording.interval(bounds[1], bounds[2], 2)
    else:
        low, high = (published.figure("overlap", "share", ranks=measure, bound=b) for b in ("lowest", "highest"))
        printed = low if index == 1 and low is not None and 100 * bounds[0] < low.value else None
        printed = high if index == 1 and printed is None else printed
        of = [f"retrieved pages that an earlier query had {OVERLAPS[measure]}", str(index), *_where(row)]
        measured = number(100 * bounds[0], 0)
        interval = wording.interval(100 * bounds[1], 100 * bounds[2], 0)
    verdict: tuple[str, Level] = ("not comparable", "muted") if printed else ("nothing published", "muted")
    return compared(
        of,
        printed,
        measured,
        interval,
        *verdict,
        inputs.words("overlap")["reason"].format(task=row["task"]) if printed else "",
    )


def _nearer(row: pd.Series, of: list[str]) -> Compared:
    verdict, level = _sign(row, "nearer to Full", "farther from Full")
    bounds = wording.interval(100 * row["low"], 100 * row["high"], 2, signed=True)
    n = f"n = {int(row['n'])} texts"
    return compared([*of, *_where(row)], None, number(100 * row["value"], 2, signed=True), bounds, verdict, level, n)


def _lower(row: pd.Series) -> Compared:
    verdict, level = _sign(row, "lower loss", "higher loss")
    of = [str(row["label"]), str(int(row["index"])), *_where(row)]
    bounds = wording.interval(1000 * row["low"], 1000 * row["high"], 2, signed=True)
    return compared(of, None, number(1000 * row["value"], 2, signed=True), bounds, verdict, level)


def _sign(row: pd.Series, below: str, above: str) -> tuple[str, Level]:
    if row["high"] < 0:
        return below, "shown"
    return (above, "worse") if row["low"] > 0 else ("cannot be told apart", "muted")


def _place(table: pd.DataFrame) -> tuple[int, str]:
    """Return the longest context and the smallest budget that was looked at."""
    budgets = sorted(set(table["budget"]), key=wording.budget_order)
    return int(table["context"].max()), budgets[0]


def _of_place(table: pd.DataFrame) -> pd.DataFrame:
    context, budget = _place(table)
    return table[(table["context"] == context) & (table["budget"] == budget)]


def _by_layer(inputs: PaperInputs, model: str, table: pd.DataFrame) -> Figure:
    rows = _of_place(table)
    wanted = {f"{state}_error": name for state, name in STATES.items()}
    data = rows[rows["measure"].isin(wanted) & (rows["layer"] >= 0)].rename(columns={"label": "method"})
    panels = [_lines(inputs, data[data["measure"] == measure], name, "layer") for measure, name in wanted.items()]
    last = data[data["layer"] == data["layer"].max()]
    readings = "; ".join(
        f"{wanted[measure]} in the last layer: "
        + ", ".join(f"{r['method']} {100 * r['value']:.1f} %" for _, r in mine.iterrows())
        for measure, mine in last.groupby("measure", sort=False)
    )
    return _write(inputs, model, "states", panels, data, Layout("layer", "error (% of Full's norm)", wide=4), readings)


def _along(inputs: PaperInputs, model: str, table: pd.DataFrame) -> Figure:
    rows = table[(table["measure"] == "loss_gap") & (table["context"] == _place(table)[0])]
    data = rows.rename(columns={"label": "method"})
    panels = [
        _lines(inputs, mine, wording.budget(str(budget)), "index", 1000.0)
        for budget, mine in data.groupby("budget", sort=False)
    ]
    ends = data[data["index"] == data["index"].max()]
    readings = "; ".join(f"{r['method']} at {r['budget']}: {1000 * r['value']:.1f}" for _, r in ends.iterrows())
    return _write(inputs, model, "along", panels, data, Layout("tokens continued", "loss (millinats)"), readings)


def _write(
    inputs: PaperInputs, model: str, part: str, panels: list[Callable[[Axes], None]], data: pd.DataFrame,
    layout: Layout, readings: str,
) -> Figure:  # fmt: skip
    context, budget = _place(data)
    fields = {
        "readings": readings, "n": f"n = {int(data['n'].max())}", "context": f"{context:,}",
        "budget": wording.budget(budget), "task": str(data["task"].iloc[0]),
    }  # fmt: skip
    words = Words(f"paper_retro_{part}", inputs.about(model, None), fields)
    return inputs.writer.write(f"paper-retro-{part}-{slug(model)}", words, panels, data, layout)


def _lines(
    inputs: PaperInputs, rows: pd.DataFrame, title: str, x: str, factor: float = 100.0
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title(title)
        for place, (label, look) in enumerate(inputs.writer.looks.items()):
            mine = rows[rows["method"] == label].sort_values(x)
            if len(mine):
                drawing.line(axes, look, list(mine[x]), mine, factor, place=place)
        drawing.score_axis(axes, False)

    return draw
