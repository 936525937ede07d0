"""Declare the page of TokenSwift."""

from __future__ import annotations

from longdecode.reporting.papers.blocks import Compared
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.sections.claims import Claim, Claims
from longdecode.reporting.papers.sections.method import method
from longdecode.reporting.papers.spec import declare
from longdecode.reporting.papers.tokenswift.books import over_books
from longdecode.reporting.papers.tokenswift.curves import minutes_drawn, ngrams_drawn
from longdecode.reporting.papers.tokenswift.exactness import exact, replayed
from longdecode.reporting.papers.tokenswift.heads import heads
from longdecode.reporting.papers.tokenswift.others import bound, others
from longdecode.reporting.papers.tokenswift.rows import rows
from longdecode.reporting.papers.tokenswift.runs import ngrams, prompts, released, unwritten
from longdecode.reporting.papers.tokenswift.steps import composed, steps
from longdecode.reporting.papers.tokenswift.tables import (
    Mirror,
    compared_value,
    growth,
    law,
    minutes,
    one_text,
    quality,
    why,
)
from longdecode.reporting.papers.tokenswift.texts import fulls, longest, standing, value, written

CLAIMED = {"model": "llama3.1-8b", "prefill": 4096, "generated": 102_400, "method": "tokenswift"}
RATES, DISTINCTS = ("alpha", "speedup"), ("distinct_1", "distinct_2", "distinct_3", "distinct_4", "average")


def claimed(inputs: PaperInputs) -> Compared | None:
    """Return the measured speedup of the longest texts, on the model that wrote most."""
    stands = inputs.words("tables")["default"]
    found = standing(written(inputs.folder, task=stands["sampler"], context=CLAIMED["prefill"]), stands["label"])
    most = longest(found)
    own = [r for r in found if r.measures["tokens"] == most]
    seen = value(own, fulls(inputs.folder), "speedup", most)
    printed = inputs.published.figure("speedups", "speedup", **CLAIMED)
    reason = f"{own[0].label} on {own[0].model}, {most:,} tokens; {why('speedup')}" if own else ""
    return None if seen is None else compared_value([], printed, seen, reason, inputs.results.confidence)


CLAIMS = Claims(
    [
        Claim("Speedup over autoregressive decoding, 100K tokens", "speedups", "speedup",
              CLAIMED, claimed),
    ]
)  # fmt: skip


PAPER = declare(
    __file__,
    title="TokenSwift",
    method="tokenswift",
    rivals=("medusa", "triforce", "speculate", "ngram"),
    suites=("mini_recall",),
    evidence="generation",
    parts={
        "claims": [CLAIMS],
        "method": [method],
        "quality": [quality, unwritten, exact, replayed],
        "prompts": [prompts],
        "books": [over_books],
        "law": [law],
        "tables": [
            Mirror("speedups", ("prefill", "method"), RATES),
            Mirror("kv_policy", "cache", RATES),
            Mirror("penalty", ("sampler", "penalty"), (*DISTINCTS, "speedup")),
            Mirror("trees", "tree", RATES),
            Mirror("theta", "theta", DISTINCTS),
            Mirror("sampling", "sampler", RATES),
            Mirror("temperature", "temperature", RATES),
            Mirror("prefill", "prefill", RATES),
            Mirror("window", "window", RATES),
            Mirror("window_distinct", "window", DISTINCTS),
            Mirror("figure_3", "ngrams", ("alpha", "beta", "speedup")),
            ngrams_drawn,
        ],
        "ngrams": [ngrams],
        "released": [released],
        "others": [others],
        "minutes": [minutes, minutes_drawn],
        "growth": [growth],
        "heads": [heads],
        "steps": [steps, bound],
        "rows": [rows],
        "composed": [composed],
        "text": [one_text],
    },
)
