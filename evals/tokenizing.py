"""Text to token ids and back, loaded without importing a modelling library where a tokenizer.json is at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from longdecode.engine.errors import CheckpointError


class TextTokenizer:
    """A checkpoint's tokenizer, without special tokens added: a task's text is all that the model sees.

    ``byte_level`` holds when every ASCII character is one token whose id is the character's code.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self.byte_level = _is_byte_level(self)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of ``text``, no special tokens added."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        return tuple(encoded.ids if hasattr(encoded, "ids") else encoded)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; special tokens are left out, bytes that are no text become U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)


def load_tokenizer(folder: Path) -> TextTokenizer:
    """Load the tokenizer of a checkpoint folder: tokenizer.json where there is one, else its older formats.

    Raises:
        CheckpointError: the folder holds no tokenizer that can be read.
    """
    file = folder / "tokenizer.json"
    if file.is_file():
        return TextTokenizer(Tokenizer.from_file(str(file)))
    from transformers import AutoTokenizer  # seconds to import, so only where an older format needs it

    try:
        return TextTokenizer(AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder}: no tokenizer.json and no other tokenizer that can be read: {error}"
        ) from error


def _is_byte_level(tokenizer: TextTokenizer) -> bool:
    codes = (*range(32, 127), 10)
    return tokenizer.encode("".join(map(chr, codes))) == codes
