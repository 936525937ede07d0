"""Verdicts, wording and looks on small cases whose answer is known."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest

from longdecode.reporting import checkpoint, verdicts, wording
from longdecode.reporting.identity import DARK, HUES, PAPER, looks
from longdecode.reporting.results import Results, Topic

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def results(rows: list[dict[str, Any]]) -> Results:
    """A summary of one task at one context, Full first."""
    base = {
        "suite": "s", "task": "t", "metric": "accuracy", "model": "m", "unit": "fraction", "status": "ok", "n": 16,
        "context": 4096, "batch": 1, "data_source": "generated", "params": "{}", "low": 0.9, "high": 1.0,
        "kv_tokens_read": float("nan"),
    }  # fmt: skip
    full = base | {"method": "full", "kind": "full", "budget": "full", "share": 1.0, "value": 0.99}
    table = pd.DataFrame([full, *({**base, "method": "quest", "kind": "quest", **row} for row in rows)])
    for name in ("diff_to_full", "diff_low", "diff_high"):
        table[name] = table.get(name, pd.Series(dtype=float)).astype(float)
    lower = frozenset({"t"}) if rows and rows[0].get("unit") == "nats/byte" else frozenset()
    empty = pd.DataFrame()
    return Results("p", {}, "", table, empty, empty, [], lower, None)


def cell(share: float, gap: float, low: float, high: float, **more: Any) -> dict[str, Any]:
    bounds = {"diff_to_full": gap, "diff_low": low, "diff_high": high}
    return {"budget": str(share), "share": share, "value": 0.99 + gap, **bounds, **more}


def judged(rows: list[dict[str, Any]]) -> verdicts.Verdict:
    found = results(rows)
    return verdicts.verdict(found, found.topic("m", "s", "t"), 4096, "quest")


def test_shown_needs_the_whole_interval_at_every_larger_budget() -> None:
    rows = [cell(0.5, 0.0, -0.01, 0.01), cell(0.05, -0.3, -0.4, -0.2), cell(0.1, -0.005, -0.02, 0.01)]
    found = judged(rows)
    assert (found.level, found.budget, found.difference) == ("shown", f"10{wording.NARROW}%", f"{wording.MINUS}0.5")


def test_what_was_read_in_all_stands_beside_the_budget() -> None:
    """A budget of a tenth where a third of the heads read everything: 40 % of what Full read."""
    rows = [cell(0.1, 0.0, -0.01, 0.01, kv_tokens_read=1600.0), cell(0.5, 0.0, -0.01, 0.01, kv_tokens_read=2700.0)]
    found = results(rows)
    topic = found.topic("m", "s", "t")
    assert verdicts.verdict(found, topic, 4096, "quest").reads == ""
    found.summary.loc[found.summary["kind"] == "full", "kv_tokens_read"] = 4000.0
    judged_now = verdicts.verdict(found, topic, 4096, "quest")
    assert (judged_now.reads, judged_now.read) == (f"reads 40{wording.NARROW}%", 0.4)


def test_a_lucky_small_budget_below_a_bad_one_does_not_count() -> None:
    rows = [cell(0.05, 0.0, -0.01, 0.01), cell(0.1, -0.3, -0.4, -0.2), cell(0.25, 0.0, -0.01, 0.01)]
    assert judged(rows).budget == f"25{wording.NARROW}%"


def test_an_interval_past_the_margin_is_only_an_estimate() -> None:
    found = judged([cell(0.1, -0.01, -0.08, 0.06), cell(0.5, 0.0, -0.05, 0.05)])
    assert (found.level, found.budget) == ("estimate", f"10{wording.NARROW}%")


def test_never_within_the_margin_shows_the_largest_budget() -> None:
    found = judged([cell(0.1, -0.5, -0.6, -0.4), cell(0.5, -0.021, -0.03, -0.01)])
    assert (found.level, found.budget, found.headline) == (
        "worse",
        f"50{wording.NARROW}%",
        f"not by 50{wording.NARROW}%",
    )


def test_a_higher_loss_is_worse_and_a_lower_one_is_not() -> None:
    worse = judged([cell(0.1, 0.3, 0.2, 0.4, unit="nats/byte")])
    better = judged([cell(0.1, -0.3, -0.4, -0.2, unit="nats/byte")])
    assert (worse.level, better.level) == ("worse", "shown")


def test_cells_that_did_not_run_are_holes_not_zeros() -> None:
    assert judged([cell(0.1, np.nan, np.nan, np.nan, status="oom")]).level == "hole"


def test_a_method_without_full_beside_it_gets_no_verdict() -> None:
    found = judged([cell(0.1, np.nan, np.nan, np.nan)])
    assert (found.level, found.headline) == ("alone", "no Full to compare with")


def test_findings_are_sorted_by_cost() -> None:
    found = results([cell(0.1, 0.0, -0.01, 0.01)])
    topic = Topic("m", "s", "t", "accuracy", "fraction", True, "generated")
    asked = (("a", 0.3, None), ("b", 0.03, None), ("c", 0.01, 0.34))
    judged = [verdicts.Verdict(n, topic, 4096, "shown", "", share, read, "", "", "") for n, share, read in asked]
    assert [v.label for v in verdicts.finding(found, topic, 4096, judged).near] == ["b", "a", "c"]


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
    found = looks(labels, kinds, "full")
    assert found["full"].is_reference and not found["full"].marker
    assert len({(look.colour, look.marker, look.hollow) for look in found.values()}) == len(labels)
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
