"""Numbers on pages are those of the tables: each is looked up again here, by another road."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from longdecode.reporting import wording
from longdecode.reporting.overview import row_anchor
from longdecode.reporting.runs import Run
from site_pages import Parsed


def matching(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Rows that have the values."""
    for column, value in values.items():
        table = table[table[column] == value]
    return table


def test_each_claim_stands_once_with_numbers_of_the_table(pages: dict[str, Parsed], committed: dict[str, Run]) -> None:
    claims = pd.concat([run.claims.assign(folder=name) for name, run in committed.items() if len(run.claims)])
    shown = {name: row for name, row in pages["index"].rows.items() if name.startswith("claim-")}
    assert len(shown) == len(claims.drop_duplicates(["paper", "claim"]))
    for (paper, claim), rows in claims.groupby(["paper", "claim"]):
        answered = rows[rows.like_for_like.notna()]
        row = next(r for name, r in shown.items() if r[0] == claim and name.startswith(f"claim-{paper}-"))
        assert row[1].startswith(str(rows.published.iloc[0]))
        if len(answered):
            both = zip(answered.like_for_like, answered.unit, strict=True)
            numbers = {wording.number(v, "" if wording.missing(u) else u) for v, u in both}
            assert any(row[2].lstrip("+").startswith(number) for number in numbers), row
        else:
            assert row[2] == "not run" and row[3] == "not run"


def test_a_claim_has_the_answer_of_its_own_paper_s_run(pages: dict[str, Parsed], committed: dict[str, Run]) -> None:
    mine = matching(committed["qwen-nosa"].claims, claim="Blocks that steps share, over InfLLM-V2's, points").iloc[0]
    row = next(r for r in pages["index"].rows.values() if r and "Blocks that steps share, over InfLLM" in r[0])
    assert row[2].lstrip("+").startswith(f"{mine.like_for_like:.1f} points") and f"{mine.low:.1f}" in row[2]


def test_a_row_of_compare_has_loss_and_speed_of_a_variant(pages: dict[str, Parsed], committed: dict[str, Run]) -> None:
    run, place = committed["qwen"], {"context": 16384, "budget": "0.1"}
    pair = matching(run.comparisons, a="quest", b="full", suite="ruler", task="all", **place).iloc[0]
    timed = {"variant": "quest", "stage": "step", "batch": 8, "model": "qwen2.5-coder-1.5b"}
    step = matching(run.speed, **timed, **place).iloc[0]
    rank = matching(run.ranks, variant="quest", suite="ruler", **place).iloc[0]
    row = pages["compare"].rows[row_anchor("qwen", "qwen2.5-coder-1.5b", 16384, "quest", "0.1")]
    assert f"{rank.rank_low}–{rank.rank_high}" in row and f"{rank.bytes_share:.0%}".replace("%", " %") in row
    assert f"{step.ratio:.2f}" in row
    loss, low, high = (wording.number(-x, "points") for x in (pair.difference, pair.high, pair.low))
    assert any(cell.startswith(f"{loss} [{low}, {high}]") for cell in row), row


def test_every_timed_variant_of_a_scored_model_has_its_row(pages: dict[str, Parsed], committed: dict[str, Run]) -> None:
    run = committed["qwen"]
    scored = run.summary[(run.summary.status == "ok") & (run.summary.variant != "full")]
    compared = set(run.losses.variant)
    for r in scored[scored.variant.isin(compared)].drop_duplicates(["context", "variant", "budget"]).itertuples():
        assert row_anchor("qwen", r.model, r.context, r.variant, r.budget) in pages["compare"].rows


def test_a_paper_s_cell_has_print_and_ours(pages: dict[str, Parsed], committed: dict[str, Run]) -> None:
    timed = {"variant": "lychee", "stage": "step", "context": 131072, "batch": 1, "budget": "4096"}
    step = matching(committed["h200"].speed, model="llama3-8b", **timed).iloc[0]
    cells = [cell for row in pages["paper-lychee"].all_rows for cell in row]
    assert f"2.7/{step.ratio:.2f} [{step.ratio_low:.2f}, {step.ratio_high:.2f}]" in cells
    kernel = next(cell for cell in cells if cell.startswith("up to 7.0/"))
    ours, low, high = (float(number) for number in re.findall(r"[\d.]+", kernel)[1:])
    assert low < ours < high


def test_a_task_s_score_is_that_of_the_summary(pages: dict[str, Parsed], committed: dict[str, Run]) -> None:
    scored = {"suite": "longbench", "task": "all", "variant": "snapkv", "budget": "1024"}
    row = matching(committed["qwen-lychee"].summary, **scored).iloc[0]
    start = f"{100 * row.value:.1f} [{100 * row.low:.1f}, {100 * row.high:.1f}]"
    shown = [row for row in pages["task-longbench"].all_rows if row[:1] == ["SnapKV"]]
    assert any(cell.startswith(start) for row in shown for cell in row)


def test_a_method_s_smallest_budget_is_within(pages: dict[str, Parsed], committed: dict[str, Run]) -> None:
    mine = matching(committed["qwen-budgets"].losses, variant="quest_sum", suite="ruler", task="all", context=16384)
    assert set(mine[mine.verdict == "within"].budget) == {"0.25", "0.5"}
    rows = pages["method-quest"].all_rows
    start = rows.index(["Qwen2.5-Coder-1.5B-Q4, Quest, sum of scores; run qwen-budgets"])
    assert ["RULER", "16K", "4,096 tokens"] in [row[:3] for row in rows[start:]]


def test_what_tuning_took_is_that_of_the_record(pages: dict[str, Parsed], committed: dict[str, Run]) -> None:
    record = json.loads((committed["qwen"].folder / "tuning" / "qwen2.5-coder-1.5b.json").read_text())
    mine, root = record["methods"]["lychee"], committed["qwen"].folder.parents[1]
    seconds = json.loads((root / mine["fixed"]["roles"]).with_name("run.json").read_text())["seconds"]
    row = next(row for row in pages["trust"].all_rows if row[:3] == ["LycheeDecode", "qwen", "decoded"])
    counts, spent = (len(mine["trials"]), len(record["prompts"])), (mine["seconds"], seconds)
    assert [*row[3:5], *row[7:]] == [*map(str, counts), *(f"{each:.0f}" for each in spent)]


@pytest.mark.parametrize("name", ["index", "compare", "paper-lychee", "paper-nosa", "task-mini-longgen"])
def test_each_figure_has_its_data_beside_it(site: Path, pages: dict[str, Parsed], name: str) -> None:
    files = [link for link, _ in pages[name].links if link.startswith("data/")]
    assert files and len(files) == pages[name].html.count('class="chart"')
    for file in files:
        assert len(pd.read_csv(site / file)) > 1


def test_the_figure_of_claims_has_the_numbers_of_the_table(site: Path, pages: dict[str, Parsed]) -> None:
    data = pd.read_csv(site / "data" / "index-published.csv")
    claims = [row for name, row in pages["index"].rows.items() if name.startswith("claim-") and "×" in row[2]]
    shown = [row for row in claims if row[3] in ("reproduced", "partly", "not reproduced")]
    assert sorted(f"{ours:.2f}×" for ours in data.ours) == sorted(row[2].split()[0] for row in shown)
    printed = sorted(float(re.search(r"[\d.]+", row[1])[0]) for row in shown)  # type: ignore[index]
    assert sorted(data["print"]) == printed
