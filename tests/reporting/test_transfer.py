"""Transfer: ranks against scipy's, differences that hold, reverse or cannot be told, and what a run lacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from longdecode.reporting.printed_ranks import PrintedRanking, printed_rankings
from longdecode.reporting.transfer import spearman, spread, transfer

METHODS = {"a": 0.9, "b": 0.7, "c": 0.5, "d": 0.3, "e": 0.1}


def records(model: str, context: int, scores: dict[str, float], budget: str = "0.1", n: int = 60) -> list[Any]:
    rng = np.random.default_rng([context, len(budget)])
    hard = rng.random(n)
    return [
        SimpleNamespace(
            status="ok", score=float(hard[i] < value), label=label, method=label, suite="s", task="t", budget=budget,
            model=model, context=context, seed=0, sample_index=i, higher_is_better=True, unit="fraction",
        )
        for label, value in scores.items()
        for i in range(n)
    ]  # fmt: skip


def results(found: list[Any]) -> Any:
    return SimpleNamespace(records=found, models=list(dict.fromkeys(r.model for r in found)), confidence=0.95)


def test_spearman_is_scipys_with_ties() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(3)
    for _ in range(20):
        a, b = rng.integers(0, 4, 7).astype(float), rng.normal(size=7)
        if len(set(a)) > 1:
            assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert np.isnan(spearman(np.ones(4), np.arange(4.0)))


def test_differences_of_the_miniature_hold_reverse_or_stay_open_on_another_model() -> None:
    real = METHODS | {"a": 0.2, "e": 0.85}
    found = transfer(results([*records("mini", 2048, METHODS), *records("real", 32768, real)]), {"mini"}, METHODS)
    outcome = {f"{c.better} above {c.worse}": c.outcome for c in found.conclusions}
    assert outcome["a above e"] == "reverses" and outcome["b above d"] == "holds"
    assert found.conclusions[0].outcome == "reverses" and "reverse" in found.words[0]
    said = {s.text.split(", on")[0]: s for s in found.statements}
    assert (
        said["b above d"].holds and "the one difference holds. Smallest: b over d on s at 10" in said["b above d"].text
    )
    assert not said["a above e"].holds and said["a above e"].details[0].startswith("Reverses: a over e on s at 10")
    (number,) = {c.there[0].numbers for c in found.conclusions if (c.better, c.worse) == ("b", "d")}
    assert f"{number} points on real at 32K" in said["b above d"].text
    (row,) = found.budgets
    assert (row.first, row.second, row.methods) == ("mini at 2K", "real at 32K", 5)
    assert float(row.value.replace("\u2212", "-")) < 0.5 and not any("real model" in text for text in found.missing)


def test_a_difference_that_one_miniature_does_not_show_is_no_conclusion_and_families_are_told_as_one() -> None:
    flat = dict.fromkeys(METHODS, 0.5)
    both = [*records("mini", 2048, METHODS), *records("real", 32768, METHODS)]
    found = transfer(results([*both, *records("mini-1", 2048, flat)]), {"mini", "mini-1"}, METHODS)
    assert found.conclusions == [] and found.statements == []
    groups = {"a": "Pages", "b": "Pages", "c": "Other", "d": "Eviction", "e": "Eviction"}
    told = transfer(results([*both, *records("mini-1", 2048, METHODS)]), {"mini", "mini-1"}, METHODS, (), groups)
    assert told.words[0].startswith("All 2 miniatures show 10 differences")
    assert told.statements[0].text.startswith(
        "Pages (a, b) above eviction (d, e), on s: all 4 differences hold. Smallest: b over d"
    )


def test_both_sides_at_the_ceiling_say_so_and_equal_bytes_stand_apart() -> None:
    real = dict.fromkeys(METHODS, 1.0)
    rows = [*records("mini", 2048, METHODS, "bytes=0.25"), *records("real", 4096, real, "bytes=0.25")]
    found = transfer(results(rows), {"mini"}, METHODS)
    assert {c.outcome for c in found.conclusions} == {"ceiling"} and found.budgets == []
    assert "below 32,768 tokens" in found.missing[0]


def test_one_model_says_what_is_missing_and_how_to_make_it() -> None:
    rows = [*records("mini", 2048, METHODS), *records("mini", 8192, METHODS | {"a": 0.2})]
    found = transfer(results(rows), {"mini"}, METHODS)
    assert found.conclusions == [] and len(found.budgets) == 1
    assert "No real model was scored" in found.missing[0] and "snakemake --cores 8 all" in found.missing[0]
    assert "{bytes: 0.25}" in found.missing[1]


def test_one_model_is_compared_with_itself_at_every_longer_context_and_the_extremes_are_named() -> None:
    turned = dict(zip(METHODS, reversed(METHODS.values()), strict=True))
    rows = [*records("real", 8192, METHODS), *records("real", 32768, METHODS), *records("real", 65536, turned)]
    found = transfer(results([*rows, *records("real", 8192, METHODS, "bytes=0.25")]), (), METHODS)
    assert [(c.first, c.second, c.value) for c in found.budgets] == [
        ("real at 8K", "real at 32K", "1.00"),
        ("real at 8K", "real at 64K", "\u22121.00"),
    ]
    (said,) = spread(found)
    assert (
        said.index("\u22121.00") < said.index("real at 64K") < said.index("highest, 1.00") < said.index("real at 32K")
    )
    assert found.conclusions == [] and spread(transfer(results([]), (), METHODS)) == []


def test_windows_of_one_book_are_one_problem() -> None:
    """Four windows that say the same of a book add nothing to the interval of a rank correlation."""

    def of_books(windows: int) -> list[Any]:
        task = "fidelity_forced" if windows > 1 else "t"
        whole = [*records("mini", 2048, METHODS, n=7), *records("mini", 8192, METHODS | {"a": 0.2}, n=7)]
        return [
            SimpleNamespace(**vars(r) | {"task": task, "sample_index": windows * r.sample_index + window})
            for r in whole
            for window in range(windows)
        ]

    one, four = (transfer(results(of_books(windows)), {"mini"}, METHODS).budgets for windows in (1, 4))
    assert one == four and one[0].bounds != f"[{one[0].value}, {one[0].value}]"


def test_print_is_one_more_place_at_the_budget_nearest_to_its_own() -> None:
    print_says = PrintedRanking("print: B, M (P, Table 1)", ("s", "other"), 0.15, {"a": 60.0, "b": 50.0, "c": 55.0})
    agrees, reversed_ = {"a": 0.9, "c": 0.5, "b": 0.1, "d": 0.3}, {"a": 0.1, "c": 0.5, "b": 0.9, "d": 0.3}
    rows = [
        *records("mini", 2048, agrees, "0.1"),
        *records("mini", 2048, reversed_, "0.5"),
        *records("mini", 2048, reversed_, "bytes=0.15"),
        *records("real", 32768, reversed_, "4096"),
        *records("real", 32768, agrees, "256"),
    ]
    found = transfer(results(rows), {"mini"}, METHODS, [print_says])
    assert [(row.first, row.budget, row.second, row.methods, row.value, row.bounds) for row in found.printed] == [
        ("mini at 2K", "10\u202f%", print_says.words, 3, "1.00", "[1.00, 1.00]"),
        ("real at 32K", "4,096 tokens", print_says.words, 3, "\u22121.00", "[\u22121.00, \u22121.00]"),
    ]
    assert not any("print" in text for text in found.words)
    assert transfer(results(rows), {"mini"}, {"a", "b"}, [print_says]).printed == [], "two methods have no ranking"
    whole = PrintedRanking("print", ("s",), 4096, dict(print_says.scores))
    (row,) = transfer(results(rows), {"mini"}, METHODS, [whole]).printed
    assert row.first == "real at 32K", "4,096 tokens leave nothing of 2,048 out"


def test_rankings_in_print_are_those_of_the_papers_tables() -> None:
    """LongGenBench: means of three sources; LongBench: of the five tasks that print has of all three methods."""
    retro, lychee = printed_rankings()
    assert retro.words == "print: LongGenBench, Llama-3.1-8B-Instruct (RetroAttention, Table 1)"
    assert {name: round(score, 2) for name, score in retro.scores.items()} == {
        "streaming": 1.3, "tova": 5.87, "quest": 54.73, "retro": 57.37,
    }  # fmt: skip
    assert sorted(lychee.scores, key=lambda name: lychee.scores[name]) == ["quest", "tidal", "lychee"]
    assert lychee.scores["lychee"] == pytest.approx((30.11 + 14.39 + 12.66 + 86.78 + 82.58) / 5)
