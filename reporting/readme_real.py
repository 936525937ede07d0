"""Write what the README says of the real model, from the committed results of the profile ``real``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from longdecode.reporting import front
from longdecode.reporting.fair_play import fair_play
from longdecode.reporting.families import suite_families
from longdecode.reporting.family_grid import suites_by_family
from longdecode.reporting.quality import with_traffic
from longdecode.reporting.results import Results, Topic
from longdecode.reporting.verdicts import board
from longdecode.reporting.wording import NARROW

CONTEXT = 32768
SHARE = "bytes=0.25"
TOKENS = "1024"
NAMES = {
    "full": "Full", "duo": "DuoAttention", "lychee": "LycheeDecode", "oracle_topk": "exact top-k",
    "shadowkv": "ShadowKV", "quest": "Quest",
    "retro": "RetroAttention", "tova": "TOVA", "streaming": "StreamingLLM", "h2o": "H2O", "snapkv": "SnapKV",
    "tidal": "TidalDecode",
}  # fmt: skip
TITLES = {
    "fidelity_forced": "book, nats/token over Full", "passkey": "passkey", "mini_recall": "look-ups",
    "mini_recall_multikey": "look-ups", "mini_longgen_45": "45 answers", "ruler_niah_multikey_2": "RULER multikey_2",
    "longbench": "LongBench, ROUGE-L",
}  # fmt: skip


def real_table(results: Results) -> str:
    """Return the table of the real model: each method at a quarter of Full's bytes, or at 1,024 tokens.

    The second holds for a method that reads more than a quarter at any budget. Each task at 32,768 tokens or, where
    it has none there, at its longest context, with the 95 % interval; the share of bytes counts what the selector
    reads.
    """
    topics = [topic for suite in results.suites for topic in results.topics(results.models[0], suite)]
    contexts = {topic: _context(results.contexts(topic)) for topic in topics}
    rows = {topic: with_traffic(results.rows_of(topic, context)) for topic, context in contexts.items()}
    heads = [f"{TITLES.get(topic.name, topic.name)}, {contexts[topic] // 1024}K" for topic in topics]
    lines = ["| method | reads | " + " | ".join(heads) + " |", "| --- " * (len(heads) + 2) + "|"]
    for label, name in NAMES.items():
        cells = [_cell(table, label) for table in rows.values()]
        if all(cell is None for cell in cells):
            continue
        shares = sorted({round(100 * cell["bytes_share"]) for cell in cells if cell is not None})
        reads = " to ".join(f"{share:.0f}" for share in dict.fromkeys((shares[0], shares[-1]))) + " %"
        said = [_value(topic, cell) for topic, cell in zip(rows, cells, strict=True)]
        lines.append(f"| {name} | {reads} | " + " | ".join(said) + " |")
    return "\n".join(lines)


def real_answer(results: Results) -> str:
    """Return the front page's answer for the real model as a list, with the labels of the report."""
    main, families = results.without(results.ablations), suite_families()
    grids = suites_by_family(board(main, main.models[0]), families)
    tuned = fair_play(results, Path("results") / results.profile, families).short
    said = front.sentences(main, main.models[0], grids, tuned)
    return "\n".join(f"- {f'**{each.lead}** ' if each.lead else ''}{each.text}" for each in said).replace(NARROW, " ")


def _context(scored: list[int]) -> int:
    return CONTEXT if CONTEXT in scored else scored[-1]


def _cell(table: pd.DataFrame, label: str) -> pd.Series | None:
    """Return the row of a label that the table shows, the first that ran of a quarter of the bytes and 1,024 tokens."""
    ran = table[(table["method"] == label) & (table["status"] == "ok")]
    for budget in ("full", SHARE, TOKENS):
        found = ran[ran["budget"] == budget]
        if len(found):
            return found.iloc[0]
    return None


def _value(topic: Topic, cell: pd.Series | None) -> str:
    if cell is None:
        return ""
    if topic.unit == "nats/token":
        return f"{cell['value']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"
    return " ".join((f"{100 * cell['value']:.1f} %", f"[{100 * cell['low']:.0f}, {100 * cell['high']:.0f}]"))
