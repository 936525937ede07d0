"""Sample text from the model itself for heads to learn.

Heads draft for what the model writes, under a sampler and its penalty, which is not what books say. Full attention
continues openings of books, many at a time; a rule fixed beforehand chooses the penalty: the smallest at which fewer
than a tenth of the 8-grams stood before.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from longdecode.engine.decoder import Decoder
from longdecode.engine.device import lease_gpu, resolve_device, resolve_dtype
from longdecode.engine.endless import without_ends
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.generation import Generator, Request, Sampling
from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.engine.weights import load_decoder
from longdecode.evals.generation.texts import diversity, instruction
from longdecode.methods.registry import get_method
from longdecode.training.draft_heads.data import Books
from longdecode.training.files import write_json
from longdecode.training.long_context.books import UNSEEN_EVERY

SAMPLER = Sampling(temperature=1.0, min_p=0.1)
PENALTIES = (1.0, 1.05, 1.1, 1.15, 1.2)
MOST_REPEATED = 0.1
"""Share of 8-grams that stood before, from which on a penalty is too small."""
RULE_PROMPTS, RULE_TOKENS = 12, 8192
"""Prompts that the penalty is chosen on, half as long as the texts of so many tokens."""


@dataclass(frozen=True, slots=True)
class OwnText:
    """Texts of ``tokens`` tokens after openings of ``prompt`` tokens, which are not kept; ``batch`` at a time."""

    texts: int = 1200
    batch: int = 200
    prompt: int = 1024
    tokens: int = 3072


def continued(
    decoder: Decoder, sampling: Sampling, prompts: Sequence[Sequence[int]], tokens: int, seed: int
) -> list[tuple[int, ...]]:
    """Return what full attention writes after each prompt, all in one batch."""
    requests = [Request(tuple(map(int, ids)), tokens, seed=seed + number) for number, ids in enumerate(prompts)]
    full = get_method("full").from_budget(None, decoder.config)
    return [done.output_ids for done in Generator(decoder, sampling).run(requests, full)]


def choose_penalty(decoder: Decoder, prompts: Sequence[Sequence[int]], tokens: int, output: Path) -> float:
    """Return the smallest of ``PENALTIES`` whose texts repeat less than ``MOST_REPEATED``, the last one at the worst.

    The shares seen on the way are written to ``output`` after each.
    """
    shares: dict[float, list[float]] = {}
    for penalty in PENALTIES:
        texts = continued(decoder, replace(SAMPLER, penalty=penalty), prompts, tokens, 0)
        shares[penalty] = [diversity(ids)["repeated_8"] for ids in texts]
        mean = float(np.mean(shares[penalty]))
        chosen = mean < MOST_REPEATED or penalty == PENALTIES[-1]
        write_json(output, {"penalty": penalty if chosen else None, "tokens": tokens, "repeated_8": shares})
        print(json.dumps({"penalty": penalty, "repeated_8": round(mean, 4)}), flush=True)
        if chosen:
            break
    return penalty


def sample(decoder: Decoder, books: Books, sampling: Sampling, output: Path, plan: OwnText) -> None:
    """Write texts that the model samples after openings of books, in the form that ``Books`` reads.

    Args:
        decoder: the model.
        books: what the openings are cut from; an unseen text follows an unseen book.
        sampling: how the model draws.
        output: ``*.npz``, ``train/<number>`` and ``unseen/<number>``, whole after every batch: a killed run leaves it.
        plan: how many texts, and of which length.
    """
    arrays: dict[str, Any] = {}
    for first in range(0, plan.texts, plan.batch):
        rng, numbers = random.Random(f"own text {first}"), range(first, min(first + plan.batch, plan.texts))
        splits = ["train" if number % UNSEEN_EVERY else "unseen" for number in numbers]
        prompts: list[Any] = [books.cut(getattr(books, split), rng, plan.prompt) for split in splits]
        written = continued(decoder, sampling, prompts, plan.tokens, first)
        for split, number, ids in zip(splits, numbers, written, strict=True):
            arrays[f"{split}/{number}"] = np.array(ids, np.int32)
        np.savez_compressed(partial := output.with_suffix(".partial.npz"), **arrays)
        partial.replace(output)
        print(json.dumps({"texts": len(arrays)}), flush=True)


def rule_prompts(books: Books, tokenizer: TextTokenizer, tokens: int) -> list[Sequence[int]]:
    """Return openings of unseen books as ids, every second one under an instruction to go on writing it."""
    plain: list[Sequence[int]] = [book[:tokens].tolist() for book in books.unseen[:RULE_PROMPTS]]
    with suppress(UnsupportedCellError):  # a base model without a chat template
        plain[1::2] = [instruction(tokenizer, ids, tokens) for ids in plain[1::2]]
    return plain


def write_own_text(folder: Path, source: str | None, output: Path, device: str = "auto") -> None:
    """Choose the penalty by the rule and let a checkpoint write its own text with it; see ``sample``.

    Raises:
        DataUnavailableError: the books are not there.
        CheckpointError: the checkpoint cannot be loaded.
    """
    with lease_gpu(resolve_device(device)) as target:
        tokenizer = load_tokenizer(folder)
        decoder = without_ends(load_decoder(folder, device=target, dtype=resolve_dtype("auto", target)), folder)
        books = Books(source, tokenizer, RULE_TOKENS)
        prompts = rule_prompts(books, tokenizer, RULE_TOKENS // 2)
        penalty = choose_penalty(decoder, prompts, RULE_TOKENS, output.with_name("penalty.json"))
        sample(decoder, books, replace(SAMPLER, penalty=penalty), output, OwnText())
