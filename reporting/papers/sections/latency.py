"""Compare whole decode steps with every baseline, by context and batch, and say what cache correction costs."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import (
    Block,
    Cells,
    Compared,
    Comparison,
    Heading,
    Picture,
    Prose,
    agreement,
    compared,
)
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.printed import printed_only
from longdecode.reporting.speed.measured import Speed
from longdecode.reporting.wording import short_tokens, slug

STOCK = ("full", "hf_full", "hf_full_static")
COLUMNS = ["model", "context", "batch", "label", "budget", "baseline", "ratio", "low", "high", "how"]
HEADS = ("Over", "Context", "Batch", "Budget")


@dataclass(frozen=True, slots=True)
class Latency:
    """Fill the part on whole steps.

    Args:
        part: key of its words and name of its published table, with the keys ``baseline``, ``context``, ``batch``.
        at: context and batch of the published ratios.
        limits: published table of what memory traffic allows by context, and the model it holds for.
    """

    part: str
    at: tuple[int, int]
    limits: tuple[str, str] | None = None

    def __call__(self, inputs: PaperInputs) -> list[Block]:
        """Return the speed page's figure, ratios over each baseline, and limits by context, for every model timed."""
        words, speed, method = inputs.words(self.part), inputs.speed, inputs.spec.method
        what = inputs.published.tables[self.part].what
        found: list[Block] = [Prose(words["text"].format(what=what, **self._limits_at(inputs, self.at[0])))]
        models = [] if speed is None else [m for m in speed.models if method in set(speed.ok(m)["label"])]
        if speed is None or not models:
            return [*found, printed_only(inputs.published, self.part), inputs.missing(words["missing"])]
        for model in models:
            name = f"speed-latency-{slug(model)}"
            found += [Picture(figure) for figure in inputs.writer.written if figure.name == name]
            found += self._ratios(inputs, speed, model)
            if baselines(inputs, model).empty:
                found.append(inputs.missing(words["missing_baselines"]))
            if self.limits and model == self.limits[1]:
                found.append(self._limit_table(inputs, speed, model, self.limits[0]))
        return found

    def claimed(self, inputs: PaperInputs, model: str, baseline: str) -> Compared | None:
        """Return the row of the published ratio over one baseline."""
        if inputs.speed is None or model not in inputs.speed.models:
            return None
        rows = self._at(inputs.speed, model, _all_ratios(inputs, inputs.speed, model))
        rows = rows[rows["baseline"] == baseline]
        return self._row(inputs, rows.iloc[0]) if len(rows) else None

    def _at(self, speed: Speed, model: str, rows: pd.DataFrame) -> pd.DataFrame:
        place = (rows["context"] == self.at[0]) & (rows["batch"] == self.at[1])
        return rows[place & (rows["budget"] == speed.main_budget(model))]

    def _ratios(self, inputs: PaperInputs, speed: Speed, model: str) -> list[Block]:
        """Return ratios at the published place, and every other place folded away."""
        table = _all_ratios(inputs, speed, model)
        if table.empty:
            return []
        at_main = self._at(speed, model, table)
        caption = f"Times as fast as each baseline. {inputs.timed(model)}"
        found: list[Block] = []
        if len(at_main):
            rows = [self._row(inputs, row) for _, row in at_main.iterrows()]
            found.append(Comparison(caption, HEADS, rows, "times"))
        rest = table.drop(at_main.index).sort_values(["context", "batch"], kind="stable")
        rows = [self._row(inputs, row) for _, row in rest.iterrows()]
        return [*found, Comparison(caption, HEADS, rows, "times", fold="Every context, batch and budget")]

    def _row(self, inputs: PaperInputs, row: pd.Series) -> Compared:
        words = inputs.words(self.part)
        context, batch, baseline = int(row["context"]), int(row["batch"]), str(row["baseline"])
        of = [baseline, short_tokens(context), str(batch), wording.budget(str(row["budget"]))]
        in_print = "full" if baseline in STOCK else baseline
        printed = inputs.published.figure(self.part, "ratio", baseline=in_print, context=context, batch=batch)
        if pd.isna(row["ratio"]):
            return compared(of, printed, reason=str(row["how"]))
        value, low, high = (float(row[name]) for name in ("ratio", "low", "high"))
        verdict, level = agreement(None if printed is None else printed.value, value, low, high)
        limits = self._limits_at(inputs, context if batch == 1 else 0)
        why = words["reasons"].get(baseline, "")
        bound = self.limits is not None and row["model"] == self.limits[1]
        if baseline == "full" and bound and wording.DASH not in limits.values():
            why += words["limit"].format(**limits)
        reason = f"{why} ({row['how']})" if why else str(row["how"])
        return compared(of, printed, wording.ratio(value), wording.interval(low, high, 2), verdict, level, reason)

    def _limits_at(self, inputs: PaperInputs, context: int) -> dict[str, str]:
        if self.limits is None:
            return {}
        columns = inputs.published.tables[self.limits[0]].columns
        figures = {name: inputs.published.figure(self.limits[0], name, context=context) for name in columns}
        return {name: wording.DASH if figure is None else figure.text for name, figure in figures.items()}

    def _limit_table(self, inputs: PaperInputs, speed: Speed, model: str, name: str) -> Cells:
        """Return what memory allows by context (arithmetic), beside what was measured over our Full at batch 1."""
        rows, words = speed.ok(model), inputs.words(self.part)
        budget = speed.main_budget(model) or ""
        rows = rows[(rows["label"] == inputs.spec.method) & (rows["batch"] == 1) & (rows["budget"] == budget)]
        shown = []
        for row in inputs.published.tables[name].rows:
            mine = rows[(rows["context"] == row["context"]) & rows["ratio"].notna()]
            ratio = wording.ratio(mine["ratio"].iloc[0]) if len(mine) else "not measured"
            bounds = wording.interval(mine["ratio_low"].iloc[0], mine["ratio_high"].iloc[0], 2) if len(mine) else ""
            limits = self._limits_at(inputs, row["context"]).values()
            shown.append([short_tokens(row["context"]), *limits, ratio, bounds])
        heads = ("Context", *words["limits"]["heads"], "Over our Full", "Interval")
        return Cells(words["limits"]["caption"], heads, shown, frozenset(range(len(heads) - 1)))


def baselines(inputs: PaperInputs, model: str) -> pd.DataFrame:
    """Return a model's rows of over_baselines.csv, or an empty frame of its columns."""
    path = inputs.folder / "over_baselines.csv"
    table = pd.read_csv(path, dtype={"budget": str}) if path.exists() else pd.DataFrame(columns=COLUMNS)
    return table[(table["model"] == model) & (table["label"] == inputs.spec.method)]


def _all_ratios(inputs: PaperInputs, speed: Speed, model: str) -> pd.DataFrame:
    """Return the method over the baselines and over its rivals."""
    return pd.concat([baselines(inputs, model), _over_rivals(inputs, speed, model)], ignore_index=True)


def _over_rivals(inputs: PaperInputs, speed: Speed, model: str) -> pd.DataFrame:
    """Return the method over its rivals: both were paired with Full, so a ratio of ratios, bounds in quadrature."""
    method = inputs.spec.method
    rows = speed.ok(model)
    rows = rows[rows["ratio"].notna()]
    found = []
    for _, ours in rows[rows["label"] == method].iterrows():
        there = rows[(rows["context"] == ours["context"]) & (rows["batch"] == ours["batch"])]
        for label in inputs.spec.rivals:
            for _, other in there[(there["label"] == label) & (there["budget"] == ours["budget"])].iterrows():
                value = ours["ratio"] / other["ratio"]
                spread = [
                    ((ours[a] / ours["ratio"] - 1) ** 2 + (other[b] / other["ratio"] - 1) ** 2) ** 0.5
                    for a, b in (("ratio_low", "ratio_high"), ("ratio_high", "ratio_low"))
                ]
                found.append([model, ours["context"], ours["batch"], method, ours["budget"], label, value,
                              value * (1 - spread[0]), value * (1 + spread[1]), "through full"])  # fmt: skip
    return pd.DataFrame(found, columns=COLUMNS)


def correction(inputs: PaperInputs) -> list[Block]:
    """Return what correcting the cache adds to a step, for models on which the method was timed."""
    words, speed = inputs.words("correction"), inputs.speed
    found: list[Block] = [Heading(words["title"], "correction"), Prose(words["text"])]
    path = inputs.folder / "correction.csv"
    if speed is None or not path.exists():
        return [*found, inputs.missing(words["missing"])]
    table = pd.read_csv(path, dtype={"budget": str})
    models = [model for model in speed.models if inputs.spec.method in set(speed.ok(model)["label"])]
    table = table[table["model"].isin(models)]
    if table.empty:
        return [*found, inputs.missing(words["missing"])]
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
