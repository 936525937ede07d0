"""The hybrid-head kernel over dense flash attention, by heads that read everything, batch and context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

from longdecode.reporting import drawing, wording
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.identity import FAINT, HUES, Look
from longdecode.reporting.papers.blocks import Block, Cells, Compared, Comparison, Picture, Prose, agreement
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.lychee.common import WORDS, hole
from longdecode.reporting.speed.measured import OURS, Speed, few
from longdecode.reporting.speed.tables import against
from longdecode.reporting.wording import short_tokens, slug

OP = "hybrid_attention"
SCORED = f"{OP}_scored"
FLASH = "torch_flash"
KEYS = ["subject", "budget", "context", "batch", "full_heads"]
_MARKERS = ("o", "s", "D", "^", "v", "P")


def blocks(inputs: PaperInputs) -> list[Block]:
    """For every shape: the figure, the published cell beside ours, and all sizes."""
    words = WORDS["kernel"]
    found: list[Block] = [Prose(words["text"].format(what=inputs.published.tables["kernel"].what))]
    speed = inputs.speed
    models = [] if speed is None else list(dict.fromkeys(ratios(speed)["model"]))
    if speed is None or not models:
        return [*found, _published_only(inputs), hole(inputs, words["hole"], "all")]
    for model in models:
        table = ratios(speed)
        table = table[table["model"] == model]
        if figure := _figure(inputs, model, table[table["subject"] == OP]):
            found.append(Picture(figure))
        found.append(_beside(inputs, table))
        found.append(_every_size(table))
    return found


def ratios(speed: Speed) -> pd.DataFrame:
    """One row a size of the hybrid kernels: our time, flash's, and how many times as fast ours is, from pairs."""
    rows = speed.kernels()
    rows = rows[rows["subject"].astype(str).str.startswith(OP)]
    found = []
    for _, size in rows.groupby(["model", *KEYS], sort=False):
        ours = size[(size["label"] == OURS) & (size["status"] == "ok")]
        flash = size[(size["label"] == FLASH) & (size["status"] == "ok")]
        if ours.empty:
            continue
        mine = ours.iloc[0]
        pair = against(flash.iloc[0], size) if len(flash) else None
        value, low, high = pair or (float("nan"),) * 3
        found.append(
            {"model": mine["model"], **{key: mine[key] for key in KEYS}, "full_heads": int(mine["full_heads"])}
            | {name: mine[name] for name in ("median_us", "p5_us", "p95_us", "n", "fraction", "floor_us", "device")}
            | {"flash_us": flash["median_us"].iloc[0] if len(flash) else float("nan")}
            | {"ratio": value, "ratio_low": low, "ratio_high": high, "bound": _bound(size, mine, flash)}
        )
    columns = ("model", *KEYS, "median_us", "p5_us", "p95_us", "n", "fraction", "floor_us", "device", "flash_us")
    return pd.DataFrame(found, columns=[*columns, "ratio", "ratio_low", "ratio_high", "bound"])


def _bound(size: pd.DataFrame, mine: pd.Series, flash: pd.DataFrame) -> float:
    """Bytes that dense attention must read over those that ours must: no kernel limited by memory exceeds it."""
    return float(flash["bytes_min"].iloc[0] / mine["bytes_min"]) if len(flash) else float("nan")


def _figure(inputs: PaperInputs, model: str, table: pd.DataFrame) -> Figure | None:
    rows = table[table["ratio"].notna()]
    if rows.empty or rows["full_heads"].nunique() < 2:
        return None
    budget = _main_budget(rows)
    rows = rows[rows["budget"] == budget]
    batches = [int(batch) for batch in few(sorted(set(rows["batch"])), 4)]
    looks = {
        batch: Look(f"batch {batch}", HUES[place % len(HUES)], _MARKERS[place], False, False)
        for place, batch in enumerate(batches)
    }
    limit = Look("bound by bytes, largest batch", FAINT, "", False, False, is_ceiling=True)
    contexts = sorted(set(rows["context"]))
    high = max(float(rows["ratio_high"].max()), float(rows["bound"].max()))
    panels = [_panel(looks, rows[rows["context"] == context], int(context), high) for context in contexts]
    last = rows[(rows["context"] == contexts[-1]) & (rows["batch"] == batches[-1])].sort_values("full_heads")
    ends = ", ".join(f"{row['full_heads']:.0f}: {row['ratio']:.2f}" for _, row in last.iterrows())
    fields = {
        "budget": wording.budget(budget), "n": f"n = {int(rows['n'].max())}",
        "readings": f"times as fast by heads that read everything, {short_tokens(int(contexts[-1]))}, batch "
        f"{batches[-1]}: {ends}",
    }  # fmt: skip
    about = f"Heads of {model.removesuffix('-shape')}, random values. Device: {rows['device'].iloc[0]}."
    layout = Layout("KV heads that read everything, of 8", "times as fast as flash", wide=4)
    name = f"paper-lychee-kernel-{slug(model)}"
    return inputs.writer.write(name, Words("paper_kernel", about, fields), panels, rows, layout,
                               [*looks.values(), limit])  # fmt: skip


def _panel(looks: Mapping[int, Look], rows: pd.DataFrame, context: int, high: float) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title(f"{short_tokens(context)} context")
        for place, (batch, look) in enumerate(looks.items()):
            mine = rows[rows["batch"] == batch].sort_values("full_heads")
            values = mine.assign(value=mine["ratio"], low=mine["ratio_low"], high=mine["ratio_high"])
            drawing.line(axes, look, list(mine["full_heads"]), values, 1.0, place=place)
            if batch == max(looks):
                limit = replace(look, is_ceiling=True)
                axes.plot(mine["full_heads"], mine["bound"], color=FAINT, linestyle=limit.dashes, linewidth=1.0)
        counts = sorted(set(rows["full_heads"]))
        axes.set_xlim(min(counts) - 0.4, max(counts) + 0.4)
        axes.xaxis.set_major_locator(FixedLocator([count for count in counts if count != 1 or len(counts) < 6]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        drawing.log_values(axes, 0.8, high, lambda value: f"{value:g}")
        drawing.level(axes, 1.0, "flash")

    return draw


def _beside(inputs: PaperInputs, table: pd.DataFrame) -> Comparison:
    """The largest batch at the longest context, head count by head count, with the one cell that is in print."""
    rows = []
    chosen = table[(table["budget"] == _main_budget(table)) & (table["subject"] != SCORED)]
    for _, row in _largest(chosen).iterrows():
        printed = inputs.published.figure(
            "kernel", "ratio", context=int(row["context"]), batch=int(row["batch"]), full_heads=int(row["full_heads"])
        )
        random = str(row["subject"]).endswith("random")
        value, low, high = (float(row[name]) for name in ("ratio", "ratio_low", "ratio_high"))
        known = pd.notna(value)
        verdict, level = agreement(None if printed is None else printed.value, value, low, high)
        rows.append(
            Compared(
                of=[f"{8 - int(row['full_heads'])} of 8", short_tokens(int(row["context"])), f"{int(row['batch'])}",
                    "random" if random else "full"],
                published=wording.DASH if printed is None else printed.text,
                mark="" if printed is None else printed.mark,
                measured=wording.ratio(value) if known else wording.DASH,
                interval=wording.interval(low, high, 2) if known else "",
                verdict=verdict if known else "no flash beside it",
                level=level if known else "muted",
                reason=WORDS["kernel"]["reason_random" if random else "reason"] if printed is not None
                else f"bound by bytes {wording.ratio(row['bound'])}" if pd.notna(row["bound"]) else "",
            )
        )  # fmt: skip
    heads = ("Sparse heads", "Context", "Batch", "Lengths")
    caption = f"Times as fast as flash attention, {wording.budget(_main_budget(table))} of the blocks for sparse heads."
    return Comparison(caption, heads, rows, "times")


def _largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows at the longest context, and there at the largest batch."""
    rows = rows[rows["context"] == rows["context"].max()]
    rows = rows[rows["batch"] == rows["batch"].max()]
    return rows.sort_values(["subject", "full_heads"])


def _every_size(table: pd.DataFrame) -> Cells:
    kinds = {OP: "", SCORED: "with scores", f"{OP}_random": "random lengths"}
    rows = [
        [
            f"{8 - int(row['full_heads'])} of 8",
            kinds.get(row["subject"], row["subject"]),
            wording.budget(row["budget"]),
            short_tokens(int(row["context"])),
            f"{int(row['batch'])}",
            wording.microseconds(row["median_us"]),
            wording.interval(row["p5_us"], row["p95_us"], 1),
            wording.number(100 * row["fraction"], 1),
            wording.microseconds(row["flash_us"]) if pd.notna(row["flash_us"]) else wording.DASH,
            wording.ratio(row["ratio"]) if pd.notna(row["ratio"]) else wording.DASH,
            wording.interval(row["ratio_low"], row["ratio_high"], 2) if pd.notna(row["ratio"]) else "",
            wording.ratio(row["bound"]) if pd.notna(row["bound"]) else wording.DASH,
        ]
        for _, row in table.sort_values([*KEYS[:1], "context", "batch", "full_heads", "budget"]).iterrows()
    ]
    heads = (
        *("Sparse heads", "Kind", "Budget", "Context", "Batch", "Ours, us", "p5 to p95", "Floor / time, %"),
        *("Flash, us", "Times as fast", "Interval", "Bound by bytes"),
    )
    return Cells(
        "Every size of the hybrid kernel.", heads, rows, frozenset({2, 3, 4, 5, 7, 8, 9, 11}), fold="Every size"
    )


def _main_budget(rows: pd.DataFrame) -> str:
    """A tenth of the blocks where it was timed, as in print; else the largest budget."""
    budgets = sorted(set(rows["budget"]), key=wording.budget_order)
    return "0.1" if "0.1" in budgets else budgets[-1]


def _published_only(inputs: PaperInputs) -> Comparison:
    rows = []
    for row in inputs.published.tables["kernel"].rows:
        keys = {key: row[key] for key in ("context", "batch", "full_heads")}
        printed = inputs.published.figure("kernel", "ratio", **keys)
        of = [f"{8 - row['full_heads']} of 8", short_tokens(row["context"]), str(row["batch"]), "random"]
        if printed is not None:
            rows.append(Compared(of, printed.text, printed.mark, wording.DASH, "", "not measured"))
    return Comparison("In print.", ("Sparse heads", "Context", "Batch", "Lengths"), rows, "times")
