"""The passkey format: one number in repeated filler, asked for at the end.

Source: Mohtashami and Jaggi 2023 (Landmark Attention, arXiv 2305.16300) for the task; github datamllab/LongLM,
passkey_examples.jsonl and example.py, for the wording and the layout of lines.
"""

from __future__ import annotations

HEADER = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. I will quiz you about "
    "the important information there."
)
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
QUESTION = "What is the pass key? The pass key is "


def passkey_text(key: str, before: int, after: int) -> str:
    """Header, ``before`` lines of filler, the key, ``after`` lines of filler; the question comes behind it."""
    hidden = f"The pass key is {key}. Remember it. {key} is the pass key."
    return "\n".join([HEADER, *[FILLER] * before, hidden, *[FILLER] * after])
