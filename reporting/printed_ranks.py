"""Rankings of methods in print, as one more place that ours are compared with."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import fmean

from longdecode.evals.budgets import bytes_share, token_share
from longdecode.reporting.papers.registry import load_paper

LEAST_METHODS = 3


@dataclass(frozen=True, slots=True)
class PrintedRanking:
    """One published ranking: mean score by method, at a budget, and our suites that ask what its benchmark asks.

    ``budget`` is a share of the context or a number of tokens.
    """

    words: str
    suites: tuple[str, ...]
    budget: float | int
    scores: Mapping[str, float]

    def fits(self, context: int) -> bool:
        """Return true where the print's budget leaves something of a context out."""
        return _tokens(self.budget, context) < context

    def nearest(self, texts: Collection[str], context: int) -> str:
        """Return the budget in tokens, of those that a run has, whose size at a context is nearest to the print's."""
        wanted = _tokens(self.budget, context)
        return min(texts, key=lambda text: (abs(math.log(_size(text, context) / wanted)), text))


def printed_rankings() -> list[PrintedRanking]:
    """Return every ranking of three methods or more beside Full that the papers' tables hold."""
    three = ("multifieldqa_en", "qasper", "hotpotqa", "triviaqa", "passage_retrieval_en")  # found of all three methods
    return [
        _ranking(
            "retro", "longgenbench", "LongGenBench", ("gsm8k", "mmlu", "csqa"), 0.15, ("longgenbench", "mini_longgen"),
            {"model": "llama31-8b-instruct"},
        ),
        _ranking(
            "lychee", "longbench", "LongBench", three, 4096, ("longbench", "longbench_prompt", "mini_recall"),
            {"model": "llama3-8b-1048k", "budget": "4096"},
        ),
    ]  # fmt: skip


def in_tokens(texts: Collection[str]) -> list[str]:
    """Return the budgets that say how many tokens are read."""
    return [text for text in texts if bytes_share(text) is None and text != "full"]


def _ranking(
    paper: str,
    table: str,
    benchmark: str,
    columns: tuple[str, ...],
    budget: float | int,
    suites: tuple[str, ...],
    keys: Mapping[str, str],
) -> PrintedRanking:
    published = load_paper(paper).published
    scores = {
        row["method"]: fmean(float(row[column]) for column in columns)
        for row in published.rows(table, **keys)
        if row["method"] != "full" and all(row.get(column) is not None for column in columns)
    }
    where = f"{load_paper(paper).title}, {_place(published.tables[table].section)}"
    words = f"print: {benchmark}, {published.models[keys['model']].title} ({where})"
    return PrintedRanking(words, suites, budget, scores)


def _place(section: str) -> str:
    return section if section.startswith(("Table", "Figure")) else f"section {section}"


def _tokens(value: float | int, context: int) -> float:
    return value * context if isinstance(value, float) else float(value)


def _size(text: str, context: int) -> float:
    share = token_share(text)
    return float(text) if share is None else share * context
