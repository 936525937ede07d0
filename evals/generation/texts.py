"""Long texts: their prompts, writing them with totals at marks, distinct n-grams and repetition."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.device import Timer
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.generation import Generator, completion_of
from longdecode.engine.request import Completion, Request
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.datasets.books import read_books
from longdecode.evals.generators.narrative import narrative

BOOKS = ("26493", "4047", "7412", "5962", "9931", "860", "28444")
"""Books of PG-19's test split that no model of this project was trained on, each over 250,000 characters."""
INSTRUCTION = (
    "Go on with the story whose beginning follows. Write very long: chapter after chapter, scene by scene, without a "
    "summary and without coming to an end.\n\n"
)
MARKS = 10
"""Places of a text at which its totals are noted, evenly spread; the paper's 102,400 tokens have theirs at 10,240."""
ORDERS = (1, 2, 3, 4)
GRAM = 8


def prompts(
    data: Path | None, count: int, tokens: int, seed: int, tokenizer: TextTokenizer, instructions: int = 0
) -> list[tuple[str, tuple[int, ...]]]:
    """Return titles and prompts of exactly ``tokens`` ids: ``count`` openings of books, then ``instructions``.

    The latter ask in the model's chat template to go on with the openings of further books.

    Raises:
        DataUnavailableError: a book is not there; the message holds the command that fetches it.
        UnsupportedCellError: a text is too short, or there are fewer books.
    """
    wanted = count + instructions
    most = 16 * tokens + 1024  # characters; no tokenizer needs as many for tokens of English
    if tokenizer.byte_level:
        drawn = (random.Random(f"generation {seed} {number}") for number in range(wanted))
        texts = {f"narrative-{number}": narrative(rng, most) for number, rng in enumerate(drawn)}
    elif wanted > len(BOOKS):
        raise UnsupportedCellError(f"{wanted} books are asked for; {len(BOOKS)} are set aside: {', '.join(BOOKS)}")
    else:
        texts = dict(read_books(data, BOOKS[:wanted]))
    found = [(title, tokenizer.prompt_ids(text[:most])[:tokens]) for title, text in texts.items()]
    for title, ids in found:
        if len(ids) < tokens:
            raise UnsupportedCellError(f"book {title} has {len(ids)} tokens, the prompt needs {tokens}")
    return found[:count] + [(f"{title} told", instruction(tokenizer, ids, tokens)) for title, ids in found[count:]]


def instruction(tokenizer: TextTokenizer, ids: Sequence[int], tokens: int) -> tuple[int, ...]:
    """Return ``tokens`` ids of a chat that asks to go on with a story, as much of its beginning in it as fits."""
    before, after = map(tokenizer.encode, tokenizer.chat_text(f"{INSTRUCTION}<story>").split("<story>"))
    return (*before, *ids[: tokens - len(before) - len(after)], *after)


@torch.no_grad()
def write_text(
    generator: Generator, method: AttentionMethod, request: Request
) -> tuple[tuple[int, ...], dict[str, float]]:
    """Write a text and return it with its measures; between two marks no step waits for the host.

    Args:
        generator: the model and the sampling.
        method: writes.
        request: one prompt.

    Returns:
        The tokens, and ``measures_of`` them. The token that the prefill chooses is among them, but is neither a step
        nor timed.

    Raises:
        ContextLimitError: prompt and text are over the model's context.
        UnsupportedCellError: the method cannot run here.
        DeviceMemoryError: they do not fit the device.
    """
    total, calls, ms = request.max_new_tokens, 0, 0.0
    every, marks = -(-total // MARKS), dict[int, Completion]()
    prompt = generator.prefill_for([request], method)
    with generator.ready(prompt, method, keep_prompt=False) as (stepper, advance):
        counts = stepper.sequences.counts
        while (written := int(counts[0])) < total:
            until = min(total, (written // every + 1) * every)
            with Timer(generator.decoder.device) as timer:
                while int(counts[0]) < until:
                    for _ in range(generator.look_every):
                        advance(calls)
                        calls += 1
            ms += timer.ms
            done = completion_of(stepper, 0, request, prompt.prefill_ms, ms)
            marks |= {place: done for place in (*range(until, total, every), total) if place <= int(counts[0])}
    return marks[total].output_ids, measures_of(marks, method)


def measures_of(marks: Mapping[int, Completion], method: AttentionMethod) -> dict[str, float]:
    """Return the measures of a finished text; ``at_<n>_<total>`` are the totals at its marks.

    Args:
        marks: by place, what was written at the first look past it; ``ngram_tokens`` are drafts kept on paths that end
            in an n-gram, ``narrow_steps`` steps that verified the narrow tree.
        method: wrote it.
    """
    last, tree = marks[max(marks)], method.draft.tree if method.draft else None
    found = {
        "tokens": len(last.output_ids), "decode_steps": last.decode_steps, "decode_ms": last.decode_ms,
        "tokens_per_step": last.tokens_per_step, "prefill_ms": last.prefill_ms, "depth": tree.depth if tree else 0,
        "rows": tree.rows if tree else 1,
    }  # fmt: skip
    for at, done in marks.items():
        totals = {"tokens": len(done.output_ids), "steps": done.decode_steps, "ms": done.decode_ms}
        totals |= {"ngram_tokens": 0, **done.draft_counts}
        found |= {f"at_{at}_{name}": value for name, value in totals.items()}
    return {name: float(value) for name, value in found.items()}


def distinct(units: Sequence[Hashable], order: int) -> float:
    """Return distinct n-grams over n-grams; 0 where there is none."""
    total = len(units) - order + 1
    return len(set(zip(*(units[start:] for start in range(order)), strict=False))) / total if total > 0 else 0.0


def diversity(ids: Sequence[int]) -> dict[str, float]:
    """Return Distinct-1 to -4 over the tokens of a text, and the share of 8-grams that stood before.

    Source: Li et al. 2016 (arXiv 1510.03055), section 5, for the ratio. TokenSwift (arXiv 2502.18890) does not say over
    what it takes it.
    """
    repeated = 1 - distinct(ids, GRAM) if len(ids) >= GRAM else 0.0
    return {f"distinct_{order}": distinct(ids, order) for order in ORDERS} | {f"repeated_{GRAM}": repeated}


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int | None:
    """Return the first place where two texts of one length differ, ``None`` where they are the same."""
    return next((place for place, (one, other) in enumerate(zip(ids, others, strict=True)) if one != other), None)
