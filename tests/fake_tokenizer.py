"""Tokenizers of tests: pieces of words behind a first token, learned subwords, and one that only counts words."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.generators import prose


class Words:
    """A tokenizer of words whose chat template adds three, for tasks that only count a prompt's tokens."""

    def prompt_ids(self, text: str, chat: bool = False) -> tuple[int, ...]:
        assert chat
        return tuple(range(len(text.split()) + 3))


def pieces() -> TextTokenizer:
    """Return pieces of at most four characters as tokens, behind a begin-of-text token."""
    inner = Tokenizer(models.WordLevel({"<s>": 0, "[UNK]": 1}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s?\w{1,4}|\s?[^\w\s]|\s"), "isolated")
    inner.add_special_tokens(["<s>"])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return TextTokenizer(inner)


def byte_level(text: str, size: int, special: Sequence[str]) -> Tokenizer:
    """Return a byte-level BPE of so many tokens, learned from a text, whose digits stand apart."""
    inner = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    inner.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=list(special), show_progress=False
    )
    inner.train_from_iterator([text], trainer)
    return inner


def subwords(first: bool = False) -> TextTokenizer:
    """Return 500 subwords learned from generated prose; ``first`` puts ``<s>`` before a text."""
    inner = byte_level(prose.filler(random.Random(0), 40_000), 500, ["<s>"] * first)
    if first:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return TextTokenizer(inner)
