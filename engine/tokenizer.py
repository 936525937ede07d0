"""Text to token ids and back, loaded without importing a modelling library where a tokenizer.json is at hand."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from longdecode.engine.config_reader import read_json
from longdecode.engine.errors import CheckpointError, UnsupportedCellError

_SPECIAL_TOKENS_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_ANSWER = "longdecode"
"""Stands for an assistant's words, to be found again in a filled-in template."""


class TextTokenizer:
    """A checkpoint's tokenizer: no text is cut or padded, special tokens are added only where ``prompt_ids`` says so.

    ``byte_level`` holds when every ASCII character is one token whose id is the character's code.

    Args:
        tokenizer: of the tokenizers library, or of transformers.
        folder: the checkpoint, for its chat template; ``None`` where there is no folder.
    """

    def __init__(self, tokenizer: Any, folder: Path | None = None):
        self._tokenizer = tokenizer
        self._folder = folder
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if isinstance(backend, Tokenizer):  # a tokenizer.json may hold what its last user, or its training, switched on
            backend.no_truncation()
            backend.no_padding()
            if getattr(backend.model, "dropout", None):
                backend.model.dropout = None
        codes = (*range(32, 127), 10)
        self.byte_level = self.encode("".join(map(chr, codes))) == codes

    @property
    def counts_bytes(self) -> bool:
        """Return whether a prompt has as many tokens as bytes."""
        return self.byte_level and not self.first_ids

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of ``text``, no special tokens added."""
        return self._encode(text, special=False)

    def sole_token(self, text: str) -> int | None:
        """The one token that ``text`` is, ``None`` where it takes several or is told as another text or as unknown."""
        ids = self.encode(text)
        is_itself = len(ids) == 1 and (self.known_ids.get(text) == ids[0] or text in self.decode(ids))
        return ids[0] if is_itself else None

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
        return self.conversation([{"role": "user", "content": text}])

    def conversation(self, turns: Sequence[Mapping[str, str]], *, continues: bool = False) -> str:
        """Turns in the checkpoint's chat template, up to where the answer begins, or (``continues``) in the last turn.

        Raises:
            UnsupportedCellError: as of ``chat_text``; or the template leaves out the words of a user.
        """
        how = {"tokenize": False, "add_generation_prompt": not continues, "continue_final_message": continues}
        try:
            filled = None if self._chat is None else str(self._chat.apply_chat_template(list(turns), **how))
        except Exception as error:  # a template is a program: it raises whatever it likes, and so does reading it
            why = f"{type(error).__name__}: {_first_line(error)}"
            raise UnsupportedCellError(f"{self._folder}: its chat template cannot be filled in: {why}") from error
        if filled is None:
            raise UnsupportedCellError(
                f"{self._folder or 'this tokenizer'} has no chat template (tokenizer_config.json's chat_template, or "
                "chat_template.jinja), which this task's prompts go through"
            )
        if any(turn["role"] == "user" and turn["content"].strip() not in filled for turn in turns):
            raise UnsupportedCellError(f"{self._folder}: its chat template leaves out, or alters, the user's words")
        return filled

    def special_id(self, name: str) -> int | None:
        """Id of a special token, such as ``eos_token``; ``None`` where the checkpoint names none that there is."""
        if self._folder is None or hasattr(self._tokenizer, name):
            text = getattr(self._tokenizer, name, None)
        else:
            named = (_read_if_there(self._folder / file).get(name) for file in _SPECIAL_TOKENS_FILES)
            text = next(filter(None, named), None)
        text = text.get("content") if isinstance(text, dict) else text
        return self.known_ids.get(text) if isinstance(text, str) else None

    @functools.cached_property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a text by the tokenizer's files: its ``eos_token``, and the chat template's end of a turn.

        The end of a turn is the added token that the template writes right after an assistant's words, spaces aside; of
        a template that writes none after the last turn, the one before the user's next.
        """
        ends = {self.special_id("eos_token"), self._end_of_turn}
        return frozenset(token for token in ends if token is not None)

    @property
    def _end_of_turn(self) -> int | None:
        if self._chat is None:
            return None
        added = getattr(self._tokenizer, "get_added_tokens_decoder", lambda: self._tokenizer.added_tokens_decoder)()
        user, assistant = ({"role": "user", "content": "Say it."}, {"role": "assistant", "content": _ANSWER})
        for turns in ([user, assistant], [user, assistant, user]):
            try:
                written = str(self._chat.apply_chat_template(turns, tokenize=False))
            except Exception:  # templates raise what they like; a task that needs one says so, others end no turns
                return None
            after = written.partition(_ANSWER)[2].lstrip()
            if ends := [token.content for token in added.values() if token.content and after.startswith(token.content)]:
                return self.known_ids[max(ends, key=len)]
        return None

    @functools.cached_property
    def known_ids(self) -> dict[str, int]:
        """Ids of all tokens by their text."""
        return dict(self._tokenizer.get_vocab())

    @functools.cached_property
    def library(self) -> Any | None:
        """Transformers' tokenizer of the same files, for chat templates and names of tokens; ids come from this class.

        Where there is a tokenizer.json it is taken as it is: the class that ``tokenizer_class`` names may rebuild it
        with another treatment of spaces.

        Raises:
            CheckpointError: transformers cannot read the folder's tokenizer files.
        """
        if self._folder is None or hasattr(self._tokenizer, "apply_chat_template"):
            return self._tokenizer if hasattr(self._tokenizer, "apply_chat_template") else None
        from transformers import PreTrainedTokenizerFast  # seconds to import, so only where a template is filled in

        try:
            return PreTrainedTokenizerFast.from_pretrained(self._folder, local_files_only=True)
        except Exception as error:  # whatever a damaged tokenizer_config.json leads to
            raise CheckpointError(
                f"{self._folder}: transformers cannot read its tokenizer: {_first_line(error)}"
            ) from error

    @functools.cached_property
    def _chat(self) -> Any | None:
        """Transformers' tokenizer where it has a chat template, else ``None``."""
        if self._folder is None:
            return None
        if not hasattr(self._tokenizer, "apply_chat_template") and not _may_chat(self._folder):
            return None
        return self.library if self.library is not None and self.library.chat_template else None

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
    if not file.is_file():
        return _older(folder)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare exceptions of its own
        raise CheckpointError(f"{file}: not a tokenizer that can be read: {_first_line(error)}") from error
    found = TextTokenizer(tokenizer, folder)
    if (declared := _declared(folder)).keys() <= found.known_ids.keys():
        return found
    added = TextTokenizer(found.library, folder)
    if wrong := [token for token, place in declared.items() if added.known_ids.get(token) != place]:
        raise CheckpointError(
            f"{folder}: the token {wrong[0]!r} is not in tokenizer.json, and its declared id is taken"
        )
    return added


def _older(folder: Path) -> TextTokenizer:
    from transformers import AutoTokenizer  # seconds to import, so only where an older format needs it

    try:
        older = TextTokenizer(AutoTokenizer.from_pretrained(folder, trust_remote_code=False), folder)
    except (OSError, ValueError, ImportError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{folder}: no tokenizer.json and no other tokenizer that can be read: {_first_line(error)}"
        ) from error
    if not older.encode("a text"):  # transformers makes an empty tokenizer of files that are not there
        raise CheckpointError(f"{folder}: no tokenizer.json, and its tokenizer's vocabulary is missing or empty")
    return older


def _declared(folder: Path) -> dict[str, int]:
    """Return the added tokens that files beside tokenizer.json name, which transformers adds where it lacks them."""
    decoder = _read_if_there(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}
    try:
        tokens = {str(flags["content"]): int(place) for place, flags in decoder.items()}
        return {token: int(place) for token, place in _read_if_there(folder / "added_tokens.json").items()} | tokens
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{folder}: added_tokens.json or tokenizer_config.json names no tokens by id") from error


def eos_ids(folder: Path, tokenizer: TextTokenizer | None = None) -> frozenset[int]:
    """Ids that end a generation, alike for suites and lm-eval.

    They are generation_config.json's ``eos_token_id``, or config.json's where that names none, as in transformers; and
    with them ``TextTokenizer.end_ids``: the tokenizer's ``eos_token`` and the end of a turn in its chat template, which
    generation_config.json often leaves out. A checkpoint that names none, such as a byte-level model, has none.

    Args:
        folder: the checkpoint.
        tokenizer: its tokenizer, where it is loaded already; a folder without one has no ids from it.

    Raises:
        CheckpointError: a value is neither an id nor a list of ids, or a file cannot be read.
    """
    if tokenizer is None and (folder / "tokenizer.json").exists():
        tokenizer = load_tokenizer(folder)
    return _configured_eos_ids(folder) | (tokenizer.end_ids if tokenizer else frozenset())


def _configured_eos_ids(folder: Path) -> frozenset[int]:
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        value = _read_if_there(file).get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
            raise CheckpointError(f"{file}: eos_token_id is {value!r}, expected a token id or a list of them")
        return frozenset(ids)
    return frozenset()


def _may_chat(folder: Path) -> bool:
    """Return true where the folder's files mention a chat template."""
    named = "chat_template" in _read_if_there(folder / "tokenizer_config.json")
    return named or (folder / "chat_template.jinja").is_file() or any(folder.glob("additional_chat_templates/*.jinja"))


def _read_if_there(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}


def _first_line(error: BaseException) -> str:
    return " ".join((str(error).splitlines() or [type(error).__name__])[0].split())[:200]
