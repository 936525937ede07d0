"""Fill the part on what consecutive steps share, from a run's locality.csv."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Compared, Comparison, Picture, Prose, agreement, compared
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.nosa.charts import BOUND, layers_figure
from longdecode.reporting.papers.nosa.forks import forks

_DRAWS = 2000
BLOCKS = 64
"""Blocks of a step: where one begins, the window moves and the bound lies one block lower."""


def locality(inputs: PaperInputs) -> list[Block]:
    """Return the overlap by method, NOSA's lead, layers, misses by slots and the union."""
    words, path = inputs.words("locality"), inputs.folder / "locality.csv"
    if not path.is_file():
        printed = [_row(inputs, name, None) for name in ("infllm2", "nosa", "shadowkv", "bound")]
        table = Comparison("In print.", ("Method",), printed, "per cent")
        return [Prose(words["text"]), table, inputs.missing(words["missing"], "locality")]
    found = pd.read_csv(path)
    one = found.iloc[0]
    about = {"text": one["text"], "context": f"{one['context']:,}", "budget": wording.budget(str(one["budget"]))}
    by_label = {str(label): rows for label, rows in found.groupby("label", sort=False)}
    rows = [_row(inputs, str(rows.iloc[0]["method"]), rows, label) for label, rows in by_label.items()]
    rows += [_row(inputs, name, None) for name in ("shadowkv",) if name not in set(found["method"])]
    rows += [_bound(inputs, found[found["method"] == "nosa"])]
    blocks: list[Block] = [
        Prose(words["text"]),
        Prose(_recorded(inputs, found)),
        Comparison(words["caption"].format(**about), ("Method",), rows, "per cent"),
    ]
    own = {fork.attention: fork.model for fork in forks(inputs) if fork.head == "ed_dma"}
    sides = [found[(found["method"] == name) & (found["model"] == own.get(name))] for name in ("nosa", "infllm2")]
    if all(len(side) for side in sides):
        blocks.append(Comparison(words["gap"], ("Overlap",), _gaps(inputs, *sides), "points"))
    blocks.append(Picture(layers_figure(inputs.writer, found)))
    layers = found.pivot_table(index="layer", columns="label", values="gamma", sort=False)
    shown = [[wording.number(100 * value, 1) for value in row] for row in layers.to_numpy().tolist()]
    cells = [[str(layer), *row] for layer, row in zip(layers.index, shown, strict=True)]
    numeric = frozenset(range(1, len(layers.columns) + 1))
    blocks.append(Cells(words["layers"], ("Layer", *map(str, layers.columns)), cells, numeric, fold="Layer by layer"))
    blocks.append(_misses(inputs, by_label, words["misses"]))
    union = [
        [label, wording.number(100 * rows["union"].mean(), 1), _quartiles(100 * _means(rows, "union", "layer", "head"))]
        for label, rows in by_label.items()
    ]
    blocks.append(Cells(words["union"], ("Label", "Mean, %", "Quartiles of heads, %"), union, frozenset({1})))
    return blocks


def mean_interval(values: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """Return the mean of values and the bootstrap interval of 95 % of it."""
    rng = np.random.default_rng(seed)
    draws = rng.choice(values, (_DRAWS, len(values))).mean(axis=1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(values.mean()), float(low), float(high)


def lead(inputs: PaperInputs) -> Compared | None:
    """Return NOSA's lead over InfLLM-V2 with its interval, for the claims."""
    sides = _sides(inputs)
    return _gaps(inputs, *sides)[0] if sides else None


def _sides(inputs: PaperInputs) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return the rows of NOSA and of InfLLM-V2, where both were measured."""
    path = inputs.folder / "locality.csv"
    if not path.is_file():
        return None
    found = pd.read_csv(path)
    ours, theirs = (found[found["method"] == name] for name in ("nosa", "infllm2"))
    return (ours, theirs) if len(ours) and len(theirs) else None


def _leads(ours: pd.DataFrame, theirs: pd.DataFrame, column: str, *keys: str) -> pd.Series:
    """Return the differences of the means by some keys, in points."""
    return 100 * (_means(ours, column, *keys) - _means(theirs, column, *keys)).dropna()


def _row(inputs: PaperInputs, method: str, rows: pd.DataFrame | None, label: str = "") -> Compared:
    printed = inputs.published.figure("locality", "hit_rate", method=method)
    if rows is None:
        return compared([label or method], printed)
    value, low, high = (100 * x for x in mean_interval(_means(rows, "gamma", "document").to_numpy()))
    verdict, level = agreement(None if printed is None else printed.value, value, low, high)
    free, worst = wording.number(100 * rows["gamma_free"].mean(), 1), wording.number(100 * rows["worst"].min(), 1)
    sizes = f"{rows['document'].nunique()} texts, {len(_means(rows, 'gamma', 'layer', 'head'))} heads"
    reason = f"{free} without forced blocks; worst step {worst}; {sizes}, {rows.iloc[0]['steps']:,} steps"
    return compared(
        [label or method], printed, wording.number(value, 1), wording.interval(low, high, 1), verdict, level, reason
    )


def _bound(inputs: PaperInputs, rows: pd.DataFrame) -> Compared:
    """Return the published bound beside the worst step of NOSA that was recorded."""
    printed = inputs.published.figure("locality", "hit_rate", method="bound")
    if rows.empty:
        return compared(["bound"], printed)
    worst, lowest = float(rows["worst"].min()), BOUND - 1 / BLOCKS
    reason = inputs.words("locality")["bound"].format(
        inside=wording.percent(BOUND), begins=wording.number(100 * lowest, 1)
    )
    kept = worst >= lowest - 5e-5  # four digits are written
    level, verdict = ("shown", "kept") if kept else ("worse", "broken")
    return compared(["bound"], printed, wording.number(100 * worst, 1), "", verdict, level, reason)  # type: ignore[arg-type]


def _recorded(inputs: PaperInputs, found: pd.DataFrame) -> str:
    """Say which forks recorded the overlap, and over texts of which length."""
    words, trained = inputs.words("locality"), ""
    runs = [json.loads(path.read_text("utf-8")) for path in sorted(inputs.folder.glob("forks/*/*/run.json"))]
    about = {(run.get("last", {}).get("step"), str(run.get("revision", ""))[:7]) for run in runs}
    if len(about) == 1 and all(next(iter(about))):
        steps, revision = next(iter(about))
        trained = words["trained"].format(steps=steps, revision=revision)
    models = wording.listing([str(name) for name in found["model"].unique()])
    return str(words["recorded"].format(models=models, trained=trained, context=f"{found['context'].iloc[0]:,}"))


def _gaps(inputs: PaperInputs, ours: pd.DataFrame, theirs: pd.DataFrame) -> list[Compared]:
    """Return the lead with and without forced blocks, paired by text, layer and head; intervals are over texts."""
    printed = inputs.published.figure("locality_gap", "points", bound="low")
    rows = []
    for column, name in (("gamma", "all blocks"), ("gamma_free", "blocks that are not forced")):
        by_text, by_head = (_leads(ours, theirs, column, *keys) for keys in (("document",), ("layer", "head")))
        value, low, high = mean_interval(by_text.to_numpy())
        shown = printed if column == "gamma" else None
        verdict = "above 0" if low > 0 else "below 0" if high < 0 else "cannot be told apart"
        bounds = wording.interval(low, high, 1, signed=True)
        reason = f"{len(by_text)} texts; above 0 in {(by_head > 0).sum()} of {len(by_head)} pairs of layer and head"
        text = wording.number(value, 1, signed=True)
        level = "shown" if low > 0 else "worse" if high < 0 else "muted"
        rows.append(compared([name], shown, text, bounds, verdict, level, reason))  # type: ignore[arg-type]
    return rows


def _misses(inputs: PaperInputs, by_label: dict[str, pd.DataFrame], caption: str) -> Comparison:
    rows = []
    for label, table in by_label.items():
        for column in (name for name in table.columns if name.startswith("misses_") and table[name].notna().all()):
            slots = int(column.removeprefix("misses_"))
            near = 63 if slots == 64 else slots
            of_nosa = str(table.iloc[0]["method"]) == "nosa"
            printed = inputs.published.figure("slots", "misses", slots=near) if of_nosa else None
            value, low, high = mean_interval(_means(table, column, "document").to_numpy())
            verdict, level = agreement(None if printed is None else printed.value, value, low, high)
            cells = wording.number(value, 2), wording.interval(low, high, 2)
            rows.append(compared([label, f"{slots:,} slots"], printed, *cells, verdict, level))
    return Comparison(caption, ("Label", "Resident set"), rows, "blocks a step")


def _means(rows: pd.DataFrame, column: str, *keys: str) -> pd.Series:
    """Return the means of a column by some keys."""
    return rows.groupby(list(keys))[column].mean()


def _quartiles(values: pd.Series) -> str:
    low, high = np.quantile(values, (0.25, 0.75))
    return wording.interval(float(low), float(high), 1)
