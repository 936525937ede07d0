"""Verdicts, wording and looks on small cases whose answer is known."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from longdecode.reporting import checkpoint, verdicts, wording
from longdecode.reporting.identity import DARK, HUES, PAPER, looks
from longdecode.reporting.results import Results

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def results(rows: list[dict[str, Any]]) -> Results:
    """A summary of one task, Full first at every context; a cell reads a fifth of Full's bytes unless it says more."""
    base = {
        "suite": "s", "task": "t", "metric": "accuracy", "model": "m", "unit": "fraction", "status": "ok", "n": 16,
        "context": 4096, "batch": 1, "data_source": "generated", "params": "{}", "low": 0.9, "high": 1.0,
        "kv_bytes_per_step": 200.0, "metadata_bytes_per_step": 0.0,
    }  # fmt: skip
    mine = [{**base, "method": "quest", "kind": "quest", **row} for row in rows]
    full = base | {"method": "full", "kind": "full", "budget": "full", "share": 1.0, "value": 0.99}
    full |= {"kv_bytes_per_step": 1000.0, "unit": mine[0]["unit"], "metric": mine[0]["metric"]}
    scores = {row["context"]: row.pop("full", 0.99) for row in mine}
    table = pd.DataFrame([*({**full, "context": c, "value": scores[c]} for c in sorted(scores)), *mine])
    for name in ("diff_to_full", "diff_low", "diff_high"):
        table[name] = table.get(name, pd.Series(dtype=float)).astype(float)
    lower = frozenset({"t"}) if mine[0]["unit"] == "nats/byte" else frozenset()
    empty = pd.DataFrame()
    return Results("p", {}, "", table, empty, empty, [], lower, None)


def cell(share: float, gap: float, low: float, high: float, **more: Any) -> dict[str, Any]:
    bounds = {"diff_to_full": gap, "diff_low": low, "diff_high": high}
    return {"budget": str(share), "share": share, "value": 0.99 + gap, **bounds, **more}


def row_of(rows: list[dict[str, Any]], label: str = "quest") -> tuple[list[verdicts.Verdict], verdicts.Verdict]:
    """The verdicts by context and the one over every context."""
    found = results(rows)
    ((_, each, every),) = verdicts.grid(found, found.topic("m", "s", "t"), [label]).rows
    return each, every


def judged(rows: list[dict[str, Any]]) -> verdicts.Verdict:
    ((only,), every) = row_of(rows)
    assert (only.level, only.budget) == (every.level, every.budget), "with one context both are one verdict"
    return only


def percent(share: int) -> str:
    return f"{share}{wording.NARROW}%"


def test_a_verdict_holds_for_a_context_and_the_headline_for_all() -> None:
    """At 16K a tenth is enough, at 2K half: the headline is the half, with the numbers of the worst context."""
    rows = [
        *(cell(share, gap, gap - 0.01, gap + 0.01, context=2048) for share, gap in ((0.1, -0.4), (0.5, -0.005))),
        *(cell(share, gap, gap - 0.01, gap + 0.01, context=16384) for share, gap in ((0.1, 0.0), (0.5, 0.0))),
    ]
    each, every = row_of(rows)
    assert [(v.context, v.budget) for v in each] == [(2048, percent(50)), (16384, percent(10))]
    assert (every.context, every.budget, every.difference) == (None, percent(50), f"{wording.MINUS}0.5")
    assert results(rows).hardest_context(results(rows).topic("m", "s", "t")) == 2048


def test_a_budget_that_holds_at_one_context_alone_is_no_headline() -> None:
    rows = [cell(0.5, -0.3, -0.4, -0.2, context=2048), cell(0.5, 0.0, -0.01, 0.01, context=16384)]
    each, every = row_of(rows)
    assert [v.level for v in each] == ["worse", "shown"] and every.level == "worse"
    assert every.headline == f"still worse at {percent(50)}" and every.difference == f"{wording.MINUS}30.0"


def test_a_method_that_lacks_a_context_has_no_headline_there() -> None:
    lost = cell(0.5, np.nan, np.nan, np.nan, status="oom", context=16384)
    assert row_of([cell(0.5, 0.0, -0.01, 0.01, context=2048), lost])[1].level == "hole"


def test_reads_are_bytes_with_what_the_selector_reads() -> None:
    """A fifth of the keys and values, and metadata worth two fifths of Full's bytes: 60 %, not 20 %."""
    found = judged([cell(0.1, 0.0, -0.01, 0.01, metadata_bytes_per_step=400.0)])
    assert (found.read, found.reads) == ((0.6, 0.6), f"reads {percent(60)}")


def test_reads_over_contexts_are_a_range() -> None:
    rows = [cell(0.1, 0, 0, 0, context=c, kv_bytes_per_step=kv) for c, kv in ((2048, 200.0), (4096, 300.0))]
    assert row_of(rows)[1].reads == f"reads 20 to {percent(30)}"


def test_a_lucky_small_budget_below_a_bad_one_does_not_count() -> None:
    rows = [cell(0.05, 0.0, -0.01, 0.01), cell(0.1, -0.3, -0.4, -0.2), cell(0.25, 0.0, -0.01, 0.01)]
    assert judged(rows).budget == percent(25)


@pytest.mark.parametrize(
    ("low", "high", "level"),
    [(-0.02, 0.01, "shown"), (-0.021, 0.01, "estimate"), (-0.01, 0.3, "shown")],
)
def test_the_circle_is_a_one_sided_test_of_the_worse_end(low: float, high: float, level: str) -> None:
    assert judged([cell(0.1, -0.005, low, high)]).level == level


def test_a_circle_speaks_of_its_budget_and_of_no_other() -> None:
    """The level of 10 % is its own, whichever of the larger budgets is the uncertain one."""
    wide, tight = (-0.08, 0.06), (-0.01, 0.01)
    for others in ((wide, tight), (tight, wide), (tight, tight), (wide, wide)):
        larger = [cell(share, 0.0, *bounds) for share, bounds in zip((0.25, 0.5), others, strict=True)]
        for bounds, level in ((tight, "shown"), (wide, "estimate")):
            found = judged([*larger, cell(0.1, 0.0, *bounds)])
            assert (found.level, found.budget) == (level, percent(10)), others


def test_never_within_the_margin_shows_the_largest_budget() -> None:
    found = judged([cell(0.1, -0.5, -0.6, -0.4), cell(0.5, -0.021, -0.03, -0.01)])
    assert (found.level, found.headline) == ("worse", f"still worse at {percent(50)}")


def test_a_higher_loss_is_worse_and_a_lower_one_is_not() -> None:
    worse = judged([cell(0.1, 0.3, 0.2, 0.4, unit="nats/byte")])
    better = judged([cell(0.1, -0.3, -0.4, -0.2, unit="nats/byte")])
    assert (worse.level, better.level) == ("worse", "shown")
    assert better.words == "not worse by more than the margin; better by 0.300 nats/byte"


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ((-0.006, -0.012, -0.002), "equivalent within the margin; fewer right by 0.6 points"),
        ((0.0, -0.01, 0.01), "equivalent within the margin"),
        ((0.01, 0.005, 0.04), "not worse by more than the margin; more right by 1.0 points"),
        ((-0.006, -0.03, 0.01), ""),
    ],
)
def test_equivalent_does_not_hide_what_is_lost(bounds: tuple[float, float, float], words: str) -> None:
    assert judged([cell(0.1, *bounds)]).words == words


def test_cells_that_did_not_run_are_holes_not_zeros() -> None:
    assert judged([cell(0.1, np.nan, np.nan, np.nan, status="oom")]).level == "hole"


def test_a_method_is_not_judged_where_full_fails() -> None:
    """At 32K Full answers a third: the headline is that of 8K. Summaries score low for everybody and are judged."""
    low = cell(0.1, -0.01, -0.015, 0.0, context=32768, full=0.33)
    each, every = row_of([cell(0.1, -0.3, -0.4, -0.2, context=8192), low])
    assert [v.level for v in each] == ["worse", "unsolved"] and (every.level, every.context) == ("worse", None)
    assert row_of([low | {"full": 0.33}])[1].headline == "not judged: Full fails"
    assert row_of([low | {"full": 0.33, "metric": "rouge_l"}])[1].level == "shown"


def test_a_mean_over_a_task_that_full_fails_is_split_into_tasks() -> None:
    """Of three tasks Full fails one: a mean over them would count what nobody answers. Two contexts: one is enough."""
    found = results([cell(0.1, -0.01, -0.02, 0.0)])
    names = {"a": [0.9, 0.2], "b": [0.3, 0.6], "c": [0.1, 0.2], "all": [0.43, 0.33]}
    full = found.summary[found.summary["method"] == "full"].iloc[0]
    rows = [{**full, "task": task, "context": i, "value": v} for task, vs in names.items() for i, v in enumerate(vs)]
    solved = [row for row in rows if row["task"] != "c"]
    split, whole = (replace(found, summary=pd.DataFrame(each)).topics("m") for each in (rows, solved))
    assert [topic.task for topic in split] == ["a", "b", "c"] and [topic.task for topic in whole] == ["all"]


def test_a_method_without_full_beside_it_gets_no_verdict() -> None:
    found = judged([cell(0.1, np.nan, np.nan, np.nan)])
    assert (found.level, found.headline) == ("alone", "no Full to compare with")


def test_methods_are_ranked_by_the_bytes_they_read() -> None:
    """The one with the smallest budget reads most: dense layers, metadata."""
    asked = (("a", 0.3, 300.0), ("b", 0.03, 40.0), ("c", 0.01, 500.0))
    cells = [cell(s, 0.0, 0.0, 0.0, kv_bytes_per_step=kv, method=n, kind=n) for n, s, kv in asked]
    found = results(cells)
    judged_ = verdicts.grid(found, found.topic("m", "s", "t"))
    assert [v.label for v in judged_.ranked("shown")] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (wording.number(-0.04, 1), "0.0"),
        (wording.number(-1234.5, 1), f"{wording.MINUS}1,234.5"),
        (wording.number(float("nan"), 1), "–"),
        (wording.gap(0.031, "fraction"), "+3.1"),
        (wording.gap(-0.0314, "nats/byte"), f"{wording.MINUS}0.031"),
        (wording.score_interval(0.5, 1.0, "fraction"), "[50.0, 100.0]"),
        (wording.budget("0.15"), f"15{wording.NARROW}%"),
        (wording.budget("0.005"), f"0.5{wording.NARROW}%"),
        (wording.budget("1024"), "1,024 tokens"),
        (wording.budget("full"), "all"),
        (wording.p_value(0.0004), "<0.001"),
        (wording.short_tokens(16384), "16K"),
        (wording.short_tokens(1000), "1,000"),
        (wording.megabytes(3_145_728), "3.15"),
        (wording.megabytes(251_658_240), "252"),
        (wording.listing(["a", "b", "c"]), "a, b and c"),
        (wording.slug("Mini_Longgen 45"), "mini-longgen-45"),
    ],
)
def test_numbers_are_written_for_people(written: str, expected: str) -> None:
    assert written == expected


def test_every_label_has_a_look_of_its_own() -> None:
    kinds = ["full", *(f"method{i}" for i in range(19)), "method3"]
    labels = [*kinds[:-1], "method3_variant"]
    found = looks([*labels, "oracle", "oracle_variant"], [*kinds, "oracle", "oracle"], "full", oracle="oracle")
    assert found["oracle"].is_ceiling and found["oracle"].colour not in HUES
    assert found["method0"].colour != found["method6"].colour, "seven methods have a hue each beside the oracle"
    assert found["full"].is_reference and not found["full"].marker
    assert len({(look.colour, look.marker, look.hollow) for look in found.values()}) == len(labels) + 2
    assert found["method3_variant"].colour == found["method3"].colour
    assert found["method3_variant"].hollow and not found["method3"].hollow


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("vision", VISIONS)
def test_colours_stand_out_and_apart_for_every_eye(vision: str, dark: bool) -> None:
    paper = _linear(DARK[PAPER] if dark else PAPER)
    colours = [_linear(DARK[hue] if dark else hue) for hue in HUES]
    assert min(_contrast(colour, paper) for colour in colours) >= 3
    seen = [_lab(np.clip(np.asarray(VISIONS[vision]) @ colour, 0, 1)) for colour in colours]
    apart = [float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen[:5], 2)]
    assert min(apart) >= 20
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) >= 12


def test_a_checkpoint_is_described_from_its_headers(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    save_file({"a": torch.zeros(300, 20), "b": torch.zeros(4000)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 12, "num_key_value_heads": 4}', encoding="utf-8")
    small = checkpoint.describe("tiny", {"path": str(tmp_path)})
    assert small == checkpoint.ModelWords("tiny (0.01 M parameters)", "12 layers, 4 KV heads", True)
    remote = checkpoint.describe("big", {"path": "org/model", "revision": "abc"})
    assert remote == checkpoint.ModelWords("big (org/model at abc)", "", False)


def test_a_model_that_the_workflow_builds_is_described_where_it_lies(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGDECODE_CACHE", str(tmp_path))
    assert checkpoint.describe("m", {"path": "miniature-seed1"}).miniature, "a miniature, trained here or elsewhere"
    assert not checkpoint.describe("s", {"path": "smollm2-long"}).miniature
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").write_text('{"num_hidden_layers": 30}')
    assert checkpoint.describe("s", {"path": "smollm2"}).shape == "30 layers"


def _linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def _contrast(one: np.ndarray, other: np.ndarray) -> float:
    """WCAG 2 contrast ratio of linear colours."""
    dark, light = sorted(float(np.dot([0.2126, 0.7152, 0.0722], c)) for c in (one, other))
    return (light + 0.05) / (dark + 0.05)


def _lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a linear sRGB colour."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = np.asarray(to_xyz) @ rgb / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
