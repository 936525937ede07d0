"""Declare the page of RetroAttention."""

from __future__ import annotations

from functools import partial

from longdecode.reporting.papers.retro.gains import best_gain, gains, mean_gain, windows
from longdecode.reporting.papers.retro.kernels import step_parts
from longdecode.reporting.papers.retro.origin import origin
from longdecode.reporting.papers.retro.scores import (
    LONGGEN,
    REASONING,
    PrintedScores,
    budget_by_benchmark,
    gain_by_model,
)
from longdecode.reporting.papers.retro.states import along, exposure, overlaps, states
from longdecode.reporting.papers.retro.steps import claimed, steps
from longdecode.reporting.papers.sections.claims import Claim, Claims
from longdecode.reporting.papers.sections.method import method
from longdecode.reporting.papers.spec import declare

CLAIMS = Claims(
    (
        Claim("Effective exposure, times the budget (7 steps)", "claims", "value", {"claim": "exposure"}, exposure),
        Claim("Accuracy over Quest's, relative, %, at best", "claims", "value", {"claim": "gain"}, best_gain),
        Claim("Accuracy over Quest's, relative, %, on average", "claims", "value", {"claim": "mean gain"}, mean_gain),
        *(
            Claim(f"Milliseconds a token over Quest's, window {window}", "latency", "more", {"window": window},
                  partial(claimed, window=window))
            for window in (2, 8)
        ),
    )
)  # fmt: skip

PAPER = declare(
    __file__,
    title="RetroAttention",
    method="retro",
    rivals=("quest", "selection_reuse", "page_union", "streaming", "tova"),
    suites=("mini_longgen", "mini_longgen_long"),
    parts={
        "claims": [CLAIMS],
        "method": [method],
        "longgenbench": [PrintedScores("longgenbench", LONGGEN, "checkpoint")],
        "gain": [gain_by_model],
        "gains": [gains],
        "origin": [origin],
        "reasoning": [PrintedScores("reasoning", REASONING, "reasoning")],
        "states": [states],
        "along": [along],
        "overlap": [overlaps],
        "budget": [budget_by_benchmark],
        "window": [windows],
        "latency": [steps],
        "parts": [step_parts],
    },
)
