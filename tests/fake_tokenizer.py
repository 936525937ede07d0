"""Tokenizers of tests: pieces of words behind a first token, and one that only counts a prompt's words."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

from longdecode.engine.tokenizer import TextTokenizer


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
