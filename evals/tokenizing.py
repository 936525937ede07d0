"""Text to token ids and back, loaded without importing a modelling library where a tokenizer.json is at hand."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from longdecode.engine.config_reader import read_json
from longdecode.engine.errors import CheckpointError, UnsupportedCellError


class TextTokenizer:
    """A checkpoint's tokenizer; special tokens are added only where ``prompt_ids`` says so.

    ``byte_level`` holds when every ASCII character is one token whose id is the character's code.

    Args:
        tokenizer: of the tokenizers library, or of transformers.
        folder: the checkpoint, for its chat template; ``None`` where there is no folder.
    """

    def __init__(self, tokenizer: Any, folder: Path | None = None):
        self._tokenizer = tokenizer
        self._folder = folder
        self.byte_level = _is_byte_level(self)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of ``text``, no special tokens added."""
        return self._encode(text, special=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; special tokens are left out, bytes that are no text become U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    @functools.cached_property
    def first_ids(self) -> tuple[int, ...]:
        """Special tokens that the tokenizer itself puts before a text: Llama 3's begin-of-text, nothing for Qwen."""
        bare, dressed = self._encode("a", special=False), self._encode("a", special=True)
        starts = (at for at in range(len(dressed)) if dressed[at : at + len(bare)] == bare)
        return dressed[: next(starts, 0)]

    def prompt_ids(self, text: str, chat: bool = False) -> tuple[int, ...]:
        """Token ids of a prompt as the model sees it: ``first_ids`` before the text, or its chat template around it.

        Raises:
            UnsupportedCellError: ``chat`` is wanted and the checkpoint has no chat template.
        """
        return self.encode(self.chat_text(text)) if chat else self.first_ids + self.encode(text)

    def chat_text(self, text: str) -> str:
        """``text`` as the user's one turn in the checkpoint's chat template, up to where the answer begins.

        Raises:
            UnsupportedCellError: the checkpoint has no chat template, or one that cannot be filled in.
        """
        turn = [{"role": "user", "content": text}]
        try:
            if self._chat is not None:
                return str(self._chat.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
        except CheckpointError:
            raise
        except Exception as error:  # a template is a program: it raises whatever it likes, and so does reading it
            why = f"{type(error).__name__}: {_first_line(error)}"
            raise UnsupportedCellError(f"{self._folder}: its chat template cannot be filled in: {why}") from error
        raise UnsupportedCellError(
            f"{self._folder or 'this tokenizer'} has no chat template (tokenizer_config.json's chat_template, or "
            "chat_template.jinja), which this task's prompts go through"
        )

    @functools.cached_property
    def _chat(self) -> Any | None:
        """Transformers' tokenizer where it has a chat template, else ``None``."""
        if self._folder is None:
            return None
        if not hasattr(self._tokenizer, "apply_chat_template") and not _may_chat(self._folder):
            return None
        from transformers import AutoTokenizer  # seconds to import, so only where a template is to be filled in

        found = AutoTokenizer.from_pretrained(self._folder, trust_remote_code=False)
        return found if found.chat_template else None

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        encoded = self._tokenizer.encode(text, add_special_tokens=special)
        return tuple(encoded.ids if hasattr(encoded, "ids") else encoded)


def load_tokenizer(folder: Path) -> TextTokenizer:
    """Load the tokenizer of a checkpoint folder: tokenizer.json where there is one, else its older formats.

    Raises:
        CheckpointError: the folder holds no tokenizer that can be read.
    """
    file = folder / "tokenizer.json"
    if file.is_symlink() and not file.exists():
        raise CheckpointError(f"{file} is a link that leads nowhere")
    if file.is_file():
        try:
            return TextTokenizer(Tokenizer.from_file(str(file)), folder)
        except Exception as error:  # the library raises bare exceptions of its own
            raise CheckpointError(f"{file}: not a tokenizer that can be read: {_first_line(error)}") from error
    from transformers import AutoTokenizer  # seconds to import, so only where an older format needs it

    try:
        return TextTokenizer(AutoTokenizer.from_pretrained(folder, trust_remote_code=False), folder)
    except (OSError, ValueError, ImportError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{folder}: no tokenizer.json and no other tokenizer that can be read: {_first_line(error)}"
        ) from error


def eos_ids(folder: Path) -> frozenset[int]:
    """Ids that end a generation: generation_config.json's, or config.json's where that names none, as in transformers.

    A checkpoint that names none, such as a byte-level model, has none.

    Raises:
        CheckpointError: the value is neither an id nor a list of ids.
    """
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        value = read_json(file).get("eos_token_id") if file.exists() else None
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
            raise CheckpointError(f"{file}: eos_token_id is {value!r}, expected a token id or a list of them")
        return frozenset(ids)
    return frozenset()


def _may_chat(folder: Path) -> bool:
    """Return true where the folder's files mention a chat template."""
    config = folder / "tokenizer_config.json"
    named = config.is_file() and "chat_template" in read_json(config)
    return named or (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file()


def _first_line(error: BaseException) -> str:
    return " ".join((str(error).splitlines() or [type(error).__name__])[0].split())[:200]


def _is_byte_level(tokenizer: TextTokenizer) -> bool:
    codes = (*range(32, 127), 10)
    return tokenizer.encode("".join(map(chr, codes))) == codes
