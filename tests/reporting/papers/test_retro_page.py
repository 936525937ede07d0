"""The page of RetroAttention says what a run says, beside what was published, and states what is missing."""

from __future__ import annotations

import html
import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from longdecode.evals import curves, summary
from longdecode.evals.records import Record
from longdecode.evals.retrospection.job import COLUMNS
from longdecode.evals.run_config import load_run_config
from longdecode.evals.storage import write_records, write_table
from longdecode.reporting.build import build_report
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.identity import looks
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.registry import load_paper, papers_of
from longdecode.reporting.papers.retro.kernels import read_step_kernels
from longdecode.reporting.results import load_results

ROOT = Path(__file__).parents[3]
SHARE = {"share": 0.15}
METHODS: dict[str, dict[str, Any]] = {
    "full": {}, "quest": {}, "retro": {}, "retro_w8": {"method": "retro", "params": {"window": 8}}, "page_union": {},
    "quest_e8": {"method": "quest", "budgets": [0.08]},
    "quest_grow": {"method": "quest", "params": SHARE, "budgets": [256]},
    "retro_grow": {"method": "retro", "params": SHARE, "budgets": [256]},
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "profile": "papers",
    "models": {"miniature": {"path": "nowhere/weights"}, "llama": {"path": "meta-llama/Llama-3.1-8B-Instruct"}},
    "methods": METHODS,
    "budgets": [0.05],
    "suites": {
        "mini_longgen": {"contexts": [2048], "samples": 40},
        "longgenbench": {"contexts": [8192], "samples": 12},
        "pg19_long": {"contexts": [2048], "samples": 40},
    },
    "confidence": 0.95,
    "bootstrap_resamples": 200,
}
TASKS = {"mini_longgen": {"mini_longgen_15": 15}, "longgenbench": {"longgenbench_gsm8k_15": 15}}
BOOK_GAP = {"full": 0.0, "quest": 0.02, "retro": 0.02, "retro_w8": 0.015}
STEP_US = {"full": 9000.0, "quest": 5000.0, "retro": 5240.0, "retro_w8": 6900.0}
STEP_KERNELS = """\
quest context=131072 batch=1: 5,000 us, 353 launches
  added us  launches  us each  start-end  kernel and grid
    4000.0       160    25.00      30.00  linear_fma_kernel 7168x1x1
     600.0        30    20.00      25.00  sparse_decode_attention_kernel 16x8x1
     100.0         5    20.00      25.00  at::native::index_elementwise_kernel<128, 4> 1x1x1
retro context=131072 batch=1: 5,240 us, 401 launches
  added us  launches  us each  start-end  kernel and grid
    4100.0       160    25.60      30.00  linear_dot_kernel 224x1x1
     610.0        30    20.30      25.00  attend_window_kernel 16x8x1
     200.0        30     6.67      10.00  join_window_kernel 32x1x1
"""


@pytest.fixture(scope="module")
def made_up() -> ModuleType:
    """A copy of the made-up run's module, to be set up for this paper."""
    spec = importlib.util.spec_from_file_location("retro_run", Path(__file__).with_name("lychee_run.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.CONFIG, module.TASKS = CONFIG, TASKS
    module.DENSE = dict.fromkeys(("quest", "retro", "page_union"), 0.1) | {"full": 1.0}
    module._kernels = lambda: iter(())
    module._steps = steps
    return module


def steps() -> Iterator[dict[str, Any]]:
    for label, us in STEP_US.items():
        yield {
            "bench": "decode", "model": "llama3-8b", "weights": "random", "label": label, "context": 131072, "batch": 1,
            "params": METHODS[label].get("params", {}), "subject": METHODS[label].get("method", label),
            "budget": "full" if label == "full" else "4096", "budget_tokens": None if label == "full" else 4096,
            "bytes_min": int(4e6 * us), "reference": "full", "stage": "step", "us": us, "ratio": 9000.0 / us,
        }  # fmt: skip


@pytest.fixture(scope="module")
def records(made_up: ModuleType) -> list[Record]:
    """Scores of all labels: RetroAttention with a window of 8 is right more often than the others."""
    found: list[Record] = []
    for model, suite in (("miniature", "mini_longgen"), ("llama", "longgenbench")):
        for label, spec in METHODS.items():
            rng = np.random.default_rng(sum(map(ord, label)))
            for budget in [None] if label == "full" else spec.get("budgets", CONFIG["budgets"]):
                made_up._chance = lambda name, share, context, ours=label: (
                    0.995 if name == "full" else 0.88 if ours == "retro_w8" else 0.72
                )
                for task in TASKS[suite]:
                    context = CONFIG["suites"][suite]["contexts"][0]
                    cell = made_up._cell(label, spec, model, suite, task, context, budget, rng)
                    found += list(cell)
    return found + [on_a_book(r) for r in found if r.model == "miniature" and r.label in BOOK_GAP and r.budget != "256"]


def on_a_book(record: Record) -> Record:
    """A loss over Full's in 16 stretches that grows along the text, by label and sample."""
    rate, rng = BOOK_GAP[record.label], np.random.default_rng(record.sample_index)
    parts = [rate * (place + 1) * (1 + 0.1 * float(rng.random())) for place in range(16)]
    values = {
        "suite": "pg19_long", "task": "pg19_long_forced_1024", "metric": "loss_over_full", "unit": "nats/token",
        "higher_is_better": False, "parts": parts, "score": float(np.mean(parts)),
    }  # fmt: skip
    return record.model_copy(update=values)


@pytest.fixture(scope="module")
def report(
    made_up: ModuleType, records: list[Record], tmp_path_factory: pytest.TempPathFactory,
    papers_drawn: Callable[[], AbstractContextManager[None]],
) -> Path:  # fmt: skip
    """The report of a whole run."""
    folder: Path = tmp_path_factory.mktemp("retro")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False), encoding="utf-8")
    for record in records:
        path = folder / "records" / record.model / record.label / f"{record.suite}.parquet"
        if not path.exists():
            mine = [r for r in records if (r.model, r.label, r.suite) == (record.model, record.label, record.suite)]
            write_records(path, mine, Record)
    write_table(folder / "summary.csv", summary.summarise(records, made_up.SPREAD))
    write_table(folder / "along_generation.parquet", curves.along_generation(records, 0.95))
    write_table(folder / "loss_by_position.parquet", curves.loss_by_position(records, 0.95))
    made_up.write_speed(folder)
    rows = [
        ("effective_budget", "quest", -1, 1, 1.21), ("effective_budget", "quest", -1, 7, 1.55),
        ("overlap_top", "quest", -1, 1, 0.787), ("overlap_next", "quest", -1, 1, 0.181),
        ("loss_gap", "quest", -1, 16, 0.05), ("loss_gap", "retro_w8", -1, 16, 0.04),
        ("loss_gap_minus_quest", "retro_w8", -1, 16, -0.01),
        *(
            (f"{state}_error", label, layer, 0, 0.01 * layer)
            for state in ("key", "value", "output", "output_final") for label in ("quest", "retro_w8")
            for layer in range(3)
        ),
        *(
            (f"{state}_error_minus_quest", "retro_w8", -1, 0, gap)
            for state, gap in (("key", -0.02), ("value", 0.01), ("output", 0.0), ("output_final", -0.05))
        ),
    ]  # fmt: skip
    (folder / "step_kernels.txt").write_text(STEP_KERNELS, encoding="utf-8")
    (folder / "retrospection").mkdir()
    pd.DataFrame(
        [
            ("miniature", "mini_longgen_45", 8192, "0.05", label, measure, layer, index, value, value - 0.005,
             value + 0.005, 8, "0" * 40, "NVIDIA H200")
            for measure, label, layer, index, value in rows
        ],
        columns=list(COLUMNS),
    ).to_parquet(folder / "retrospection" / "miniature.parquet", index=False)  # fmt: skip
    with papers_drawn():
        build_report(folder / "config.yaml", folder, folder / "report")
    return folder / "report"


@pytest.fixture(scope="module")
def page(report: Path) -> str:
    """The page's text, tags gone."""
    markup = (report / "paper-retro.html").read_text(encoding="utf-8")
    plain = re.sub(r"</?(?:a|span|small|b|i|code|strong|em|sup)\b[^>]*>", "", markup)
    text = html.unescape(re.sub(r"<[^>]+>", " ", plain))
    for shown, plain in (("\u2212", "-"), ("\u2013", "-"), ("\u202f", " ")):
        text = text.replace(shown, plain)
    return " ".join(text.split())


def section(page: str, start: str, end: str) -> str:
    return page.split(start)[-1].split(end)[0]


def test_published_figures_are_consistent_with_each_other() -> None:
    """Differences in print are those of the scores in print; sums by size are those of the means."""
    published = load_paper("retro").published
    assert published.tables.keys() >= {"longgenbench", "gain", "reasoning", "overlap", "effective_budget", "latency"}

    def score(method: str, source: str) -> float:
        figure = published.figure("longgenbench", source, model="llama31-8b-instruct", method=method)
        assert figure is not None
        return figure.value

    for source in ("gsm8k", "mmlu", "csqa"):
        gain = published.figure("gain", source, model="llama31-8b-instruct")
        assert gain is not None and gain.value == pytest.approx(score("retro", source) - score("quest", source))
    lost = [row["points"] for row in published.rows("by_size", difference="quest minus full", source="csqa")]
    assert sum(lost) / 3 == pytest.approx(score("quest", "csqa") - score("full", "csqa"), abs=0.1)
    for source in ("gsm8k", "csqa"):
        won = [row["points"] for row in published.rows("by_size", difference="retro minus quest", source=source)]
        assert sum(won) / 3 == pytest.approx(score("retro", source) - score("quest", source), abs=0.07)


def test_gains_are_paired_differences_and_no_gain_is_said(page: str, records: list[Record]) -> None:
    gains = section(page, "on models that run here", "Table 3")
    for label, said in (("retro_w8", "above 0"), ("retro ", "no gain shown")):
        name = label.strip()
        scores = {
            method: [r.score for r in records if (r.label, r.model, r.suite) == (method, "miniature", "mini_longgen")]
            for method in (name, "quest")
        }
        gap = 100 * float(np.mean(np.subtract(scores[name], scores["quest"])))  # type: ignore[arg-type]
        row = re.search(
            rf"{label} ?mini_longgen 2K 5 % .*?([+-][\d.]+) \[.*?\] (\w[\w ]*?) Quest at (\d+) % of Full", gains
        )
        assert row is not None, label
        assert float(row[1]) == pytest.approx(gap, abs=0.06) and row[2] == said and 65 < int(row[3]) < 80
    assert re.search(r"miniature: of 3 cells with room for a gain, 1 above 0, 0 below 0, 2 cannot be told apart", gains)
    # What grows is held against the Quest that grows, what pays for more against the Quest below.
    assert "over Quest at 5 %" in gains and "page_union" in gains
    assert re.search(r"retro_grow mini_longgen 2K 256", gains)


def test_losses_on_books_are_set_beside_quests_whole_and_by_quarter(page: str, records: list[Record]) -> None:
    gains = section(page, "on models that run here", "Table 3")
    parts = {
        label: np.array([r.parts for r in records if r.suite == "pg19_long" and r.label == label])
        for label in ("quest", "retro_w8")
    }
    gap = (parts["retro_w8"] - parts["quest"]).mean(axis=0)
    for of, wanted in (("pg19_long", gap.mean()), ("1 of 4", gap[:4].mean()), ("4 of 4", gap[12:].mean())):
        row = re.search(rf"retro_w8 {of} 2K 5 % - (-[\d.]+) \[.*?\] gain", gains)
        assert row is not None and float(row[1]) == pytest.approx(wanted, abs=6e-4), of
    # Losses below one nat are no proportions: where few texts differ, no interval of proportions is drawn around them.
    few = [r for r in records if r.suite == "pg19_long" and r.sample_index < 3]
    sides = (pairs.scored([r for r in few if r.label == label]) for label in ("retro_w8", "quest"))
    found = pairs.difference(*sides, 0.95, 200, "few")
    assert found.high - found.low < 0.02
    assert re.search(rf"Quest loses {parts['quest'][:, 12:].mean():.3f}", gains)
    assert re.search(r"retro 4 of 4 2K 5 % - \+?0\.000 \[.*?\] no gain shown", gains)


def test_quest_by_budget_is_a_share_of_full(page: str, records: list[Record]) -> None:
    mean = {
        label: np.mean(
            [r.score for r in records if (r.label, r.suite, r.model) == (label, "mini_longgen", "miniature")]
        )
        for label in ("quest", "full")
    }
    table = section(page, "Figure 2a, budget by benchmark", "Figure 5")
    assert re.search(rf"mini_longgen_15 2K 5 % .*? {100 * mean['quest'] / mean['full']:.0f} ?%", table)


def test_scores_stand_beside_print_where_the_checkpoint_ran(page: str) -> None:
    table = section(page, "Table 1, LongGenBench by method", "Table 2")
    assert re.search(r"Llama-3\.1-8B-Instruct retro gsm8k 56\.5 digests S, N \d", table)
    assert re.search(r"selection_reuse gsm8k 25\.2 digest S - not measured not run", table)
    assert "Qwen2.5-14B-Instruct csqa 7.4 digests S, N" in page and "profile=longgen" in page


def test_states_overlaps_and_losses_say_which_way_they_lie(page: str) -> None:
    states = section(page, "corrected against stale states", "Figures 1b and 7")
    assert re.search(r"retro_w8 keys 8K 5 % - -2\.00 \[.*?\] nearer to Full", states)
    assert re.search(r"retro_w8 values 8K 5 % - \+?1\.00 \[.*?\] farther from Full", states)
    assert re.search(r"retro_w8 output, own step 8K 5 % - \+?0\.00 \[.*?\] cannot be told apart", states)
    assert "1.17 digest S 1.21" in page and re.search(r"1\.60 paper; digest S 1\.55", page)
    assert re.search(r"about 80 digests S, N 79", page) or re.search(r"about 70 digests S, N 79", page)
    assert re.search(r"retro_w8 16 8K 5 % - -10\.00 \[.*?\] lower loss", page)


def test_steps_are_medians_over_quests(page: str) -> None:
    steps_part = section(page, "Figure 6, time over Quest's step", "Every published figure")
    found = dict(re.findall(r"(\d) 128K 1 4,096 tokens (?:under 1|about 2) digests [SNR, ]+ ([+-][\d.]+)", steps_part))
    assert float(found["2"]) == pytest.approx(0.24, abs=0.1) and float(found["8"]) == pytest.approx(1.9, abs=0.1)


def test_a_steps_parts_add_up_and_what_was_not_profiled_is_named(page: str) -> None:
    parts = section(page, "What a step's time is made of", "Every published figure")
    assert re.search(r"projections and MLP 4\.00 80 4\.10 78 \+0\.10", parts)
    assert re.search(r"merging the window 0\.00 0 0\.20 4 \+0\.20", parts)
    assert re.search(r"the rest 0\.40 8 0\.33 6 -0\.07", parts) and re.search(r"launches 353 401 \+48", parts)
    assert "not profiled: retro_w8 at 128K" in parts and "--labels quest retro" in parts
    for step in read_step_kernels((ROOT / "results" / "retro" / "step_kernels.txt").read_text(encoding="utf-8")):
        assert sum(step.parts.values()) == pytest.approx(step.us) and 0 < step.parts["the rest"] < 0.1 * step.us


def test_the_claims_of_a_gain_have_a_number_and_name_its_place(page: str, records: list[Record]) -> None:
    mean = {
        label: np.mean([r.score for r in records if (r.label, r.suite) == (label, "mini_longgen")])
        for label in ("quest", "retro")
    }
    claims = section(page, "Headline claims", "What it does")
    row = re.search(
        r"at best up to 21\.9 paper ([+-]?[\d.]+) \[.*?\] not comparable other models and tasks: retro", claims
    )
    assert row is not None and float(row[1]) == pytest.approx(100 * (mean["retro"] / mean["quest"] - 1), abs=0.06)
    assert re.search(r"on average 5\.6 digest R [+-]?[\d.]+ not comparable .* the mean of \d cells", claims)


def test_what_each_window_adds_is_a_paired_difference(page: str, records: list[Record]) -> None:
    gains = section(page, "Where the gain comes from", "Table 3")
    mean = {
        label: np.mean([r.score for r in records if (r.label, r.suite) == (label, "mini_longgen")])
        for label in ("quest", "retro", "retro_w8")
    }
    assert "miniature, cells with room: window 2 over Quest is above 0 in 0 of 1" in gains
    assert "window 8 over window 2 is above 0 in 1 of 1" in gains
    for what, gap in (
        ("window 2 over Quest", mean["retro"] - mean["quest"]),
        ("window 8 over window 2", mean["retro_w8"] - mean["retro"]),
    ):
        row = re.search(rf"{what} mini_longgen 2K 5 % ([+-]?[\d.]+) \[", gains)
        assert row is not None and float(row[1]) == pytest.approx(100 * gap, abs=0.06), what


def test_a_run_without_any_of_it_says_how_to_make_it(
    made_up: ModuleType, tmp_path: Path, records: list[Record]
) -> None:
    config = CONFIG | {"methods": {"full": {}, "retro": {}}, "models": {"miniature": CONFIG["models"]["miniature"]}}
    config["suites"] = {"mini_longgen": CONFIG["suites"]["mini_longgen"]}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    kept = [r for r in records if r.model == "miniature" and r.label in ("full", "retro")]
    for label in ("full", "retro"):
        mine = [r for r in kept if r.label == label]
        write_records(tmp_path / "records" / "miniature" / label / "mini_longgen.parquet", mine, Record)
    write_table(tmp_path / "summary.csv", summary.summarise(kept, made_up.SPREAD))
    write_table(tmp_path / "along_generation.parquet", curves.along_generation(kept, 0.95))
    write_table(tmp_path / "loss_by_position.parquet", curves.loss_by_position(kept, 0.95))
    results = load_results(tmp_path / "config.yaml", tmp_path)
    drawn = looks(["full", "retro"], ["full", "retro"], "full")
    found = papers_of(results, tmp_path, FigureWriter(tmp_path / "figures", drawn), lambda *_: "", str, {})
    (page,) = (paper for paper in found if paper.name == "retro")
    text = " ".join(repr(block) for section in page.paper.sections(page.inputs) for block in section.blocks)
    assert text.count("config profile=retro") >= 5 and "profile=longgen" in text
    for hole in (
        "ran beside Quest",
        "two windows ran",
        "corrections change was not measured",
        "was not timed beside",
        "Neither two windows nor",
        "was profiled kernel by kernel",
    ):
        assert hole in text, hole


def test_the_note_names_the_profiles_that_fill_the_page() -> None:
    note = (Path(__file__).parents[3] / "docs" / "reproduction-retro.md").read_text(encoding="utf-8")
    commands = load_paper("retro").words["commands"]
    for profile in sorted(set(re.findall(r"profile=(\w+)", " ".join(commands.values())))):
        run = load_run_config(Path(__file__).parents[3] / "config" / f"{profile}.yaml")
        assert f"profile={profile}" in note and {"full", "quest", "retro"} <= set(run.methods)
