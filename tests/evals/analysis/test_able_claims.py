"""Claims that the able model's runs answer find one row each in tables of what the configurations score and time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from longdecode.evals.analysis.cells import all_cells, scored_cells
from longdecode.evals.analysis.comparisons import comparisons_table
from longdecode.evals.analysis.declaration import claims_table, load_declarations
from longdecode.evals.analysis.measures import measures_table
from longdecode.evals.analysis.query import Query, Tables
from longdecode.evals.analysis.summary import summary_table
from longdecode.evals.budgets import FULL_BUDGET
from longdecode.evals.records import Record, SpeedRecord, SpeedSample
from longdecode.evals.run_config import RunConfig, load_run_config
from longdecode.evals.stats import Spread
from longdecode.evals.tasks.registry import suite_tasks
from longdecode.evals.throughput.summary import speed_table

ROOT = Path(__file__).parents[3]
LYCHEE = load_declarations(ROOT / "reporting" / "papers")["lychee"]
SAMPLES = 12
SPREAD = Spread(0.95, 100, 0)


def scored(run: RunConfig, make: Callable[..., Record], leave_out: set[str]) -> Iterator[Record]:
    """Every sample that the configuration plans, a few of each task: a window solves few, the others nearly all."""
    for suite, spec in run.suites.items():
        for task in (task for task in spec.tasks or suite_tasks(suite) if task not in leave_out):
            for variant in (variant for variant in run.methods if suite in run.suites_of(variant)):
                few = run.methods[variant].method == "streaming"
                for budget in run.budgets_of(variant):
                    for i in range(SAMPLES):
                        yield make(
                            profile=run.profile, model="qwen2.5-coder-1.5b", method=run.methods[variant].method,
                            variant=variant, suite=suite, task=task, context=spec.contexts[0], batch=spec.batch,
                            budget=budget.text, budget_tokens=budget.tokens(spec.contexts[0]), sample_index=i,
                            prompt_sha256=str(i), score=float(i < (2 if few else 10)), data_source="real",
                            measures={"kv_tokens_read": 200.0 if few else 900.0},
                        )  # fmt: skip


def timed(run: RunConfig, origin: Record) -> Iterator[SpeedRecord]:
    """Every step that the configuration times, twice as fast as full attention."""
    for grid in run.throughput.grids if run.throughput else ():
        for context in grid.contexts:
            for batch in grid.batches:
                for variant in grid.timed_on:
                    budgets = grid.budgets if run.methods[variant].takes_budget else (FULL_BUDGET,)
                    for budget in budgets:
                        shared: dict[str, Any] = origin.model_dump(include={"params", "seed", "provenance"})
                        yield SpeedRecord(
                            **shared, profile=run.profile, bench=grid.bench, weights="checkpoint", model=grid.model,
                            method=run.methods[variant].method, variant=variant, stage="step", context=context,
                            batch=batch, budget=budget.text, budget_tokens=budget.tokens(context), status="ok",
                            samples=[SpeedSample(us=100.0 + i, reference_us=2 * (100.0 + i)) for i in range(6)],
                            reference="full", bytes_min=1000 if variant == "full" else 500,
                        )  # fmt: skip


@pytest.fixture(params=["qwen", "qwen-lychee"])
def run(request: pytest.FixtureRequest) -> RunConfig:
    return load_run_config(ROOT / "config" / f"{request.param}.yaml")


@pytest.fixture
def tables(run: RunConfig, make_record: Callable[..., Record], tmp_path: Path) -> Tables:
    others = {"longbench_multi_news", "longbench_qmsum"}  # rows of the latter are named, not at hand
    cells = all_cells(scored(run, make_record, {*others, *(f"{name}_prompt" for name in others)}))
    steps, found = list(timed(run, make_record())), scored_cells(cells)
    return Tables({
        "summary": summary_table(cells, SPREAD),
        "comparisons": comparisons_table(found, LYCHEE.pairs, LYCHEE.pools, SPREAD),
        "speed": speed_table(steps, SPREAD.confidence, SPREAD.resamples),
        "measures": measures_table(tmp_path, found, steps, LYCHEE.pairs, LYCHEE.pools, SPREAD),
    })  # fmt: skip


def test_every_claim_of_a_run_finds_its_row(run: RunConfig, tables: Tables) -> None:
    rows = claims_table({"lychee": LYCHEE}, tables, run.profile)
    mine = rows[rows["run"] == run.profile]
    assert len(mine) >= 3 and mine["like_for_like"].notna().all(), mine[["claim", "why"]].to_string()
    assert (mine["why"].str.len() > 20).all() and not mine["why"].str.contains("Not read").any()
    words = {claim.claim: row.verdict for claim, row in zip(LYCHEE.claims, rows.itertuples(), strict=True)}
    if run.profile == "qwen":
        assert (
            mine["bound"].notna().any()
            and words["Speed over full attention, the variant that is scored"] == "not comparable"
        )
    else:
        assert words["HardKuma over direct gates"] == "cannot tell", "one training of each"
        assert words["AIME24 over full attention, with cache correction"] == "not comparable"


def test_print_s_mean_is_over_the_tasks_that_have_rows(run: RunConfig, tables: Tables) -> None:
    where: dict[str, Any] = {"a": "lychee", "b": "full", "suite": "longbench", "budget": "4096"}
    found = tables.find(Query(table="comparisons", where={**where, "task": ["longbench_eight", "longbench_seven"]}))
    if run.profile == "qwen-lychee":
        assert found is not None and (found.row["task"], found.n) == ("longbench_seven", 7 * SAMPLES)
    else:
        assert found is None


def test_printed_tables_find_rows_of_the_able_model(run: RunConfig, tables: Tables) -> None:
    if run.profile == "qwen":
        return
    for name, columns in {"longbench": ["qasper", "triviaqa"], "heads": ["passkey"]}.items():
        table = LYCHEE.tables[name]
        assert table.ours is not None
        asked = [table.ours.query_of(row, column) for row in table.rows for column in columns]
        found = [tables.find(query) for query in asked if query]
        assert sum(number is not None for number in found) >= 2, name
