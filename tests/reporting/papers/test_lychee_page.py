"""The page of LycheeDecode says what the run says, beside what was published, and states what is missing."""

from __future__ import annotations

import html
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from longdecode.evals.records import Record
from longdecode.evals.storage import read_records
from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.identity import looks
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import Cells
from longdecode.reporting.papers.lychee.page import LATENCY
from longdecode.reporting.papers.registry import papers_of
from longdecode.reporting.papers.sections.equal_bytes import HEADS
from longdecode.reporting.papers.sections.latency import COLUMNS
from longdecode.reporting.results import load_results
from longdecode.reporting.wording import budget, gap, gap_interval, p_value, score, score_interval

NAMES = ("full", "quest", "tidal", "lychee", "lychee_cc", "hf_full", "hf_full_static")


def words(path: Path) -> str:
    """A page's text, tags gone."""
    text = re.sub(r"</?(?:a|span|small|b|i|code|strong|em|sup)\b[^>]*>", "", path.read_text(encoding="utf-8"))
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split()).replace("\u2212", "-").replace("\u202f", " ")


@pytest.fixture(scope="module")
def page(paper_report: Path) -> str:
    return words(paper_report / "paper-lychee.html")


def test_it_is_linked_and_every_link_of_it_resolves(paper_report: Path) -> None:
    for name in ("index.html", "method-lychee.html", "speed.html"):
        assert 'href="paper-lychee.html"' in (paper_report / name).read_text(encoding="utf-8")
    text = (paper_report / "paper-lychee.html").read_text(encoding="utf-8")
    anchors = set(re.findall(r' id="?([^"\s>]+)', text))
    assert len(anchors) == len(re.findall(r' id="?([^"\s>]+)', text)) > 15
    for link in re.findall(r'(?:href|src|srcset)="?([^"\s>]+)', text):
        if ":" in link:
            continue
        path, _, fragment = link.partition("#")
        assert not path or (paper_report / path).is_file(), link
        assert path or fragment in anchors, link


def test_published_numbers_keep_their_marks(page: str) -> None:
    for shown in (
        "33.07 digest A",
        "lychee 1,024 tokens 31.02 digest C",
        "up to 7.0 digests A, B, C",
        "2.7 paper; digests A, B, C",
        "1.73 digests B, C",
        "lychee_cc 44.9 digests A, B",
        "59.4 digest D",
    ):
        assert shown in page, shown


def test_a_rival_is_held_to_its_nearest_run_above(paper_run: Path, page: str) -> None:
    """Lychee at 10 % against quest: the made-up bytes, and the mean paired difference, worked out by hand."""
    folder = paper_run / "records" / "miniature"
    frames = {
        (label, r.budget): frame
        for label in ("lychee", "quest")
        for r in read_records(folder / label / "mini_longgen.parquet", Record)
        if (frame := {
            s.sample_index: s for s in read_records(folder / label / "mini_longgen.parquet", Record)
            if s.context == 8192 and s.budget == r.budget
        })
    }  # fmt: skip
    total = {run: pairs.total_bytes(samples[0]) / 8192 for run, samples in frames.items()}
    ours = total["lychee", "0.1"]
    above = min((run for run in total if run[0] == "quest" and total[run] >= ours), key=lambda run: total[run])
    below = max((run for run in total if run[0] == "quest" and total[run] < ours), key=lambda run: total[run])
    mine, theirs = ([s.score for s in frames[run].values()] for run in (("lychee", "0.1"), above))
    gap = 100 * float(np.mean(np.subtract(mine, theirs)))
    row = page.split("at equal bytes. Model")[1].split("mini_longgen, 8K; 10 %")[-1].split("quest")[1]
    assert f"{100 * float(below[1]):.3g} %: {100 * total[below]:.3g} % read" in row
    assert f"{100 * float(above[1]):.3g} %: {100 * total[above]:.3g} % read" in row
    said = row.split(f"{100 * total[above]:.3g} % read")[1]
    shown = re.search(r"% right .*?([+-]?\d+\.\d) \[", said)
    assert shown is not None and float(shown[1]) == pytest.approx(gap, abs=0.06)
    assert "between" not in row


def test_quality_and_speed_name_their_configurations(page: str) -> None:
    assert "Quality and speed on this page are of different configurations" in page
    assert "miniature quality 33 % of KV heads block 64" in page
    assert "llama3-8b speed 12 % of KV heads block 64 128 256 4,096 tokens (3.12 % of 128K)" in page


def test_claims_stand_first_with_what_was_measured(paper_run: Path, page: str) -> None:
    speed = pd.read_csv(paper_run / "speed.csv", dtype={"budget": str})
    step = speed[(speed["stage"] == "step") & (speed["context"] == 131072) & (speed["batch"] == 1)].set_index("label")
    assert f"over Full's step, 128K, batch 1 2.7 paper; digests A, B, C {step.ratio['lychee']:.2f} [" in page


def test_the_ablation_averages_seeds_and_counts_the_same_roles_once(page: str) -> None:
    table = page.split("Score by source of the roles")[1]
    assert re.search(r"hardkuma, mini_passkey 8 2 trainings: [\d.]+ to [\d.]+ 33.07", table)
    assert "random 8 2 draws" in table and "direct, mini_passkey 8 1 training 32.06" in table
    assert re.search(r"random mini_passkey 8 – \+\d\d\.\d \[\+\S+ \+\S+ above 0", page)


def test_strategies_stand_where_their_sparse_heads_read(paper_report: Path, page: str) -> None:
    """A label that keeps nothing is a strategy of its own; every point is at the share that its sparse heads read."""
    data = pd.read_csv(paper_report / "figures" / "paper-lychee-strategies-miniature.csv", dtype={"budget": str})
    by_label = data.groupby("method")["variant"].agg(set)
    assert by_label["lychee_top_p"] == {"top-p, tokens"} and by_label["lychee_ratio"] == {"ratio, tokens"}
    assert by_label["lychee_top_p_bare"] == {"top-p, nothing kept"}
    swept = data[data["method"] != "full"]
    share = swept["budget"].astype(float) * swept["method"].str.contains("top_p").map({True: 0.6, False: 1.0})
    assert np.allclose(swept["share_read"], share) and set(data["context"]) == {2048, 8192}
    table = page.split("Ratio minus another strategy")[1]
    assert re.search(r"lychee_ratio, 10 %: 10 % read, [\d.]+ % right top-p, nothing kept", table)
    assert re.search(r"lychee_top_p_bare, 30 %: 18 % read, [\d.]+ % right above 0 digests", table)


def test_ratios_over_every_baseline_stand_beside_print(paper_run: Path, page: str) -> None:
    table = pd.read_csv(paper_run / "over_baselines.csv", dtype={"budget": str})
    place = (table["context"] == 131072) & (table["batch"] == 1) & (table["label"] == "lychee")
    for _, row in table[place].iterrows():
        shown = f"{row['baseline']} 128K 1 4,096 tokens 2.7 paper; digests A, B, C {row['ratio']:.2f} "
        assert f"{shown}[{row['low']:.2f}, {row['high']:.2f}]" in page
    speed = pd.read_csv(paper_run / "speed.csv", dtype={"budget": str})
    steps = speed[(speed["stage"] == "step") & (speed["context"] == 131072) & (speed["batch"] == 1)].set_index("label")
    assert f"tidal 128K 1 4,096 tokens 1.73 digests B, C {steps.ratio['lychee'] / steps.ratio['tidal']:.2f} [" in page


def test_the_kernel_stands_by_heads_and_lengths(paper_run: Path, page: str) -> None:
    speed = pd.read_csv(paper_run / "speed.csv", dtype={"budget": str})
    rows = speed[(speed["subject"] == "hybrid_attention") & (speed["label"] == "torch_flash")]
    row = rows[(rows["context"] == 131072) & (rows["batch"] == 8) & (rows["op_sizes"] == "full_heads=2")].iloc[0]
    shown = f"{1 / row['ratio']:.2f} [{1 / row['ratio_high']:.2f}, {1 / row['ratio_low']:.2f}]"
    assert row["reference"] == "longdecode" and f"6 of 8 128K 8 full – {shown}" in page
    assert "8 of 8 128K 8 random up to 7.0" in page


def test_agreement_is_counted_beyond_layer_0(paper_run: Path, lychee_run: ModuleType, page: str) -> None:
    from longdecode.methods.head_roles import read_role_file

    roles = [
        {
            (layer, head)
            for layer, row in enumerate(read_role_file(folder / "roles.json").roles)
            for head, role in enumerate(row)
            if role and layer
        }
        for folder in (paper_run / "identification" / "miniature" / name for name in ("kuma0", "kuma1"))
    ]
    shared, total = len(roles[0] & roles[1]), (lychee_run.LAYERS - 1) * lychee_run.HEADS
    chance = len(roles[0]) * len(roles[1]) / total
    shown = f"hardkuma, mini_passkey, seed 0 hardkuma, mini_passkey, seed 1 4 and 4 of {total} {shared} {chance:.1f}"
    assert f"{shown} {shared / (8 - shared):.2f}" in page


def test_ablations_stay_off_overviews_and_keep_a_page(paper_report: Path, lychee_run: ModuleType) -> None:
    for name in ("index", "suite-mini-recall", "traffic"):
        text = words(paper_report / f"{name}.html")
        assert "lychee_random0" not in text and "lychee_kuma1" not in text, name
    assert "11 further labels" in words(paper_report / "index.html")
    drawn = pd.read_csv(paper_report / "figures" / "overview-miniature.csv")
    assert set(drawn["method"]) == {"full", "quest", "tidal", "lychee"}
    for label in lychee_run.ABLATION:
        assert (paper_report / f"method-{label.replace('_', '-')}.html").is_file()
    assert "lychee_random0" in words(paper_report / "method-lychee.html")


def blocks_of(folder: Path) -> str | None:
    """The page's words without the rest of a report; nothing where the run gets no page."""
    results = load_results(folder / "config.yaml", folder)
    drawn = looks(list(NAMES), list(NAMES), "full")
    found = papers_of(results, folder, FigureWriter(folder / "figures", drawn), str, str, {"lychee": "lychee"})
    if not found:
        return None
    return " ".join(repr(block) for section in found[0].paper.sections(found[0].inputs) for block in section.blocks)


def test_every_part_may_be_missing(lychee_run: ModuleType, tmp_path: Path) -> None:
    folder = lychee_run.write_run(tmp_path, ("speed",))
    (folder / "over_baselines.csv").unlink()
    text = blocks_of(folder)
    assert text is not None
    for hole in (
        "The suites mini_recall and mini_longgen were not scored with this method.",
        "No identification run left its files.",
        "No overlap was measured in this run.",
        "RULER was not scored in this run.",
        "over_baselines.csv is absent",
        "No label of another selection strategy was scored.",
        "snakemake --cores 8 lychee_train --config profile=papers",
    ):
        assert hole in text, hole
    assert "+0.94" not in text and "published='33.07'" in text and "'tidal', '128K', '1'" in text


def test_a_table_of_another_kind_is_not_taken_for_overlap(lychee_run: ModuleType, tmp_path: Path) -> None:
    folder = lychee_run.write_run(tmp_path, ("speed",))
    (folder / "overlap.csv").write_text("launches,median_us\nordinary,1\n", encoding="utf-8")
    assert "overlap.csv has other columns than this figure needs" in str(blocks_of(folder))


def test_a_run_without_the_method_has_no_page(lychee_run: ModuleType, tmp_path: Path) -> None:
    folder = lychee_run.write_run(tmp_path, ("speed",))
    assert blocks_of(folder) is not None
    speed = pd.read_csv(folder / "speed.csv", dtype={"budget": str})
    ours = speed["subject"].str.startswith("hybrid_attention") | (speed["subject"] == "lychee")
    speed[~ours].to_csv(folder / "speed.csv", index=False)
    assert blocks_of(folder) is None


def test_a_cell_has_one_score_and_one_difference_to_full_on_all_pages(paper_run: Path, tmp_path: Path) -> None:
    """The tables by budget show the rows of summary.csv, which the suites' pages show: near 100 % estimators differ."""
    results = load_results(paper_run / "config.yaml", paper_run)
    drawn = looks(list(NAMES), list(NAMES), "full")
    (page,) = papers_of(results, paper_run, FigureWriter(tmp_path, drawn), lambda *_: "", str, {"lychee": "lychee"})
    blocks = [block for section in page.paper.sections(page.inputs) for block in section.blocks]
    tables = [block for block in blocks if isinstance(block, Cells) and block.heads == HEADS]
    seen = 0
    for table in tables:
        suite, tokens = re.findall(r"^(\w+) at ([\d,]+) tokens", table.fold)[0]
        cell = results.summary[results.summary["suite"].eq(suite) & results.summary["context"].eq(_number(tokens))]
        tasks = set(cell["task"])
        cell = cell[cell["task"] == ("all" if "all" in tasks else tasks.pop())]
        for label, written, _, *shown, count in table.rows:
            (row,) = [r for _, r in cell[cell["method"] == label].iterrows() if budget(r["budget"]) == written]
            wanted = [score(row["value"], "fraction"), score_interval(row["low"], row["high"], "fraction")]
            if label != "full":
                wanted += [gap(row["diff_to_full"], "fraction")]
                wanted += [gap_interval(row["diff_low"], row["diff_high"], "fraction")]
                assert p_value(row["p_holm"]) + " after Holm" in shown[-1] or "every answer the same" in shown[-1]
            assert shown[: len(wanted)] == wanted and int(count) == row["n"], (suite, label, written)
            seen += label != "full"
    assert {table.fold.split()[0] for table in tables} == {"mini_recall", "mini_longgen"} and seen > 20


def _number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.parametrize(("model", "said"), [("llama3-8b", True), ("smollm2-long", False)])
def test_what_memory_allows_is_said_of_the_shape_it_was_worked_out_for_alone(model: str, said: bool) -> None:
    def figure(table: str, name: str, **_: Any) -> SimpleNamespace | None:
        return SimpleNamespace(text="2.00") if table == "limits" else None

    words = {"reasons": {"full": "our own Full"}, "limit": "; memory allows {ideal}"}
    published = SimpleNamespace(figure=figure, tables={"limits": SimpleNamespace(columns=["ideal"])})
    inputs = SimpleNamespace(words=lambda part: words, published=published)
    cells = [model, 131072, 1, "lychee", "4096", "full", 1.5, 1.4, 1.6, "paired"]
    row = LATENCY._row(inputs, pd.Series(dict(zip(COLUMNS, cells, strict=True))))  # type: ignore[arg-type]
    assert ("memory allows 2.00" in row.reason) == said and row.reason.startswith("our own Full")
