"""Long texts: their prompts, writing them with totals at marks, and their measures.

Measures are distinct n-grams, repetition, and the bias of the printed rule of
acceptance: how far a step's law is from the target's, on real logits. A draft of probability ``q`` that 27 paths share
is accepted by the printed rule with ``1 - (1 - q) ** 27``, one draw a path, where the target's law gives it ``q``. All
other tokens keep their proportions, so that the difference of the two is the total variation between the step's law and
the target's.

Source: TokenSwift (arXiv 2502.18890), algorithm 1, line 12.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.device import Timer
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.generation import Generator
from longdecode.engine.request import Request
from longdecode.engine.steppers import SpeculativeStepper, Stepper, make_stepper
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.datasets.books import read_books
from longdecode.evals.generators.narrative import narrative
from longdecode.evals.stats import Spread, bootstrap_interval

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
PATHS = (27, 47)
"""Paths of the tree 1, 3, 3, 3 without and with 20 n-grams."""
LAW_STEPS, LAW_RESAMPLES = 200, 2000
"""Steps of a text that the law is measured at, fewer where it ends; bootstrap draws of its mean."""


def prompts(
    data: Path | None, count: int, tokens: int, seed: int, tokenizer: TextTokenizer, instructions: int = 0
) -> list[tuple[str, tuple[int, ...]]]:
    """Return titles and prompts of exactly ``tokens`` ids: ``count`` openings of books, then ``instructions``.

    The latter ask in the model's chat template to go on with the openings of further books.

    Raises:
        DataUnavailableError: a book is not there; the message holds the command that fetches it.
        UnsupportedCellError: a text is too short, or there are fewer books.
    """
    count += instructions
    most = 16 * tokens + 1024  # characters; no tokenizer needs as many for tokens of English
    if tokenizer.byte_level:
        drawn = (random.Random(f"generation {seed} {number}") for number in range(count))
        texts = {f"narrative-{number}": narrative(rng, most, 0).prompt for number, rng in enumerate(drawn)}
    elif count > len(BOOKS):
        raise UnsupportedCellError(f"{count} books are asked for; {len(BOOKS)} are set aside: {', '.join(BOOKS)}")
    else:
        texts = dict(read_books(data, BOOKS[:count]))
    found = [(title, tokenizer.prompt_ids(text[:most])[:tokens]) for title, text in texts.items()]
    for title, ids in found:
        if len(ids) < tokens:
            raise UnsupportedCellError(f"book {title} has {len(ids)} tokens, the prompt needs {tokens}")
    told = count - instructions
    return found[:told] + [(f"{title} told", instruction(tokenizer, ids, tokens)) for title, ids in found[told:]]


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
    every, marks = -(-total // MARKS), dict[int, dict[str, float]]()
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
            marks[until] = _totals(stepper, ms)
        ids = tuple(stepper.sequences.chosen[0, : int(counts[0])].tolist())
    return ids, measures_of(marks, method) | {"prefill_ms": prompt.prefill_ms}


def measures_of(marks: Mapping[int, Mapping[str, float]], method: AttentionMethod) -> dict[str, float]:
    """Return the measures of a finished text; ``at_<n>_<total>`` are the totals at its marks.

    ``alpha`` is the drafts kept a step over the tree's depth, ``beta`` those kept on paths that end in an n-gram.

    Args:
        marks: totals by place: tokens, steps and milliseconds at the first look past it, and drafts kept on paths that
            end in an n-gram.
        method: wrote it.

    Source: TokenSwift (arXiv 2502.18890), equations 4 and 6.
    """
    last = marks[max(marks)]
    tokens, steps, ms = last["tokens"], last["steps"], last["ms"]
    found = {
        "tokens": tokens, "decode_steps": steps, "decode_ms": ms, "tokens_per_step": (tokens - 1) / steps,
        "ms_per_token": ms / (tokens - 1), "depth": 0.0, "rows": 1.0,
    }  # fmt: skip
    if method.draft is not None:
        tree = method.draft.tree
        found |= {"depth": float(tree.depth), "rows": float(tree.rows)}
        found["alpha"] = (tokens - 1 - steps) / (tree.depth * steps)
        found["beta"] = last["ngram_tokens"] / (tree.depth * steps)
    return found | {f"at_{at}_{name}": value for at, totals in marks.items() for name, value in totals.items()}


def _totals(stepper: Stepper, ms: float) -> dict[str, float]:
    counted = stepper.proposer.counts() if isinstance(stepper, SpeculativeStepper) else {}
    ngrams = float(counted["ngram_tokens"][0]) if "ngram_tokens" in counted else 0.0
    tokens, steps = float(stepper.sequences.counts[0]), float(stepper.sequences.steps[0]) - 1
    return {"tokens": tokens, "steps": steps, "ms": ms, "ngram_tokens": ngrams}


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


def printed_bias(chance: Tensor, paths: int) -> Tensor:
    """Return the total variation by the target's probability of the draft that ``paths`` paths begin with."""
    return 1 - (1 - chance) ** paths - chance


@torch.no_grad()
def steps_of(generator: Generator, method: AttentionMethod, request: Request) -> Iterator[tuple[Tensor, Tensor]]:
    """Write a text by the exact rule and yield, step by step, what its first token was chosen from.

    Yields:
        ``[1, V]`` float32, logits whose softmax is the law of that token (penalty and filters applied), and ``[1]``
        int64, the draft of it.

    Raises:
        ConfigError: the method does not verify by the exact rule.
    """
    prompt = generator.prefill_for([request], method)
    stepper = make_stepper(generator.decoder, generator.sampling, prompt, method, keep_prompt=False)
    if not isinstance(stepper, SpeculativeStepper) or stepper.rule != "exact":
        raise ConfigError(f"{method.name}: the law is measured along a text of mode exact")
    proposer, sequences = stepper.proposer, stepper.sequences
    while bool(sequences.active.all()):
        proposer.refreshing = proposer.refreshes and proposer.refresh_due()
        starts = stepper.state.dense.lengths.clone()
        nodes = proposer.propose()
        hidden, logits = stepper.verify(starts, nodes)
        law = sequences.sampling.processed(logits[:, 0].float(), sequences.history())
        stepper.accept(starts, nodes, hidden, logits)
        proposer.refreshing = False
        yield law, nodes[:, 0]


def law_measures(steps: Iterable[tuple[Tensor, Tensor]], seed: int, confidence: float) -> dict[str, float]:
    """Return the mean total variation of the printed rule by paths, ``tv_27``, and its interval over steps.

    ``q_first`` is the mean probability of the draft, ``law_positions`` the number of steps.
    """
    chances = torch.cat([law.double().softmax(1).gather(1, draft[:, None])[:, 0] for law, draft in steps]).cpu()
    found = {"law_positions": float(len(chances)), "q_first": float(chances.mean())}
    for paths in PATHS:
        bias = printed_bias(chances, paths).numpy()
        mean = bootstrap_interval([bias], Spread(confidence, LAW_RESAMPLES, seed), np.random.default_rng(seed))
        found |= {f"tv_{paths}": mean.value, f"tv_{paths}_low": mean.low, f"tv_{paths}_high": mean.high}
    return found
