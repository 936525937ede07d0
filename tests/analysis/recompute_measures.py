"""Recompute pareto.csv and measures.csv from the records, as ``recompute.py`` does, which calls this.

Of pairs of steps those are recomputed that have a row, since records do not say which were asked for.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import recompute as base
from scipy import stats

FEWER_DRAWS = 2_000
"""Of a point of a curve and of a front; other intervals have 10,000."""
KEY = "measure model variant over task context batch budget setting over_setting length at".split()
POINT = "model suite task context batch variant budget".split()
FRONT = [*POINT[:4], "steps_of", *POINT[4:]]
SETUP, STEP = [*KEY[1:3], "params", "context", "budget_tokens"], KEY[1:3] + KEY[5:9]
TEXT = "model task context variant budget length measure at".split()
SHARES = "distinct_1 distinct_2 distinct_3 distinct_4 average_distinct repeated_8 alpha beta".split()
STORED = ("head_", "hit_rate", "misses", "overlap_", "effective_budget", "_minus_", "traffic_over_quest")
"""Parts of the names of measures that are not recomputed: a run stores them as such; the last is arithmetic."""


def text(value: Any) -> str:
    """Return a part of a key as tables print it."""
    return "" if pd.isna(value) else str(int(value)) if isinstance(value, float) else str(value)


def differing(path: Path, names: Sequence[str], found: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the rows of a table that are not as found, those that it lacks, and those that nothing gives.

    The ``bounds`` of a row found are draws of its value where the interval is a bootstrap.
    """
    table = pd.read_csv(path, dtype=dict.fromkeys(names, str)).fillna(dict.fromkeys(names, ""))
    rows = table.set_index(names, verify_integrity=True).to_dict("index")
    for ours in found:
        row = rows.pop(key := tuple(text(ours.get(name)) for name in names), dict.fromkeys(table, np.nan))
        if isinstance(bounds := ours.get("bounds", (np.nan, np.nan)), np.ndarray):
            bounds = base.judged(row["low"], row["high"], bounds, theirs=ours.get("draws", base.DRAWS))
        elif "front_share" in ours:
            ours["front_share"] = base.near(ours["front_share"], row["front_share"], FEWER_DRAWS)
        ours = ours | {"low": bounds[0], "high": bounds[1]}
        if wrong := base.differences(row, {name: x for name, x in ours.items() if name in row and name not in names}):
            yield f"{path.name} {key}: {wrong}"
    for key in rows:
        yield f"{base.LEFT} {key[0]}" if any(part in key[0] for part in STORED) else f"{path.name} {key}: no records"


def differing_front(folder: Path, scored: dict[Any, pd.DataFrame], status: dict[Any, str]) -> Iterator[str]:
    """Yield the rows of pareto.csv that the records do not give: variants scored and timed alike, over tasks in all."""
    steps, rivals = defaultdict(list), defaultdict(list)
    for r in base.read_times(folder):
        if (r["bench"], r["stage"], r["reference"]) == ("decode", "step", "full") and len(r["pairs"]):
            names = SETUP[1:2] + SETUP[3:] if r["weights"] == "random" else SETUP
            steps[tuple(text(r[name]) for name in names)].append((r["model"], r["batch"], r["pairs"]))
    pairs = base.Pairs(scored, status, pd.read_csv(folder / "comparisons.csv", low_memory=False))
    able = sorted(place for place, word in pairs.task_status.items() if word != "baseline_fails")
    for suite, variant in sorted({(k[:2] + k[3:5], k[5:]) for k in pairs.scored.keys() - {*pairs.fulls.values()}}):
        keys = [place + variant for place in able if place[:2] + place[3:] == suite]
        if not (keys and pairs.scored.keys() >= {*keys}):
            continue
        first = pairs.scored[keys[0]].iloc[0]
        params, task = json.dumps(json.loads(first.params), sort_keys=True), keys[0][2] if len(keys) == 1 else "all"
        sign = (-1 if first.higher_is_better else 1) * (100 if first.unit == "fraction" else 1)
        size = (text(suite[2]), text(first.budget_tokens))
        for timed, batch, ratios in steps[suite[0], variant[0], params, *size] + steps[variant[0], *size]:
            gaps = [sign * np.subtract(*pairs.units(key, pairs.fulls[key[:5]])) for key in keys]
            lost = sum(base.unit_draws(len(gap), key[:5]) @ gap for key, gap in zip(keys, gaps, strict=True))
            key = (*suite[:2], task, suite[2], timed, batch, *variant)
            ours = {"n": sum(map(len, gaps)), "loss": base.mean_over_tasks(gaps), "budget_tokens": first.budget_tokens}
            fast = {"times_full": np.median(ratios), "drawn": (lost.round(9), base.drawn_medians(ratios))}
            rivals[suite, timed, batch].append(dict(zip(FRONT, key, strict=True)) | ours | fast)
    for point, others in ((point, points) for points in rivals.values() for point in points):
        (lost, fast), drawn = point["drawn"], [(0, 1), *(each["drawn"] for each in others)]
        beaten = [(x <= lost) & (y >= fast) & ((x < lost) | (y > fast)) for x, y in drawn]
        point["front_share"] = 1 - np.any(beaten, axis=0).mean()
    yield from differing(folder / "pareto.csv", FRONT, chain(*rivals.values()))


def differing_measures(folder: Path, scored: dict[Any, pd.DataFrame], status: dict[Any, str]) -> Iterator[str]:
    """Yield the rows of measures.csv that the records do not give, and a line for each that a run only stores."""
    cells = {key: cell for key, cell in scored.items() if status[key] == "ok"}
    times, written, path = base.read_times(folder), [*of_texts(folder)], folder / "measures.csv"
    found = chain(pooled(cells), curves(cells), of_steps(times, path), written, composed(times, written))
    yield from differing(path, KEY, found)


def pooled(cells: dict[Any, pd.DataFrame]) -> Iterator[dict[str, Any]]:
    """Yield the mean score, in points, over each pool of tasks that a variant has all of."""
    for name, tasks in base.read_pools().items():
        for key in {(*key[:2], name, *key[3:]) for key in cells if key[2] in tasks}:
            members = [(*key[:2], task, *key[3:]) for task in tasks]
            if cells.keys() >= {*members}:
                units = [100 * cells[member].groupby("problem").score.mean().to_numpy() for member in members]
                bounds = base.exact_bounds(units, shares=False, paired=False) or base.drawn_means(units)
                ours = {"n": sum(map(len, units)), "value": base.mean_over_tasks(units), "bounds": bounds}
                yield {"measure": "score"} | dict(zip(POINT, key, strict=True)) | ours


def curves(cells: dict[Any, pd.DataFrame]) -> Iterator[dict[str, Any]]:
    """Yield scores and losses along answers and texts of eight parts or more, in at most eight stretches."""
    shortest = pd.DataFrame([*cells], columns=range(7)).groupby([0, 2])[3].min()
    for key, cell in cells.items():
        length = max(0 if parts is None else len(parts) for parts in cell.parts)
        shares, higher, step = (cell.unit == "fraction").all(), cell.higher_is_better.all(), -(-length // 8)
        scale, kind = 100 if shares else 1, "score" if higher else "loss"
        answers = cell[["problem", "parts"]].to_numpy() if length >= 8 and key[3] == shortest[key[0], key[2]] else ()
        parts = [(i // step, problem, part) for problem, answer in answers for i, part in enumerate(answer)]
        for stretch, means in pd.DataFrame(parts, columns=[*"abc"]).groupby(["a", "b"]).c.mean().groupby("a"):
            units, at = means.to_numpy(), min((stretch + 1) * step, length)
            bounds = base.exact_bounds([units], shares and higher, paired=False)
            bounds = tuple(scale * x for x in bounds) if bounds else scale * (base.unit_draws(len(units)) @ units)
            about = dict(zip(POINT, key, strict=True), measure=f"{kind}_along", length=length, at=at, draws=FEWER_DRAWS)
            yield about | {"n": len(units), "value": scale * units.mean(), "bounds": bounds}


def of_steps(times: list[dict[str, Any]], path: Path) -> Iterator[dict[str, Any]]:
    """Yield the bytes that Full's step must read over those of a variant's, and each pair of steps that has a row."""
    steps, table = defaultdict(list), pd.read_csv(path, dtype=dict.fromkeys(KEY, str)).fillna("")
    for r in (r for r in times if r["stage"] in ("step", "speculative_step")):
        sizes = [f"{x}={y}" for x in ("hit_rate", "prompts") for y in [json.loads(r["params"]).get(x)] if y is not None]
        shared = {"own_choices": 2, "decode": 4}.get(r["bench"], 3)
        place = (r["bench"], r["context"], r["model"], r["batch"])[:shared]
        steps[r["variant"]].append(r | {"setting": " ".join(sizes), "place": place})
    full = {r["place"]: r["bytes_min"] for r in steps["full"] if r["bench"] == "decode"}
    for r in chain(*steps.values()):
        if r["variant"] != "full" and r["stage"] == "step" and r["place"] in full:
            ours = {"over": "full", "n": len(r["us"]), "value": full[r["place"]] / r["bytes_min"]}
            yield {"measure": "memory_bound"} | {name: r[name] for name in STEP} | ours
    for row in table[table.measure.isin(["times_as_fast", "extra_ms"])][KEY].to_dict("records"):
        for a, b in product(steps[row["variant"]], steps[row["over"]]):
            alike = a["place"] == b["place"] and b["budget"] in (a["budget"], "full")
            if alike and [*(text(a[x]) for x in STEP), b["setting"]] == [row[x] for x in (*STEP, "over_setting")]:
                groups, by, n = [a["us"] / 1000, b["us"] / 1000], np.subtract, min(len(a["us"]), len(b["us"]))
                if row["measure"] == "times_as_fast":  # the pairs' own ratio where b is what a was timed beside
                    groups, by = [a["pairs"], np.ones(2) if a["reference"] == row["over"] else b["pairs"]], np.divide
                value, draws = (by(*map(find, groups)) for find in (np.median, base.drawn_medians))
                yield row | {"n": n, "value": value, "bounds": draws if n > 1 else (np.nan, np.nan)}


def of_texts(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the measures of written texts, over prompts; a text that a later job wrote anew counts."""
    found = defaultdict(dict)
    for path in sorted((folder / "generation").glob("*.parquet")):
        records = pd.read_parquet(path).query("status == 'ok'")
        records["prompt"] = [*zip(records.model, records.task, records.context, records.sample_index, strict=True)]
        full = records[records.method == "full"].set_index("prompt").measures.map(dict).to_dict()
        for r in records.to_dict("records"):
            for (name, at), value in of_a_text(seen := dict(r["measures"]), full.get(r["prompt"], {}), r["output_ids"]):
                found[*(r[part] for part in TEXT[:5]), int(seen["tokens"]), name, at][r["prompt"]] = value
    for key, by_prompt in found.items():
        ours, values = dict(zip(TEXT, key, strict=True)), [*by_prompt.values()]
        half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values) if len(values) > 1 else np.nan
        edges = (0, 1) if ours["measure"] in SHARES else (-np.inf, np.inf)
        bounds = tuple(np.clip([np.mean(values) - half, np.mean(values) + half], *edges))
        yield ours | {"n": len(values), "value": np.mean(values), "bounds": bounds}


def of_a_text(seen: dict[str, float], full: dict[str, float], ids: Any) -> Iterator[tuple[tuple[str, int], float]]:
    """Yield a text's measures by name and tokens written; shares of n-grams by its tokens where they are stored.

    The prompt's pass writes the first token, and a step one more than the drafts it keeps. Alpha and beta are drafts
    kept a step over the tree's depth: TokenSwift (arXiv 2502.18890), equations 4 and 6.
    """
    whole, depth, nan = int(seen["tokens"]), seen.get("depth") or np.nan, np.nan
    if ids is not None:
        new = {n: len({*zip(*(ids[i:] for i in range(n)), strict=False)}) / (whole - n + 1) for n in (1, 2, 3, 4, 8)}
        seen |= {f"distinct_{n}": share for n, share in new.items()} | {"repeated_8": 1 - new[8]}
    found = {(name, whole): seen.get(name, nan) for name in SHARES}
    found["average_distinct", whole] = np.mean([seen.get(name, nan) for name in SHARES[:4]])
    for at in sorted({int(name.split("_")[1]) for name in seen if name.startswith("at_")}):
        steps, tokens, ms, ngram = (seen.get(f"at_{at}_{x}", nan) for x in ("steps", "tokens", "ms", "ngram_tokens"))
        plain = full.get(f"at_{at}_ms", nan) / (full.get(f"at_{at}_tokens", nan) - 1)
        found["tokens_per_step", at], found["minutes", at] = (tokens - 1) / steps, ms / 60_000
        found["speedup", at] = plain / (ms / (tokens - 1))
        found["alpha", at], found["beta", at] = (tokens - 1 - steps) / steps / depth, ngram / steps / depth
    found["speedup_growth", whole] = found["speedup", whole] - found.get(("speedup", whole // 5), nan)
    yield from ((key, value) for key, value in found.items() if not np.isnan(value))


def composed(times: list[dict[str, Any]], written: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a shape's speed over Full at a whole text's tokens a step; steps by lines through the timed contexts."""
    steps = defaultdict(list)
    for r in times:
        if r["stage"] == "speculative_step" and r["weights"] == "random" and len(r["pairs"]):
            both = np.median(r["us"]) * np.array([1, np.median(r["pairs"])])
            steps[r["model"], r["variant"]].append((r["context"], *both))
    for row, (model, variant) in product(written, steps):
        if (row["measure"], row["at"], row["variant"]) == ("tokens_per_step", row["length"], variant):
            context, *us = np.transpose(steps[model, variant])
            lines = [stats.linregress(context - row["context"] - row["length"] / 2, each) for each in us]
            value, *bounds = np.multiply(lines[1].intercept / lines[0].intercept, [row["value"], *row["bounds"]])
            yield dict(row, measure="composed_speedup", model=model, over="full", value=value, bounds=tuple(bounds))
