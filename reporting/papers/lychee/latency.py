"""Whole decode steps against context, the method over every baseline, and what cache correction costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from longdecode.reporting import drawing, wording
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.papers.blocks import Block, Cells, Compared, Comparison, Heading, Picture, Prose, agreement
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.lychee.common import METHOD, WORDS, hole
from longdecode.reporting.speed.measured import Speed, farthest
from longdecode.reporting.wording import short_tokens, slug

MAIN = (131072, 1)
SHOWN = ("full", METHOD, "tidal", "quest", "duo", "hf_full", "hf_full_static")
MOST_BATCHES = 3
"""Panels of the figure: the batches that reach the longest contexts."""
STOCK = ("full", "hf_full", "hf_full_static")
COLUMNS = ["model", "context", "batch", "label", "budget", "baseline", "ratio", "low", "high", "how"]
CORRECTION = ["model", "label", "budget", "context", "batch", "mode", "period", "step_us", "correction_us"]
CORRECTION += ["per_token_us", "ratio", "ratio_low", "ratio_high"]


def blocks(inputs: PaperInputs) -> list[Block]:
    """Figure, ratios over each baseline, limits by context, and correction, for every model that was timed."""
    words, speed = WORDS["latency"], inputs.speed
    limits = {name: inputs.published.figure("limits", name, context=MAIN[0]) for name in ("ideal", "copying")}
    numbers = {name: "" if figure is None else figure.text for name, figure in limits.items()}
    found: list[Block] = [Prose(words["text"].format(what=inputs.published.tables["latency"].what, **numbers))]
    models = [] if speed is None else [m for m in speed.models if METHOD in set(speed.ok(m)["label"])]
    if speed is None or not models:
        return [*found, _published_only(inputs), hole(inputs, words["hole"], "all"), *_correction(inputs, [])]
    ratios = baselines(inputs.folder)
    for model in models:
        if figure := _figure(inputs, speed, model):
            found.append(Picture(figure))
        mine = pd.concat([ratios[ratios["model"] == model], _over_methods(speed, model)])
        mine = mine[mine["label"] == METHOD]
        found += _compared(inputs, speed, model, mine)
        if ratios[ratios["model"] == model].empty:
            found.append(hole(inputs, words["hole_baselines"], "all"))
        found += _limits(inputs, speed, model)
    return [*found, *_correction(inputs, models)]


def baselines(folder: Path) -> pd.DataFrame:
    """over_baselines.csv, or an empty frame of its columns."""
    path = folder / "over_baselines.csv"
    return pd.read_csv(path, dtype={"budget": str}) if path.exists() else pd.DataFrame(columns=COLUMNS)


def _over_methods(speed: Speed, model: str) -> pd.DataFrame:
    """The method over other methods: both were paired with Full, so a ratio of two ratios, bounds in quadrature."""
    rows = speed.ok(model)
    rows = rows[rows["ratio"].notna()]
    found = []
    for _, ours in rows[rows["label"] == METHOD].iterrows():
        there = rows[(rows["context"] == ours["context"]) & (rows["batch"] == ours["batch"])]
        for label in ("tidal", "quest", "duo"):
            for _, other in there[(there["label"] == label) & (there["budget"] == ours["budget"])].iterrows():
                value = ours["ratio"] / other["ratio"]
                spread = [
                    ((ours[a] / ours["ratio"] - 1) ** 2 + (other[b] / other["ratio"] - 1) ** 2) ** 0.5
                    for a, b in (("ratio_low", "ratio_high"), ("ratio_high", "ratio_low"))
                ]
                found.append([model, ours["context"], ours["batch"], METHOD, ours["budget"], label, value,
                              value * (1 - spread[0]), value * (1 + spread[1]), "through full"])  # fmt: skip
    return pd.DataFrame(found, columns=COLUMNS)


def _figure(inputs: PaperInputs, speed: Speed, model: str) -> Figure | None:
    rows = speed.ok(model)
    main = speed.main_budget(model)
    rows = rows[rows["label"].isin(SHOWN) & rows["budget"].isin(["full", main or "full"])]
    lines = [b for b in set(rows["batch"]) if rows[rows["batch"] == b]["context"].nunique() > 1]
    batches = farthest(rows[rows["batch"].isin(lines)], MOST_BATCHES)
    if not batches:
        return None
    rows = rows[rows["batch"].isin(batches)]
    low, high = rows["p5_us"].min() / 1e3, rows["p95_us"].max() / 1e3
    panels = [_panel(inputs, rows[rows["batch"] == batch], int(batch), (low, high)) for batch in batches]
    labels = [label for label in inputs.writer.looks if label in set(rows["label"])]
    first = rows[rows["batch"] == batches[0]]
    ends = []
    for label in labels:
        mine = first[first["label"] == label].sort_values("context")["median_us"]
        if len(mine):
            ends.append(f"{label} {wording.milliseconds(mine.iloc[0])} to {wording.milliseconds(mine.iloc[-1])}")
    fields = {"readings": f"ms at batch {int(batches[0])}: {', '.join(ends)}",
              "budget": "all" if main is None else wording.budget(main)}  # fmt: skip
    words = Words("paper_latency", inputs.timed(model), fields)
    columns = [
        "model",
        "label",
        "budget",
        "context",
        "batch",
        "n",
        "median_us",
        "p5_us",
        "p95_us",
        "floor_us",
        "device",
    ]
    legend = [inputs.writer.looks[label] for label in labels]
    layout = Layout("context (tokens)", "ms per step")
    name = f"paper-lychee-latency-{slug(model)}"
    return inputs.writer.write(name, words, panels, rows[columns], layout, legend)


def _panel(
    inputs: PaperInputs, rows: pd.DataFrame, batch: int, limits: tuple[float, float]
) -> Callable[[Axes], None]:  # fmt: skip
    def draw(axes: Axes) -> None:
        axes.set_title(f"batch {batch}")
        sizes = sorted(set(rows["context"]))
        drawing.token_axis(axes, sizes, [short_tokens(int(size)) for size in sizes], 0.2)
        present = [label for label in inputs.writer.looks if label in set(rows["label"])]
        for place, label in enumerate(present):
            mine = rows[rows["label"] == label].sort_values("context")
            values = mine.assign(value=mine["median_us"], low=mine["p5_us"], high=mine["p95_us"])
            drawing.line(axes, inputs.writer.looks[label], list(mine["context"]), values, 1e-3, place=place)
        drawing.log_values(axes, *limits, lambda value: f"{value:g}")

    return draw


def _compared(inputs: PaperInputs, speed: Speed, model: str, table: pd.DataFrame) -> list[Block]:
    """Ratios at the published place, which baseline comes nearest, and every other place folded away."""
    if table.empty:
        return []
    main = speed.main_budget(model)
    at_main = table[(table["context"] == MAIN[0]) & (table["batch"] == MAIN[1]) & (table["budget"] == main)]
    heads = ("Over", "Context", "Batch", "Budget")
    caption = f"Times as fast as each baseline. {inputs.timed(model)}"
    rest = table.drop(at_main.index) if table.index.is_unique else table
    found: list[Block] = []
    if len(at_main):
        found.append(Comparison(caption, heads, [_row(inputs, row) for _, row in at_main.iterrows()], "times"))
        if nearest := _nearest(inputs, at_main):
            found.append(Prose(nearest))
    rows = [_row(inputs, row) for _, row in rest.sort_values(["context", "batch"], kind="stable").iterrows()]
    found.append(Comparison(caption, heads, rows, "times", fold="Every context, batch and budget"))
    return found


def _row(inputs: PaperInputs, row: pd.Series) -> Compared:
    place = {"context": int(row["context"]), "batch": int(row["batch"])}
    baseline = str(row["baseline"])
    in_print = "full" if baseline in STOCK else baseline
    printed = inputs.published.figure("latency", "ratio", baseline=in_print, **place)
    value, low, high = (float(row[name]) for name in ("ratio", "low", "high"))
    known = pd.notna(value)
    verdict, level = agreement(None if printed is None else printed.value, value, low, high)
    limit = inputs.published.figure("limits", "ideal", context=place["context"]) if place["batch"] == 1 else None
    why = WORDS["latency"]["reasons"].get(baseline, "")
    why = why.format(ideal=wording.DASH if limit is None else limit.text)
    return Compared(
        of=[baseline, short_tokens(place["context"]), str(place["batch"]), wording.budget(str(row["budget"]))],
        published=wording.DASH if printed is None else printed.text,
        mark="" if printed is None else printed.mark,
        measured=wording.ratio(value) if known else wording.DASH,
        interval=wording.interval(low, high, 2) if known else "",
        verdict=verdict if known else "not measured",
        level=level if known else "muted",
        reason=f"{why} ({row['how']})" if why else str(row["how"]),
    )


def _nearest(inputs: PaperInputs, rows: pd.DataFrame) -> str:
    printed = inputs.published.figure("latency", "ratio", baseline="full", context=MAIN[0], batch=MAIN[1])
    stock = rows[rows["baseline"].isin(STOCK) & rows["ratio"].notna()]
    if printed is None or stock.empty:
        return ""
    best = stock.iloc[int((stock["ratio"] - printed.value).abs().to_numpy().argmin())]
    where = f"{short_tokens(MAIN[0])}, batch {MAIN[1]}"
    ratio, baseline = wording.ratio(best["ratio"]), f"`{best['baseline']}`"
    return str(WORDS["latency"]["nearest"].format(where=where, baseline=baseline, published=printed.text, ratio=ratio))


def _limits(inputs: PaperInputs, speed: Speed, model: str) -> list[Block]:
    """What memory allows by context (arithmetic for the 8B shape), beside what was measured over our Full."""
    rows = speed.ok(model)
    rows = rows[(rows["label"] == METHOD) & (rows["batch"] == 1) & (rows["budget"] == (speed.main_budget(model) or ""))]
    shown = []
    for row in inputs.published.tables["limits"].rows:
        mine = rows[(rows["context"] == row["context"]) & rows["ratio"].notna()]
        figures = [inputs.published.figure("limits", name, context=row["context"]) for name in ("ideal", "copying")]
        ratio = wording.ratio(mine["ratio"].iloc[0]) if len(mine) else "not measured"
        bounds = wording.interval(mine["ratio_low"].iloc[0], mine["ratio_high"].iloc[0], 2) if len(mine) else ""
        shown.append([short_tokens(row["context"]), *(f.text if f else wording.DASH for f in figures), ratio, bounds])
    heads = (
        "Context",
        "Limit over an ideal dense decoder",
        "Limit over one that copies its cache",
        "Over our Full",
        "Interval",
    )
    caption = "Limits by memory traffic, batch 1, 32 retrieval heads, 4,096 tokens: arithmetic, not published."
    return [Cells(caption, heads, shown, frozenset({0, 1, 2, 3}))] if model == "llama3-8b" else []


def _correction(inputs: PaperInputs, models: Sequence[str]) -> list[Block]:
    words = WORDS["correction"]
    found: list[Block] = [Heading(words["title"], "correction"), Prose(words["text"])]
    path = inputs.folder / "correction.csv"
    table = pd.read_csv(path, dtype={"budget": str}) if path.exists() else pd.DataFrame(columns=CORRECTION)
    table = table[table["model"].isin(models)]
    if table.empty:
        return [*found, hole(inputs, words["hole"], "all")]
    rows = [
        [
            row["label"], row["mode"], f"{int(row['period'])}",
            short_tokens(int(row["context"])), f"{int(row['batch'])}",
            wording.milliseconds(row["step_us"]), wording.milliseconds(row["correction_us"]),
            wording.milliseconds(row["per_token_us"]),
            wording.number(100 * (row["per_token_us"] / row["step_us"] - 1), 1, signed=True),
            wording.ratio(row["ratio"]), wording.interval(row["ratio_low"], row["ratio_high"], 2),
        ]
        for _, row in table.sort_values(["model", "context", "batch", "label"], kind="stable").iterrows()
    ]  # fmt: skip
    heads = (
        *("Label", "Correction", "Period", "Context", "Batch", "Step, ms", "One correction, ms", "Per token, ms"),
        *("More, %", "Over Full", "Interval"),
    )
    caption = "Per token: the step and its share of a correction."
    return [*found, Cells(caption, heads, rows, frozenset({2, 3, 4, 5, 6, 7, 8, 9}))]


def _published_only(inputs: PaperInputs) -> Comparison:
    rows = []
    for row in inputs.published.tables["latency"].rows:
        keys = {key: row[key] for key in ("baseline", "context", "batch")}
        printed = inputs.published.figure("latency", "ratio", **keys)
        of = [row["baseline"], short_tokens(row["context"]), str(row["batch"]), "4,096 tokens"]
        if printed is not None:
            rows.append(Compared(of, printed.text, printed.mark, wording.DASH, "", "not measured"))
    return Comparison("In print.", ("Over", "Context", "Batch", "Budget"), rows, "times")
