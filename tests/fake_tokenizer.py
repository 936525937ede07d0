"""A tokenizer of words whose chat template adds three, for tasks that only count a prompt's tokens."""

from __future__ import annotations


class Words:
    """Counts words."""

    def prompt_ids(self, text: str, chat: bool = False) -> tuple[int, ...]:
        assert chat
        return tuple(range(len(text.split()) + 3))
