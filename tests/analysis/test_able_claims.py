"""Claims and printed numbers find one row each in tables of what a run's configuration scores, times and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from longdecode.analysis.cells import all_cells, scored_cells, speed_table, summary_table
from longdecode.analysis.comparisons import comparisons_table
from longdecode.analysis.declaration import Tables, load_declarations
from longdecode.analysis.measures import measures_table
from longdecode.analysis.stage import claims_table
from longdecode.evals.budgets import FULL_BUDGET
from longdecode.evals.records import Record, SpeedRecord, SpeedSample
from longdecode.evals.run_config import RunConfig, load_run_config
from longdecode.evals.stats import Spread
from longdecode.evals.store import write_records, write_table

ROOT = Path(__file__).parents[2]
PAPERS = load_declarations(ROOT / "reporting" / "papers")
LYCHEE, PAIRS = PAPERS["lychee"], [pair for paper in PAPERS.values() for pair in paper.pairs]
POOLS = {name: tasks for paper in PAPERS.values() for name, tasks in paper.pools.items()}
SAMPLES, TRACED = 12, ("overlap_top", "overlap_next", "effective_budget")
SPREAD = Spread(0.95, 100, 0)


def scored(run: RunConfig, make: Callable[..., Record]) -> Iterator[Record]:
    """Every sample that the configuration plans, a few of each task: a window solves few, the others nearly all."""
    for suite, spec in run.suites.items():
        for model, task, context in product(run.models, spec.tasks, spec.contexts):
            for variant in (variant for variant in run.methods if suite in run.suites_of(variant)):
                few = run.methods[variant].method == "streaming"
                for budget, i in product(run.budgets_of(variant), range(SAMPLES)):
                    yield make(
                        profile=run.profile, model=model, method=run.methods[variant].method, variant=variant,
                        suite=suite, task=task, context=context, batch=spec.batch, budget=budget.text,
                        budget_tokens=None if budget.of_bytes else budget.tokens(context), sample_index=i,
                        prompt_sha256=str(i), score=float(i < (2 if few else 10)), data_source="real",
                        measures={"kv_tokens_read": 200.0 if few else 900.0},
                    )  # fmt: skip


def timed(run: RunConfig, origin: Record) -> Iterator[SpeedRecord]:
    """Every step and kernel that the configuration times, twice as fast as full attention."""
    shared: dict[str, Any] = origin.model_dump(include={"seed", "provenance"})
    for grid in run.throughput:
        bench = {"kernels": "kernel", "equal_memory": "offload"}.get(grid.bench, grid.bench)
        for context, batch, variant in product(grid.contexts, grid.batches, grid.timed_on or ["longdecode"]):
            label = run.methods.get(variant)
            rates, size = (grid.hits.get(variant, [None]), "hit_rate") if label else (grid.full_heads, "full_heads")
            for budget, at in product(grid.budgets if not label or label.takes_budget else (FULL_BUDGET,), rates):
                yield SpeedRecord(
                    **shared, profile=run.profile, bench=bench, weights="checkpoint", model=grid.model,
                    method=label.method if label else grid.ops[0], variant=variant, stage="step", context=context,
                    batch=batch, budget=budget.text, budget_tokens=budget.tokens(context), status="ok",
                    samples=[SpeedSample(us=100.0 + i, reference_us=2 * (100.0 + i)) for i in range(6)],
                    reference="full", bytes_min=1000 if variant == "full" else 500, params={size: at},
                )  # fmt: skip


def written(run: RunConfig, make: Callable[..., Record]) -> Iterator[Record]:
    """One of every kind of text that the configuration writes: two tokens a step, marked at every 10,240."""
    for spec in run.generation.runs.values():
        seen = {"tokens": spec.tokens, "depth": 4, **{f"distinct_{order}": 0.5 for order in range(1, 5)}}
        for at in range(10_240, spec.tokens + 1, 10_240):
            seen |= {f"at_{at}_tokens": at, f"at_{at}_steps": at // 2, f"at_{at}_ms": at, f"at_{at}_ngram_tokens": 9}
        for context, task, variant in product(spec.prompts, spec.samplers, spec.named):
            cell = {"model": spec.model, "context": context, "task": task, "variant": variant}
            yield make(**cell, method=run.methods[variant].method, measures=seen)


@pytest.fixture(params=["qwen", "qwen-lychee", "qwen-roles", "retro"])
def run(request: pytest.FixtureRequest) -> RunConfig:
    return load_run_config(ROOT / "config" / f"{request.param}.yaml")


def tables_of(run: RunConfig, make_record: Callable[..., Record], tmp_path: Path) -> Tables:
    folder, cells = tmp_path / run.profile, all_cells(scored(run, make_record))
    write_records(folder / "generation" / "texts.parquet", written(run, make_record), Record)
    learned = {path for model in run.models for label in run.methods.values() for path in label.files_of(model)}
    for head in {folder.joinpath(*path.parts[2:-1]) for path in learned}:
        head.mkdir(parents=True, exist_ok=True)
        (head / "curve.csv").write_text("loss_1,loss_2,loss_3\n2,3,4\n")
        (head / "accuracy.csv").write_text("head,top1\n1,0.5\n")
    traced = pd.DataFrame(product(TRACED, range(1, 16)), columns=["measure", "index"])
    traced = traced.assign(variant="quest", layer=-1, value=0.5, low=0.4, high=0.6, n=8)
    for model, context in product(run.retrospection.models, run.retrospection.contexts):
        cell = {"model": model, "context": context, "budget": run.budgets[0].text}
        write_table(folder / "retrospection" / f"{model}.parquet", traced.assign(**cell))
    steps, found = list(timed(run, make_record())), scored_cells(cells)
    return Tables({
        "summary": summary_table(cells, SPREAD), "comparisons": comparisons_table(found, PAIRS, POOLS, SPREAD),
        "speed": speed_table(steps, SPREAD), "measures": measures_table(folder, found, steps, PAIRS, POOLS, SPREAD),
    })  # fmt: skip


tables = pytest.fixture(tables_of)


def test_every_claim_of_a_run_finds_its_row(run: RunConfig, tables: Tables) -> None:
    rows = claims_table({name: PAPERS[name] for name in ("lychee", "retro")}, tables, run.profile).set_index("claim")
    mine = rows[(rows["run"] == run.profile) & (rows["published"] != "up to 1.6")]  # exposure: of another table
    assert len(mine) == {"qwen": 1, "qwen-lychee": 5, "qwen-roles": 4, "retro": 11}[run.profile]
    assert mine["like_for_like"].notna().all() and (mine["why"].str.len() > 20).all()
    assert not mine["why"].str.contains("Not read").any() and mine["bound"].notna().any() == (run.profile == "qwen")


@pytest.mark.parametrize("run", ["qwen-lychee"], indirect=True)
def test_another_model_in_a_claim_s_place_is_judged_and_says_so(tables: Tables) -> None:
    row = claims_table({"lychee": LYCHEE}, tables, "qwen-lychee").set_index("claim")
    row = row.loc["LongBench over TidalDecode at 4,096 tokens, Qwen3"]
    assert (row["published"], row["verdict"]) == ("+1.72", "cannot tell")
    assert row["conditions"].startswith("Qwen2.5-Coder-1.5B") and "smaller model" in row["why"]


def test_where_the_paper_s_own_task_ran_it_answers() -> None:
    where = {"a": "lychee", "b": "tidal", "suite": "longbench", "task": "longbench_eight", "model": "qwen3-8b",
             "budget": "4096", "context": 32768}  # fmt: skip
    found = pd.DataFrame([where | {"difference": 1.6, "low": 0.9, "high": 2.3, "n": 1200, "unit": "points",
                                   "b_value": 31.8, "a_value": 33.4}])  # fmt: skip
    rows = claims_table({"lychee": LYCHEE}, Tables({"comparisons": found.assign(b_budget="4096")}), "papers-lychee")
    row = rows.set_index("claim").loc["LongBench over TidalDecode at 4,096 tokens, Qwen3"]
    assert (row["verdict"], row["why"]) == ("reproduced", "1200 prompts in all, TidalDecode's mean is 31.8.")


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_a_printed_number_pairs(paper: str, make_record: Callable[..., Record], tmp_path: Path) -> None:
    """A number pairs with one row of what its paper's runs plan, or else has one reason of the kinds that are named."""
    runs = (ROOT / "config" / "papers").glob(f"{paper}*.yaml")
    planned = [tables_of(load_run_config(run), make_record, tmp_path) for run in runs]
    known = yaml.safe_load(Path(__file__).with_name("unpaired.yaml").read_text())
    reasons, used = known["papers"][paper], set[int]()
    for name, table in PAPERS[paper].tables.items():
        for row, column in product(table.rows, table.columns):
            if isinstance(row.get(column), int | float) and not column.endswith("_std"):
                query = table.ours.query_of(row, column) if table.ours else None
                found = sum(tables.find(query) is not None for tables in planned)
                why = [i for i, reason in enumerate(reasons) if excuses(reason, name, row, column)]
                assert (found, len(why)) in ((1, 0), (0, 1)), (name, row, column, found, why)
                used |= {*why}
    assert len(used) == len(reasons) and {reason["kind"] for reason in reasons} <= {*known["kinds"]}


def excuses(reason: dict[str, Any], table: str, row: dict[str, Any], column: str) -> bool:
    """Return true where a reason is one for this cell."""
    here = reason["table"] == table and column in reason.get("columns", [column])
    return here and all(row[key] == value for key, value in reason.get("where", {}).items())
