"""Full's run over a prefilled batch, and the batch that another method is compared through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longdecode.engine.generation import Completion, Generator, Prompt
from longdecode.methods.registry import get_method


def full_run(generator: Generator, prompt: Prompt) -> list[Completion]:
    """Decode a batch with Full attention; the prompt is left as it was."""
    method = get_method("full").from_budget(None, generator.decoder.config)
    return generator.decode(prompt, method)


def compared_prompt(prompt: Prompt, full: Sequence[Completion]) -> Prompt:
    """Return the same batch, asking for its first choices and for Full's likeliest tokens."""
    requests = (
        replace(request, top_tokens=min(1, request.top_tokens), compared_ids=reference.top_ids)
        for request, reference in zip(prompt.requests, full, strict=True)
    )
    return replace(prompt, requests=tuple(requests))
