"""Tokenizers of tests: pieces of words behind a first token, learned subwords, and one that only counts words."""

from __future__ import annotations

import random

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


def subwords(first: bool = False) -> TextTokenizer:
    """Return a byte-level BPE of 500 subwords learned from generated prose; ``first`` puts ``<s>`` before a text."""
    inner = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    inner.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, special_tokens=["<s>"] * first)
    inner.train_from_iterator([prose.filler(random.Random(0), 40_000)], trainer)
    if first:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return TextTokenizer(inner)
