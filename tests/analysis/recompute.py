"""Recompute the tables of results/ from their records with numpy, pandas and scipy; nothing of the project is imported.

    python tests/analysis/recompute.py [results/qwen ...]

Every cell of summary.csv, pair of comparisons.csv, time of speed.csv, rank of ranks.csv, order of orders.csv, point of
pareto.csv and row of measures.csv, but for measures that have no records, which are named. Means, counts, Wilson's and
Student's bounds, Holm's correction and verdicts must equal what is printed, to its digits. Bounds, p-values and shares
from random draws are drawn anew: a bound must lie where our draws have 2.5 or 97.5 %, within five standard errors of
such a share; a rank, between those at 3 and at 8 %. Columns: docs/reading-a-table.md. Exits 1 where a row differs.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy import stats

ROOT = Path(__file__).parents[2]
DRAWS = 10_000
"""Ours; the tables' intervals have as many."""
STANDARD_ERRORS = 5
SAMPLES_OF_A_PROBLEM = {"aime24": 16, "fidelity_forced": 4}
"""Draws of one problem, or windows of one book, in a row: one unit. Elsewhere samples with one prompt are."""
CELL = ["model", "suite", "task", "context", "batch", "variant", "budget"]
PAIR = ["a", "b", "model", "b_model", "suite", "task", "context", "batch", "budget", "b_budget"]
TIMED = ["bench", "model", "weights", "method", "variant", "params", "stage", "context", "batch", "budget"]
LEFT = "not recomputed"
"""Begins what is told of a row that no records are kept of."""
Z = float(stats.norm.ppf(0.975))
RANDOM = np.random.default_rng(1)


def read_records(folder: Path) -> pd.DataFrame:
    """Return the records of all parquet files below a folder; older ones have two columns of another name."""
    frames = [pd.read_parquet(path) for path in sorted(folder.rglob("*.parquet"))]
    frames = [frame.rename(columns={"label": "variant", "subject": "method"}) for frame in frames if len(frame)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list({*CELL, *TIMED}))


def read_cells(folder: Path) -> tuple[dict[Any, pd.DataFrame], dict[Any, str]]:
    """Return the scored samples of each cell, by seed and number of the sample, and the status of each cell."""
    scored, status = {}, {}
    for key, rows in read_records(folder / "records").groupby(CELL):
        failed = rows.status[(rows.status != "ok") & ((rows.status != "timeout") | (rows.sample_index < 0))]
        cell = rows[rows.status == "ok"].set_index(["seed", "sample_index"]).sort_index()
        size = SAMPLES_OF_A_PROBLEM.get(key[2], 1)
        problem = cell.prompt_sha256 if size == 1 else cell.index.get_level_values(1) // size
        scored[key] = cell.assign(problem=problem)
        status[key] = failed.iloc[0] if len(failed) else "ok" if len(cell) else "timeout"
    return scored, status


def read_pools() -> dict[str, list[str]]:
    """Return by name the tasks whose mean stands in tables."""
    papers = (path.read_text(encoding="utf-8") for path in (ROOT / "reporting" / "papers").glob("*.yaml"))
    return {name: tasks for paper in papers for name, tasks in (yaml.safe_load(paper).get("pools") or {}).items()}


def tokens_read(cell: pd.DataFrame) -> float:
    """Return the mean tokens that a step reads."""
    return float(np.mean([dict(measures).get("kv_tokens_read", np.nan) for measures in cell.measures]))


def equal(table: Sequence[Any], ours: Sequence[Any]) -> bool:
    """Return whether a table's numbers are ours, to the digits that it prints; NaN stands for an empty one."""
    theirs = [np.nan if pd.isna(number) else float(number) for number in table]
    return bool(np.allclose(theirs, np.array(ours, dtype=float), rtol=1e-5, atol=1e-9, equal_nan=True))


def wilson(share: float, n: float) -> tuple[float, float]:
    """Return Wilson's interval of a share of n."""
    centre, half = share + Z**2 / (2 * n), Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return (centre - half) / (1 + Z**2 / n), (centre + half) / (1 + Z**2 / n)


def mean_over_tasks(tasks: Sequence[np.ndarray]) -> float:
    """Return the unweighted mean of means."""
    return float(np.mean([task.mean() for task in tasks]))


def exact_bounds(tasks: Sequence[np.ndarray], shares: bool, paired: bool) -> tuple[float, float] | None:
    """Return bounds that need no draws: where few units differ, one cannot be drawn from, or all are the same."""
    units, weight = np.concatenate(tasks), len(tasks) ** 2 / sum(1 / len(task) for task in tasks)
    if shares and paired and np.count_nonzero(units) < 5:
        won, lost = (mean_over_tasks([np.maximum(sign * task, 0) for task in tasks]) for sign in (1, -1))
        (won_low, won_high), (lost_low, lost_high) = wilson(won, weight), wilson(lost, weight)
        return (
            won - lost - math.hypot(won - won_low, lost_high - lost),
            won - lost + math.hypot(won_high - won, lost - lost_low),
        )
    if shares and not paired and min(np.count_nonzero(units), np.count_nonzero(units != 1)) < 5:
        return wilson(mean_over_tasks(tasks), weight)
    if min(map(len, tasks)) < 2:
        return math.nan, math.nan
    return None if any(np.ptp(task) for task in tasks) else (mean_over_tasks(tasks),) * 2


def drawn_means(tasks: Sequence[np.ndarray]) -> np.ndarray:
    """Return bootstrap draws of the mean over tasks: units are drawn with replacement within their task."""
    draws = np.zeros(DRAWS)
    for task in tasks:
        values, counts = np.unique(task, return_counts=True)
        draws += RANDOM.multinomial(len(task), counts / len(task), size=DRAWS) @ values / len(task)
    return draws / len(tasks)


@lru_cache(maxsize=32)
def unit_draws(n: int, *_: object) -> np.ndarray:
    """Return how often each of n units is drawn, over n, ``[draws, n]``; the same for all rivals at one place."""
    return RANDOM.multinomial(n, np.full(n, 1 / n), size=DRAWS) / n


def drawn_medians(values: np.ndarray) -> np.ndarray:
    """Return bootstrap draws of a median."""
    return np.median(RANDOM.choice(values, size=(DRAWS, len(values))), axis=1)


def slack(share: float, theirs: int = DRAWS) -> float:
    """Return how far a share of our draws may be from that of the table's, of which there are ``theirs``.

    The second term is for the skew of a binomial of few draws, after Cornish and Fisher (1938).
    """
    error = math.sqrt(max(share * (1 - share), 0) * (1 / DRAWS + 1 / theirs))
    return STANDARD_ERRORS * error + STANDARD_ERRORS**2 / 6 / theirs


def near(share: float, printed: float, theirs: int = DRAWS) -> float:
    """Return the printed share of draws where ours bears it out, else ours."""
    return printed if abs(share - printed) <= max(slack(share, theirs), slack(printed, theirs)) + 1e-3 else share


def is_bound(low: float, draws: np.ndarray, wider: float, room: float) -> bool:
    """Return whether a number is the draws' 2.5 % quantile, or the wider bound where that lies below it."""
    digits = 1e-5 * abs(low) + 1e-9
    below, at_most = (draws < low - digits).mean(), (draws <= low + digits).mean()
    quantile = at_most >= 0.025 - room or equal([low], [wider])
    return bool(quantile and below <= 0.025 + room and low <= wider + digits)


def judged(
    low: float, high: float, draws: np.ndarray, wider: Any = (math.inf, -math.inf), theirs: int = DRAWS
) -> tuple[float, float]:
    """Return a table's bounds where the draws, or wider bounds beyond theirs, bear them out; else the draws' own."""
    room = slack(0.025, theirs)
    if is_bound(low, draws, wider[0], room) and is_bound(-high, -draws, -wider[1], room):
        return low, high
    ours = np.quantile(draws, [0.025, 0.975])
    return min(ours[0], wider[0]), max(ours[1], wider[1])


def sign_flip_p(tasks: Sequence[np.ndarray]) -> float:
    """Return the share of random signs of the units' differences with a mean as far from 0; equal sizes together."""
    sizes, counts = np.unique(np.concatenate([np.abs(task) / len(task) for task in tasks]), return_counts=True)
    sizes, counts = sizes[sizes > 0], counts[sizes > 0]
    if counts.sum() < 2:
        return 1.0
    flipped = (2 * RANDOM.binomial(counts, 0.5, size=(DRAWS, len(counts))) - counts) @ sizes
    return float((np.abs(flipped) >= abs(sum(task.mean() for task in tasks)) - 1e-9).mean())


def differences(row: pd.Series, ours: dict[str, Any]) -> str:
    """Return where a row of a table is not ours: each column with both."""
    same = {name: row[name] == x if isinstance(x, str) else equal([row[name]], [x]) for name, x in ours.items()}
    return "; ".join(f"{name} {row[name]}, ours {ours[name]}" for name, right in same.items() if not right)


def differing_cells(folder: Path, scored: dict[Any, pd.DataFrame], status: dict[Any, str]) -> Iterator[str]:
    """Yield the rows of summary.csv that the records do not give; ``all`` is over the tasks that ran under Full."""
    table = pd.read_csv(folder / "summary.csv", dtype={"budget": str}, low_memory=False).set_index(CELL)
    yield from (f"summary.csv has no row {key}" for key in status.keys() - set(table.index))
    for key, row in table.iterrows():
        ran = [k for k, word in status.items() if word == "ok" and (*k[:2], *k[3:5]) == (*key[:2], *key[3:5])]
        suite = {k[2] for k in ran if (scored[k].method == "full").all()} or {k[2] for k in ran}
        members = [(*key[:2], task, *key[3:]) for task in (sorted(suite) if key[2] == "all" else [key[2]])]
        word = next((status.get(k, "unsupported") for k in members if status.get(k) != "ok"), "ok")
        cells = [scored[k] for k in members if k in scored]
        ours = {"status": word, "n": sum(map(len, cells)), "value": math.nan, "low": math.nan, "high": math.nan}
        if word == "ok":
            tasks = [cell.groupby("problem").score.mean().to_numpy() for cell in cells]
            bounds = exact_bounds(tasks, row.unit == "fraction", paired=False)
            ours["value"] = np.mean([cell.score.mean() for cell in cells])
            ours["low"], ours["high"] = bounds or judged(row.low, row.high, drawn_means(tasks))
        if wrong := differences(row, ours):
            yield f"summary.csv {key}: {wrong}"


class Pairs:
    """The scored samples of a run in pairs of cells, and which tasks full attention can do."""

    def __init__(self, scored: dict[Any, pd.DataFrame], status: dict[Any, str], table: pd.DataFrame) -> None:
        self.scored = {key: cell for key, cell in scored.items() if status[key] == "ok"}
        for model in {name for name in (*table.model, *table.b_model) if " + " in name}:
            self._add_mean_of_trainings(model)
        self.fulls = {key[:5]: key for key, cell in self.scored.items() if cell.method.iloc[0] == "full"}
        words = table[(table.b == "full") & (table.status != "untuned")].set_index(CELL[:5]).status.to_dict()
        self.task_status = {place: self._task_status(place, words.get(place)) for place in self.fulls}
        self.pools = read_pools()

    def _add_mean_of_trainings(self, model: str) -> None:
        """Add the mean over several trainings, by sample, to the cells, which keep each training's score."""
        first, *others = model.split(" + ")
        for key in [key for key in self.scored if key[0] == first]:
            cells = [self.scored.get((name, *key[1:])) for name in (first, *others)]
            if all(cell is not None for cell in cells):
                scores = pd.concat([cell.score for cell in cells], axis=1, join="inner")
                found = cells[0].loc[scores.index].assign(score=scores.mean(axis=1))
                self.scored[model, *key[1:]] = found.assign(trainings=scores.to_numpy().tolist())

    def units(self, a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return both sides' scores by unit, over the samples that both have; the prompts must be the same."""
        both = self.scored[a].join(self.scored[b][["score", "prompt_sha256"]], how="inner", suffixes=("", "_b"))
        if (both.prompt_sha256 != both.prompt_sha256_b).any():
            raise SystemExit(f"{a} and {b}: different prompts")
        return tuple(both.groupby("problem")[["score", "score_b"]].mean().to_numpy().T)

    def _task_status(self, place: Any, word: str | None) -> str:
        """Return what a task can tell; where the draws leave it open whether Full fails, what the table says."""
        full = self.scored[self.fulls[place]]
        shares, higher = (full.unit == "fraction").all(), full.higher_is_better.all()
        windows = [key for key, cell in self.scored.items() if key[:5] == place and (cell.method == "streaming").all()]
        if windows:
            window = min(windows, key=lambda key: tokens_read(self.scored[key]))
            if tokens_read(self.scored[window]) >= 0.9 * tokens_read(full):
                return "short"
            gap = np.subtract(*self.units(self.fulls[place], window)) * (1 if higher else -1)
            bounds = exact_bounds([gap], shares and higher, paired=True)
            share = (drawn_means([gap]) <= 0).mean() if bounds is None else float(not bounds[0] > 0)
            fails = word == "baseline_fails" if abs(share - 0.025) <= slack(0.025) else share > 0.025
            if fails:
                return "baseline_fails"
        return "low_ceiling" if shares and full.score.mean() < 0.5 else "ok"

    def tasks(self, row: pd.Series) -> list[str]:
        """Return the tasks of a row: its own, those of its pool, or all of the suite that Full can do."""
        if row.task != "all":
            return self.pools.get(row.task, [row.task])
        able = {place for place, word in self.task_status.items() if word != "baseline_fails"}
        able = {p for p in able if (p[1], p[3], p[4]) == (row.suite, row.context, row.batch)}
        return sorted({p[2] for p in able if p[0] == row.b_model} or {p[2] for p in able})


def over_trainings(sides: Sequence[Sequence[pd.DataFrame]], difference: float) -> tuple[float, float, float]:
    """Return Welch's bounds and p-value of a difference between means over trainings; a checkpoint counts as given."""
    several = [side for side in sides if "trainings" in side[0]]
    values = [np.mean([np.mean(cell.trainings.tolist(), axis=0) for cell in side], axis=0) for side in several]
    errors = [(np.var(side, ddof=1) / len(side), len(side) - 1) for side in values]
    error = math.sqrt(sum(square for square, _ in errors))
    if not error:
        return math.inf, -math.inf, 0.0
    freedom = error**4 / sum(square**2 / free for square, free in errors)
    half = error * stats.t.ppf(0.975, freedom)
    return difference - half, difference + half, float(2 * stats.t.sf(abs(difference) / error, freedom))


def verdict(row: pd.Series) -> str:
    """Return the word on a difference from its printed interval, corrected p-value and margin."""
    least, most = (-row.high, -row.low) if row.better == "higher" else (row.low, row.high)
    if row.status == "one_training" or row.n < 10 or not np.isfinite([least, most, row.margin]).all():
        return "cannot tell"
    return "within" if most <= row.margin else "worse" if least > 0 and row.p_holm < 0.05 else "cannot tell"


def holm(p: pd.Series) -> pd.Series:
    """Return Holm's adjusted p-values of one family; rows without a p-value are not of it."""
    ordered = p.dropna().sort_values()
    return (ordered * np.arange(len(ordered), 0, -1)).cummax().clip(upper=1).reindex(p.index)


def differing_pairs(folder: Path, scored: dict[Any, pd.DataFrame], status: dict[Any, str]) -> Iterator[str]:
    """Yield the rows of comparisons.csv that the records do not give."""
    types = {"budget": str, "b_budget": str, "verdict": object}
    table = pd.read_csv(folder / "comparisons.csv", dtype=types, low_memory=False).fillna({"verdict": ""})
    table["family_holm"] = table.groupby([name for name in PAIR if name not in ("a", "model")]).p.transform(holm)
    pilot = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")).get("pilot", False)
    pairs, summary = Pairs(scored, status, table), pd.read_csv(folder / "summary.csv", low_memory=False)
    marked = {(r.model, r.variant) for r in summary.itertuples() if isinstance(getattr(r, "untuned", None), str)}
    table["untuned"] = [(r.model, r.a) in marked or (r.b_model, r.b) in marked for r in table.itertuples()]
    there = set(table[table.b == "full"].set_index([*CELL[:5], "a", "budget"]).index) | {*pairs.fulls.values()}
    for key in scored.keys() & pairs.scored.keys() - there:
        if key[:5] in pairs.fulls and len(pairs.units(key, pairs.fulls[key[:5]])[0]):
            yield f"comparisons.csv has no row of {key} and full"
    for _, row in table.iterrows():
        if wrong := differences(row, recomputed(row, pairs, pilot)):
            yield f"comparisons.csv {tuple(row[PAIR])}: {wrong}"


def recomputed(row: pd.Series, pairs: Pairs, pilot: bool) -> dict[str, Any]:
    """Return the numbers of a pair's row from the records; a drawn one is the table's where ours bear it out."""
    tasks = pairs.tasks(row)
    sides = [
        [(model, row.suite, task, row.context, row.batch, variant, budget) for task in tasks]
        for model, variant, budget in ((row.model, row.a, row.budget), (row.b_model, row.b, row.b_budget))
    ]
    if not {*sides[0], *sides[1]} <= pairs.scored.keys():
        return {"status": "no records"}
    cells = [[pairs.scored[key] for key in side] for side in sides]
    shares = all((cell.unit == "fraction").all() for side in cells for cell in side)
    scale, units = 100 if shares else 1, [pairs.units(a, b) for a, b in zip(*sides, strict=True)]
    gaps, (a_value, b_value) = [a - b for a, b in units], map(mean_over_tasks, zip(*units, strict=True))
    word = pairs.task_status.get(sides[1][0][:5], "ok") if len(tasks) == 1 else "ok"
    p, wider = sign_flip_p(gaps), (math.inf, -math.inf)
    if row.model != row.b_model and " + " in row.model + row.b_model:
        *wider, of_trainings = over_trainings(cells, a_value - b_value)
        p = max(p, of_trainings)
    elif row.model != row.b_model and word != "baseline_fails":
        word = "one_training"
    word = "untuned" if row.untuned and word == "ok" else word
    if exact := exact_bounds(gaps, shares, paired=True):
        low, high = min(exact[0], wider[0]), max(exact[1], wider[1])
    else:
        low, high = judged(row.low / scale, row.high / scale, drawn_means(gaps), wider)
    larger = max(row.p, p)  # the errors are those of our share, and of twice a smaller one in the table
    if abs(row.p - p) <= STANDARD_ERRORS * math.sqrt(larger * (3 - 2 * larger) / DRAWS) + 3 / DRAWS:
        p = row.p
    return {
        "n": sum(map(len, gaps)), "a_value": scale * a_value, "b_value": scale * b_value, "low": scale * low,
        "difference": scale * (a_value - b_value), "high": scale * high, "status": word,
        "p": math.nan if word == "baseline_fails" else p, "p_holm": row.family_holm,
        "verdict": "" if pilot or word in ("baseline_fails", "untuned") else verdict(row),
    }  # fmt: skip


def read_times(folder: Path) -> list[dict[str, Any]]:
    """Return what was timed, with the times and the ratios of the rounds that nothing disturbed."""
    records = read_records(folder / "speed").to_dict("records")
    for record in records:
        record["params"] = json.dumps(json.loads(record["params"]), sort_keys=True)
        record["device"] = json.loads(record["provenance"])["device"]
        clean = [sample for sample in record["samples"] if sample["disturbed"] is None]
        record["us"] = np.array([sample["us"] for sample in clean])
        record["pairs"] = np.array([s["reference_us"] / s["us"] for s in clean if s["reference_us"] is not None])
    return records


def differing_times(folder: Path) -> Iterator[str]:
    """Yield the rows of speed.csv that the records do not give; disturbed rounds are left out."""
    table = pd.read_csv(folder / "speed.csv", dtype={"budget": str}, low_memory=False)
    records, best = read_times(folder), {}
    if len(records) != len(table):
        yield f"speed.csv has {len(table)} rows, speed/ {len(records)}"
    timed = {tuple(record[name] for name in TIMED): record for record in records}
    for record in records:
        if record["bench"] == "ceiling" and len(record["us"]):
            rate = record["bytes_min"] / np.median(record["us"])
            best[record["device"]] = max(rate, best.get(record["device"], 0))
    for _, row in table.iterrows():
        record = timed.get(tuple(row[TIMED]), {"us": [], "pairs": [], "samples": [], "bytes_min": 0, "device": ""})
        us, pairs = record["us"], record["pairs"]
        ours = {"n": len(us), "disturbed": len(record["samples"]) - len(us)}
        if len(us):
            ours |= {"median_us": np.median(us), "p5_us": np.quantile(us, 0.05), "p95_us": np.quantile(us, 0.95)}
            ours["floor_us"] = record["bytes_min"] / best.get(record["device"], math.nan)
            ours["fraction"] = ours["floor_us"] / ours["median_us"]
        if len(pairs):
            ours["ratio"] = np.median(pairs)
        if len(pairs) > 1:
            ours["ratio_low"], ours["ratio_high"] = judged(row.ratio_low, row.ratio_high, drawn_medians(pairs))
        if wrong := differences(row, ours):
            yield f"speed.csv {tuple(row[TIMED])}: {wrong}"


def main(folders: Sequence[Path]) -> int:
    """Print a line a run and one for each row that differs; return 1 where there is one."""
    from recompute_measures import differing_front, differing_measures
    from recompute_ranks import differing_ranks

    wrong = 0
    for folder in folders or sorted(path.parent for path in (ROOT / "results").glob("*/summary.csv")):
        scored, status = read_cells(folder)
        found = {
            "cells": ("summary", [*differing_cells(folder, scored, status)]),
            "comparisons": ("comparisons", [*differing_pairs(folder, scored, status)]),
            "times": ("speed", [*differing_times(folder)]),
            "ranks": ("ranks", [*differing_ranks(folder, scored, status)]),
            "front": ("pareto", [*differing_front(folder, scored, status)]),
            "measures": ("measures", [*differing_measures(folder, scored, status)]),
        }  # fmt: skip
        rows = {name: len(pd.read_csv(folder / f"{file}.csv", low_memory=False)) for name, (file, _) in found.items()}
        told = ", ".join(f"{n - len(found[k][1]):,} of {n:,} {k}" for k, n in rows.items())
        print(f"{folder.name}: {told}", flush=True)
        differing = [text for _, texts in found.values() for text in texts if not text.startswith(LEFT)]
        left = Counter(text for text in found["measures"][1] if text.startswith(LEFT))
        print("".join(f"  {text}: {n}\n" for text, n in left.items()), end="")
        print("".join(f"  {text}\n" for text in differing), end="", flush=True)
        wrong += len(differing)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
