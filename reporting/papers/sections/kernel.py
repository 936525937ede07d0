"""Compare a kernel with dense flash attention, by one size of its own, batch and context."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

from longdecode.reporting import drawing, wording
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.identity import FAINT, HUES, Look
from longdecode.reporting.papers.blocks import (
    Block,
    Compared,
    Comparison,
    Picture,
    Prose,
    agreement,
    compared,
)
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.printed import printed_only
from longdecode.reporting.speed.measured import OURS, Speed, few
from longdecode.reporting.speed.tables import against
from longdecode.reporting.wording import short_tokens, slug

PEER = "torch_flash"
_MARKERS = ("o", "s", "D", "^", "v", "P")


@dataclass(frozen=True, slots=True)
class Kernel:
    """Fill the part on the paper's kernel.

    Args:
        part: key of its words and name of its published table, with the keys ``context``, ``batch`` and ``column``.
        column: the kernel's own size, a parameter of its rows.
        size: words of a value of it.
        axis: words of its axis.
        main_budget: the budget of the published cell, used where it was timed.
    """

    part: str
    column: str
    size: Callable[[int], str]
    axis: str
    main_budget: str

    def __call__(self, inputs: PaperInputs) -> list[Block]:
        """Return, for every shape, the figure, and the published cell beside ours."""
        words, speed = inputs.words(self.part), inputs.speed
        found: list[Block] = [Prose(words["text"].format(what=inputs.published.tables[self.part].what))]
        table = pd.DataFrame() if speed is None else self.ratios(inputs, speed)
        if table.empty:
            return [*found, printed_only(inputs.published, self.part), inputs.missing(words["missing"])]
        for model, mine in table.groupby("model", sort=False):
            op = mine[mine["subject"] == inputs.spec.kernel]
            found += [Picture(figure)] if (figure := self._figure(inputs, str(model), op)) else []
            found += [self._beside(inputs, mine), Prose(words["more"])]
        return found

    def claimed(self, inputs: PaperInputs, where: Mapping[str, int]) -> Compared | None:
        """Return the row of one size, of random lengths where those were timed, as in print."""
        table = pd.DataFrame() if inputs.speed is None else self.ratios(inputs, inputs.speed)
        if table.empty:
            return None
        rows = table[(table["budget"] == self._budget(table)) & table["ratio"].notna()]
        for name, value in where.items():
            rows = rows[rows[name] == value]
        rows = rows.sort_values("subject", key=lambda subjects: ~subjects.str.endswith("random"))
        return self._row(inputs, rows.iloc[0]) if len(rows) else None

    def ratios(self, inputs: PaperInputs, speed: Speed) -> pd.DataFrame:
        """Return one row a size: our time, flash's, and how many times as fast ours is, from pairs."""
        rows = speed.kernels()
        rows = rows[rows["subject"].astype(str).str.startswith(inputs.spec.kernel)]
        rows = rows.assign(**{self.column: [json.loads(params).get(self.column) for params in rows["params"]]})
        keys = ["model", "subject", "budget", "context", "batch", self.column]
        found = []
        for _, size in rows.groupby(keys, sort=False):
            ours = size[(size["label"] == OURS) & (size["status"] == "ok")]
            flash = size[(size["label"] == PEER) & (size["status"] == "ok")]
            if ours.empty:
                continue
            mine = ours.iloc[0]
            value, low, high = (against(flash.iloc[0], size) if len(flash) else None) or (float("nan"),) * 3
            times = {
                "flash_us": flash["median_us"].iloc[0] if len(flash) else float("nan"),
                "bound": _bound(mine, flash),
            }
            names = (*keys[:-1], "median_us", "p5_us", "p95_us", "n", "fraction", "floor_us", "device")
            row = {name: mine[name] for name in names} | {self.column: int(mine[self.column])}
            found.append(row | times | {"ratio": value, "ratio_low": low, "ratio_high": high})
        return pd.DataFrame(found)

    def _figure(self, inputs: PaperInputs, model: str, table: pd.DataFrame) -> Figure | None:
        rows = table[table["ratio"].notna()] if len(table) else table
        if rows.empty or rows[self.column].nunique() < 2:
            return None
        budget = self._budget(rows)
        rows = rows[rows["budget"] == budget]
        batches = [int(batch) for batch in few(sorted(set(rows["batch"])), 4)]
        looks = {
            batch: Look(f"batch {batch}", HUES[place % len(HUES)], _MARKERS[place], False, False)
            for place, batch in enumerate(batches)
        }
        limit = Look("bound by bytes, largest batch", FAINT, "", False, False, is_ceiling=True)
        contexts = sorted(set(rows["context"]))
        high = max(float(rows["ratio_high"].max()), float(rows["bound"].max()))
        panels = [self._panel(looks, rows[rows["context"] == context], int(context), high) for context in contexts]
        ends = []
        for batch in batches:
            last = rows[(rows["context"] == contexts[-1]) & (rows["batch"] == batch)].sort_values(self.column)
            ends.append(
                f"batch {batch}: " + ", ".join(f"{r[self.column]:.0f}: {r['ratio']:.2f}" for _, r in last.iterrows())
            )
        fields = {
            "budget": wording.budget(budget), "n": f"n = {int(rows['n'].max())}",
            "readings": f"{short_tokens(int(contexts[-1]))}; {'; '.join(ends)}",
        }  # fmt: skip
        about = f"Heads of {model.removesuffix('-shape')}, random values. Device: {rows['device'].iloc[0]}."
        layout = Layout(self.axis, "times as fast as flash", wide=4)
        name = f"paper-{inputs.spec.method}-kernel-{slug(model)}"
        legend = [*looks.values(), limit]
        return inputs.writer.write(name, Words("paper_kernel", about, fields), panels, rows, layout, legend)

    def _panel(
        self, looks: Mapping[int, Look], rows: pd.DataFrame, context: int, high: float
    ) -> Callable[[Axes], None]:
        def draw(axes: Axes) -> None:
            axes.set_title(f"{short_tokens(context)} context")
            for place, (batch, look) in enumerate(looks.items()):
                mine = rows[rows["batch"] == batch].sort_values(self.column)
                values = mine.assign(value=mine["ratio"], low=mine["ratio_low"], high=mine["ratio_high"])
                drawing.line(axes, look, list(mine[self.column]), values, 1.0, place=place)
                if batch == max(looks):
                    limit = replace(look, is_ceiling=True)
                    axes.plot(mine[self.column], mine["bound"], color=FAINT, linestyle=limit.dashes, linewidth=1.0)
            counts = sorted(set(rows[self.column]))
            axes.set_xlim(min(counts) - 0.4, max(counts) + 0.4)
            axes.xaxis.set_major_locator(FixedLocator([count for count in counts if count != 1 or len(counts) < 6]))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
            drawing.log_values(axes, 0.8, high, lambda value: f"{value:g}")
            drawing.level(axes, 1.0, "flash")

        return draw

    def _beside(self, inputs: PaperInputs, table: pd.DataFrame) -> Comparison:
        """Return every batch at the longest context, with the cells that are in print."""
        budget, words = self._budget(table), inputs.words(self.part)
        rows = table[(table["budget"] == budget) & table["subject"].isin([inputs.spec.kernel, *words["beside"]])]
        rows = rows[rows["context"] == rows["context"].max()].sort_values(["subject", "batch", self.column])
        caption = (
            f"{words['caption']}, {wording.budget(budget)} of the blocks, {short_tokens(int(rows['context'].max()))}."
        )
        heads = (words["size"], "Context", "Batch", "Lengths")
        return Comparison(caption, heads, [self._row(inputs, row) for _, row in rows.iterrows()], "times")

    def _row(self, inputs: PaperInputs, row: pd.Series) -> Compared:
        words = inputs.words(self.part)
        keys = {name: int(row[name]) for name in ("context", "batch", self.column)}
        printed = inputs.published.figure(self.part, "ratio", **keys)
        lengths = "random" if str(row["subject"]).endswith("random") else "full"
        of = [self.size(keys[self.column]), short_tokens(keys["context"]), f"{keys['batch']}", lengths]
        if pd.isna(row["ratio"]):
            return compared(of, printed, verdict="no flash beside it")
        value, low, high = (float(row[name]) for name in ("ratio", "ratio_low", "ratio_high"))
        verdict, level = agreement(None if printed is None else printed.value, value, low, high)
        reason = words["reasons"][lengths] if printed else f"bound by bytes {wording.ratio(row['bound'])}"
        return compared(of, printed, wording.ratio(value), wording.interval(low, high, 2), verdict, level, reason)

    def _budget(self, rows: pd.DataFrame) -> str:
        budgets = sorted(set(rows["budget"]), key=wording.budget_order)
        return self.main_budget if self.main_budget in budgets else str(budgets[-1])


def _bound(mine: pd.Series, flash: pd.DataFrame) -> float:
    """Return the bytes of dense attention over ours: no kernel limited by memory is faster than that."""
    return float(flash["bytes_min"].iloc[0] / mine["bytes_min"]) if len(flash) else float("nan")
