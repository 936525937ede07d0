"""Reading a run: signs and verdicts of losses, titles, and folders that no page can be made of."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from longdecode.reporting import tasks, terminal, wording
from longdecode.reporting.build import build, build_all
from longdecode.reporting.runs import ReportError, middle, read_run
from site_pages import Maker, parsed

HARM = "<script>alert(7)</script>"


def test_a_loss_is_above_zero_where_a_variant_is_worse(folder: Maker) -> None:
    interval = {"difference": 0.03, "low": 0.01, "high": 0.05}
    lower = {"better": "lower", "unit": "nats/token", "suite": "t", "task": "t"} | interval
    run = read_run(folder([{"a": "quest"}, {"a": "quest"} | lower], [{"variant": "quest"}], []))
    assert list(run.losses.loss) == [1.0, 0.03]
    assert list(run.losses.loss_low) == [-0.2, 0.01] and list(run.losses.loss_high) == [1.8, 0.05]


def test_a_comparison_without_a_verdict_is_undecided_unless_the_task_says_nothing(folder: Maker) -> None:
    rows = [{"a": "quest", "verdict": None}, {"a": "h2o", "b": "quest"}]
    rows.append({"a": "tova", "verdict": None, "status": "baseline_fails"})
    run = read_run(folder(rows, [{"variant": v, "method": v} for v in ("quest", "tova", "h2o")], []))
    assert run.losses.set_index("variant").verdict.to_dict() == {"quest": "cannot tell", "tova": ""}


def test_titles_name_the_method_and_what_sets_a_variant_apart(folder: Maker) -> None:
    rows = [("quest", "quest", "{}"), ("lychee_ratio97", "lychee", '{"roles": "a/b.json"}')]
    rows += [(name, "retro", '{"window": 8}') for name in ("retro_w8", "retro_again")]
    run = read_run(folder([], [{"variant": v, "method": m, "params": p} for v, m, p in rows], []))
    assert run.titles == {
        "quest": "Quest", "retro_w8": "RetroAttention, window 8 (retro_w8)",
        "lychee_ratio97": "LycheeDecode, ratio 0.97", "retro_again": "RetroAttention, window 8 (retro_again)",
    }  # fmt: skip


def test_a_suite_stands_by_its_mean_where_that_was_compared(folder: Maker) -> None:
    tasks = [{"a": "quest", "task": t} for t in ("one", "two")]
    scored = [{"variant": "quest", "task": t} for t in ("all", "one", "two")]
    assert read_run(folder(tasks, scored, [])).main_tasks == {"s": ["one", "two"]}
    assert read_run(folder([*tasks, {"a": "quest", "task": "all"}], scored, [])).main_tasks == {"s": ["all"]}


def test_folders_without_results_are_refused_by_name(tmp_path: Path, folder: Maker) -> None:
    with pytest.raises(ReportError, match="no row in summary"):
        build(tmp_path / "nothing", tmp_path / "out")
    failed = folder([], [{"variant": "quest", "status": "failed_gate"}, {"variant": "tova", "status": "oom"}], [])
    with pytest.raises(ReportError, match=r"every cell failed \(1 failed_gate, 1 oom\)"):
        read_run(failed)
    (failed / "config.yaml").touch()
    with pytest.raises(ReportError, match="no run in it"):
        build_all(failed.parent, tmp_path / "out")
    pd.read_csv(failed / "summary.csv").rename(columns={"variant": "label"}).to_csv(failed / "summary.csv", index=False)
    with pytest.raises(ReportError, match="no column 'variant'"):
        read_run(failed)


def test_a_small_run_has_a_site_of_its_own(small: Path, tmp_path: Path) -> None:
    index = build(small, tmp_path / "out")
    page = parsed(index)
    assert "Quest is the fastest within the margin." in page.blocks and "007, 4K tokens, batch 8; D" in page.blocks
    assert "The fastest variant is not good enough." in page.blocks
    assert {path.stem for path in index.parent.glob("*.html")} == {
        "index", "compare", "trust", "task-s", "method-full", "method-quest", "method-snapkv"
    }  # fmt: skip
    assert "#papers" not in page.html and "claim-" not in page.html
    assert "sceptic" not in parsed(index.parent / "trust.html").text, "doubts are of the runs that are committed here"
    (index.parent / "method-gone.html").write_text("")
    build(small, tmp_path / "out")
    assert not (index.parent / "method-gone.html").exists()
    for table in small.glob("*.csv"):
        table.write_text(table.read_text().replace("007", f"<!--{HARM}"))
    pages = [page.read_text() for page in build(small, tmp_path / "out").parent.glob("*.html")]
    assert pages and not [page for page in pages if "<!--" in page or HARM in page]


def test_a_run_whose_tasks_full_attention_fails_says_so(folder: Maker) -> None:
    failed = {"a": "quest", "status": "baseline_fails", "verdict": None}
    assert "full attention is not shown to beat a small window" in terminal.answer(folder([failed], [], []))
    assert "itself scores 0" in terminal.answer(folder([{"a": "quest", "b_value": 0.0}], [], []))
    assert "within the margin of Full" in terminal.answer(folder([failed, {"a": "quest"}], [], []))


def test_times_alone_make_a_site(folder: Maker, tmp_path: Path) -> None:
    timed = [{"variant": "full", "method": "full", "budget": "full", "ratio": 1.0}, {"variant": "quest"}]
    index = build(folder([], [], timed), tmp_path / "out")
    assert "1.50" in parsed(index.parent / "compare.html").text and not list(index.parent.glob("task-*.html"))


def test_answers_stand_side_by_side_where_both_are_stored(small: Path) -> None:
    usual = {"task": "s", "context": 4096, "seed": 0}
    full = [("full", "full", 0, 1.0, "right"), ("full", "full", 1, 1.0, None), ("full", "full", 2, 1.0, "yes")]
    quest = [
        ("quest", "512", 0, 0.0, HARM * 50),
        ("quest", "512", 1, 0.0, "no"),
        ("quest", "512", 2, 1.0, "yes"),
    ]
    names = ("label", "budget", "sample_index", "score", "output_text")
    rows = [usual | dict(zip(names, row, strict=True)) for row in (*full, *quest, ("tova", "512", 2, 1.0, "yes"))]
    for v in ("full", "quest", "tova"):
        path = small / "records" / "007" / v / "s.4096.parquet"
        path.parent.mkdir(parents=True)
        pd.DataFrame([row for row in rows if row["label"] == v]).to_parquet(path)
    (pair,) = tasks.pairs(read_run(small), "s")
    assert (pair.variant, pair.sample_index, pair.full_text, pair.score) == ("quest", 0, "right", 0.0)
    assert len(pair.text) < 400 and "[…]" in pair.text
    page = build(small, small / "out").with_name("task-s.html").read_text()
    assert "&lt;script&gt;alert(7)" in page and HARM not in page


def test_budgets_are_ordered_by_size() -> None:
    assert middle(["full", "1024", "256", "4096"]) == "1024" and middle(["bytes=0.25", "0.5", "0.1"]) == "0.5"
    assert middle(["full"]) == "full"


@pytest.mark.parametrize(("value", "unit", "text"), [
    (-0.04, "points", "0.0"), (-3.25, "points", "−3.2"), (1234.5, "tokens", "1,234"), (1.625, "times", "1.62")
])  # fmt: skip
def test_numbers_have_the_digits_of_their_unit(value: float, unit: str, text: str) -> None:
    assert wording.number(value, unit) == text


def test_words_for_contexts_and_budgets() -> None:
    assert [wording.tokens(n) for n in (32768, 102400, 100000, 2048)] == ["32K", "100K", "100,000", "2K"]
    assert wording.budget("0.1") == "10% of the context" and wording.budget("bytes=0.25") == "25% of the bytes"
    assert wording.budget("0.1", 410.0) == "410" and wording.budget("full") == "all"
    tasks = [("mini_recall", "all"), ("icl", "icl_banking77"), ("math", "math500")]
    assert [wording.task_title(*task) for task in tasks] == ["Look-ups", "Many-shot labels, banking77", "MATH500"]
