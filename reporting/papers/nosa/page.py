"""Declare the page of NOSA."""

from __future__ import annotations

from functools import partial

from longdecode.reporting.papers.nosa.forks import parts, quality, trainings
from longdecode.reporting.papers.nosa.locality import lead, locality
from longdecode.reporting.papers.nosa.losses import books, heads
from longdecode.reporting.papers.sections.claims import Claim, Claims
from longdecode.reporting.papers.sections.equal_memory import EqualMemory
from longdecode.reporting.papers.sections.method import method
from longdecode.reporting.papers.sections.own_choices import OwnChoices
from longdecode.reporting.papers.spec import declare

THROUGHPUT = EqualMemory(
    "throughput", "speedups",
    {"full": ("full",), "infllm2": ("infllm2_offload", "infllm2_spare32", "infllm2_overlap", "infllm2_overlap32"),
     "shadowkv": ("shadowkv",)},
    ("nosa_offload", "nosa_spare32", "nosa_prefetch", "nosa_overlap", "nosa_overlap32"), ("throughput", "engine"),
    {
        "at the hit rates of forks that were trained here, on real text":
            ({"full": ("full",), "infllm2": ("infllm2_fork", "infllm2_fork32")}, ("nosa_fork", "nosa_fork32")),
        "with blocks that our forks read in 4K-token texts, 32 spare slots, fetch beside attention":
            ({"full": ("full",), "infllm2": ("infllm2_trace32",)}, ("nosa_trace32",)),
    },
    {"infllm2": {"nosa_prefetch": "infllm2_prefetch", "nosa_overlap": "infllm2_overlap",
                 "nosa_overlap32": "infllm2_overlap32"}},
)  # fmt: skip

OWN_CHOICES = OwnChoices(
    "own_choices",
    (
        ("own_nosa_offload", "own_infllm2_offload"),
        ("own_nosa_overlap32", "own_infllm2_overlap32"),
        *((f"own_nosa_{means}", "own_shadowkv") for means in ("device", "offload", "spare32", "overlap32")),
    ),
)

CLAIMS = Claims(
    [
        *(
            Claim(f"Decode throughput over {words}, at equal device memory", "speedups", "ratio", {"baseline": name},
                  partial(THROUGHPUT.claimed, baseline=name), "throughput")
            for name, words in (("full", "full attention"), ("infllm2", "InfLLM-V2"), ("shadowkv", "ShadowKV"))
        ),
        Claim("Overlap of steps over InfLLM-V2's, points", "locality_gap", "points", {"bound": "low"}, lead,
              "locality"),
    ]
)  # fmt: skip


PAPER = declare(
    __file__,
    title="NOSA",
    method="nosa",
    rivals=("infllm2", "dma", "shadowkv"),
    suites=("mini_recall", "mini_longgen", "ruler", "json_kv"),
    parts={
        "claims": [CLAIMS],
        "method": [method],
        "forks": [trainings],
        "quality": [quality],
        "books": [books],
        "heads": [heads],
        "parts": [parts],
        "locality": [locality],
        "throughput": [THROUGHPUT],
        "own_choices": [OWN_CHOICES],
    },
    held={
        **dict.fromkeys(("throughput", "own_choices"), "offload"),
        **dict.fromkeys(("forks", "quality", "books", "heads", "parts", "locality"), "nosa"),
    },
)
