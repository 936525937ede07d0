"""A demonstration without a checkpoint, a configuration or a GPU: look-ups on the miniature, which the package has."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from longdecode.api import generate
from longdecode.evals.generators.lookup import marks, recall

MINIATURE = Path(__file__).parent / "models" / "miniature" / "weights"
PROMPTS, CONTEXT, BUDGET = 4, 2048, 256
METHODS = {"full": None} | dict.fromkeys(("streaming", "snapkv", "quest", "oracle_topk"), BUDGET)


def demonstrated() -> Iterator[tuple[str, str, str, str]]:
    """Yield a row's names, then what each method reads, how many look-ups it answers, and how long that takes.

    A prompt of 2,048 bytes, one a token, hides 96 records and asks for four of them; 256 tokens may be read.
    """
    yield "method", "tokens read a step", "right answers", "seconds"
    asked = [recall(random.Random(n), "multikey", CONTEXT) for n in range(PROMPTS)]
    prompts, longest = [one.prompt + one.question for one in asked], max(len(one.answer) for one in asked)
    for method, budget in METHODS.items():
        done = generate(MINIATURE, prompts, method=method, budget=budget, max_new_tokens=longest)
        right = [mark for one, answer in zip(asked, done, strict=True) for mark in marks(one.items, answer.text)]
        read, ms = fmean(answer.read_tokens_mean for answer in done), done[0].prefill_ms + done[0].decode_ms
        yield method, f"{read:,.0f}", f"{sum(right)} of {len(right)}", f"{ms / 1000:.1f}"
