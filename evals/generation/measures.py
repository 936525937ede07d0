"""Measures of a long text: distinct n-grams, repetition, its loss by the model that wrote it, and host memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from statistics import fmean

import torch

from longdecode.engine.attention import DenseAttention
from longdecode.engine.decoder import Decoder
from longdecode.engine.prefill import WholePrompt
from longdecode.engine.token_block import TokenBlock

ORDERS = (1, 2, 3, 4)
WINDOW = 1024
GRAM = 8
_PIECE_TOKENS = 4096
_LOGIT_ROWS = 512


def distinct(units: Sequence[Hashable], order: int) -> float:
    """Return distinct n-grams over n-grams; 0 where there is none."""
    total = len(units) - order + 1
    return len(set(zip(*(units[start:] for start in range(order)), strict=False))) / total if total > 0 else 0.0


def diversity(ids: Sequence[int], text: str) -> dict[str, float]:
    """Return Distinct-1 to -4 three ways, and the share of 8-grams that stood before.

    ``distinct_n`` is over the tokens of the whole text; ``distinct_n_window`` the mean over windows of 1,024 tokens;
    ``distinct_n_line`` the mean over lines, in words, where a line shorter than ``n`` words counts as 0.

    Source: Li et al. 2016 (arXiv 1510.03055), section 5, for the ratio. TokenSwift (arXiv 2502.18890) does not say over
    what it takes it; its table 16 falls with ``n``, as only short units do.
    """
    windows = [ids[start : start + WINDOW] for start in range(0, max(1, len(ids) - WINDOW + 1), WINDOW)]
    lines = [words for line in text.splitlines() if (words := line.split())]
    found = {}
    for order in ORDERS:
        found[f"distinct_{order}"] = distinct(ids, order)
        found[f"distinct_{order}_window"] = fmean(distinct(window, order) for window in windows)
        found[f"distinct_{order}_line"] = fmean(distinct(line, order) for line in lines) if lines else 0.0
    return found | {"repeated_8": 1 - distinct(ids, GRAM) if len(ids) >= GRAM else 0.0}


@torch.no_grad()
def loss_by_full(decoder: Decoder, prompt: Sequence[int], written: Sequence[int]) -> float:
    """Return the mean loss of what was written, in nats a token, under full attention and without any sampling rule."""
    ids = torch.tensor([[*prompt, *written]])
    length = ids.shape[1]
    state = WholePrompt(decoder.new_cache(1, length), [length], _PIECE_TOKENS)
    block = TokenBlock(ids, torch.arange(length, device=decoder.device)[None])
    hidden = decoder.forward(block, state, DenseAttention((), decoder.config))[0, len(prompt) - 1 : -1]
    wanted = ids[0, len(prompt) :].to(decoder.device)
    total = torch.zeros((), dtype=torch.float64, device=decoder.device)
    for rows, want in zip(hidden.split(_LOGIT_ROWS), wanted.split(_LOGIT_ROWS), strict=True):
        total += torch.nn.functional.cross_entropy(decoder.logits(rows), want, reduction="sum")
    return float(total) / len(written)


def host_mib() -> float | None:
    """Return the resident memory of this process in MiB; ``None`` where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), None)
