"""Declare the page of LycheeDecode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from longdecode.reporting.identity import HUES, Look
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.lychee.heads import heads
from longdecode.reporting.papers.published import PublishedFigure
from longdecode.reporting.papers.sections.benchmarks import Benchmark
from longdecode.reporting.papers.sections.claims import Claim, Claims
from longdecode.reporting.papers.sections.equal_bytes import EqualBytes
from longdecode.reporting.papers.sections.heat_maps import Overlap
from longdecode.reporting.papers.sections.kernel import Kernel
from longdecode.reporting.papers.sections.latency import Latency, correction
from longdecode.reporting.papers.sections.method import configurations, method, note
from longdecode.reporting.papers.sections.variants import Variants
from longdecode.reporting.papers.spec import declare

RATIO = "ratio"
LOOKS = {
    "top-k, blocks": (HUES[2], "o", False), "top-k, tokens": (HUES[2], "o", True),
    "ratio, blocks": (HUES[1], "s", False), "ratio, tokens": (HUES[1], "s", True),
    "top-p, tokens": (HUES[0], "D", True), "threshold, tokens": (HUES[3], "^", True),
    "top-p, nothing kept": (HUES[0], "D", False), "threshold, nothing kept": (HUES[3], "^", False),
}  # fmt: skip


def strategy(params: Mapping[str, Any]) -> str | None:
    """Return the selection strategy of a label; sinks and recent tokens are kept by all that do not say otherwise."""
    name = str(params.get("strategy", "top_k")).replace("_", "-")
    if _keeps_nothing(params):
        return f"{name}, nothing kept"
    return f"{name}, {params.get('mode', 'block')}s"


def strategy_knobs(params: Mapping[str, Any]) -> frozenset[str]:
    """Return the parameters that may differ from the method's own."""
    kept = {"sink_tokens", "recent_tokens"} if _keeps_nothing(params) else set()
    return frozenset({"mode", "strategy", "ratio", "top_p", "threshold", *kept})


def ratio_leads(inputs: PaperInputs, other: str) -> PublishedFigure | None:
    """Return the published lead of the ratio strategy: an order without values."""
    rank = inputs.published.figure("strategies", "rank", strategy=RATIO)
    return None if rank is None else replace(rank, value=0.0, form="above")


def _keeps_nothing(params: Mapping[str, Any]) -> bool:
    return params.get("sink_tokens") == params.get("recent_tokens") == 0


KERNEL = Kernel("kernel", "full_heads", lambda full: f"{8 - full} of 8", "KV heads that read everything, of 8", "0.1")
LATENCY = Latency("latency", (131072, 1), ("limits", "llama3-8b"))
STRATEGIES = Variants(
    "strategies",
    strategy_knobs,
    strategy,
    {name: Look(name, *shown, False) for name, shown in LOOKS.items()},
    frozenset(name for name in LOOKS if name.startswith(RATIO)),
    printed=ratio_leads,
)
BIG = {"context": 131072, "batch": 8, "full_heads": 0}
CLAIMS = Claims(
    [
        Claim(f"Times as fast, over {words} step, 128K, batch 1", "latency", "ratio",
              {"baseline": name, "context": 131072, "batch": 1},
              partial(LATENCY.claimed, model="llama3-8b", baseline=name))
        for name, words in (("full", "Full's"), ("tidal", "TidalDecode's"))
    ]
    + [Claim("Times as fast, kernel over flash attention, all heads sparse, 128K, batch 8", "kernel", "ratio", BIG,
             partial(KERNEL.claimed, where=BIG))]
)  # fmt: skip
LLAMA = {"model": "llama3-8b-1048k", "budget": "4096"}

PAPER = declare(
    __file__,
    title="LycheeDecode",
    method="lychee",
    rivals=("tidal", "quest", "duo", "streaming"),
    suites=("mini_recall", "mini_longgen"),
    kernel="hybrid_attention",
    parts={
        "claims": [CLAIMS],
        "method": [method, configurations],
        "longbench": [Benchmark("longbench", "longbench", "checkpoint")],
        "miniature": [note, EqualBytes("miniature", ("longbench", "avg", LLAMA))],
        "ruler": [Benchmark("ruler", "ruler", "ruler", partial=True)],
        "math": [Benchmark("math", "math", "math", partial=True)],
        "heads": [heads],
        "strategies": [STRATEGIES],
        "kernel": [KERNEL],
        "latency": [note, LATENCY, correction],
        "overlap": [Overlap("overlap")],
    },
)
