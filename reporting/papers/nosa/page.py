"""Declare the page of NOSA."""

from __future__ import annotations

from longdecode.reporting.papers.blocks import Block, Compared, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.nosa.forks import heads, parts, quality, trainings
from longdecode.reporting.papers.nosa.locality import lead, locality
from longdecode.reporting.papers.printed import printed_only
from longdecode.reporting.papers.sections.claims import Claim, Claims
from longdecode.reporting.papers.sections.method import method
from longdecode.reporting.papers.spec import declare


def not_measured(inputs: PaperInputs) -> Compared | None:
    """Return nothing: the throughput part says what was measured."""
    return None


def throughput(inputs: PaperInputs) -> list[Block]:
    """Return what is in print on throughput at equal device memory, and the command that measures it."""
    words = inputs.words("throughput")
    tables = [printed_only(inputs.published, name) for name in ("speedups", "throughput", "engine")]
    return [Prose(words["text"]), *tables, inputs.missing(words["missing"], "throughput")]


CLAIMS = Claims(
    [
        *(
            Claim(f"Decode throughput over {words}, at equal device memory", "speedups", "ratio", {"baseline": name},
                  not_measured)
            for name, words in (("full", "full attention"), ("infllm2", "InfLLM-V2"), ("shadowkv", "ShadowKV"))
        ),
        Claim("Overlap of steps over InfLLM-V2's, points", "locality_gap", "points", {"bound": "low"}, lead),
    ]
)  # fmt: skip

PAPER = declare(
    __file__,
    title="NOSA",
    method="nosa",
    rivals=("infllm2", "dma", "shadowkv"),
    suites=("mini_recall", "ruler"),
    parts={
        "claims": [CLAIMS],
        "method": [method],
        "forks": [trainings],
        "quality": [quality],
        "heads": [heads],
        "parts": [parts],
        "locality": [locality],
        "throughput": [throughput],
    },
)
