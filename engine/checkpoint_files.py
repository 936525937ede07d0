"""List the files of a checkpoint that its copy from the hub, its hash and a job's inputs must cover."""

from __future__ import annotations

from pathlib import Path

PROMPT_FILES = (
    "config.json", "generation_config.json", "tokenizer*", "tekken.json", "special_tokens_map.json",
    "added_tokens.json", "vocab*", "merges*", "*.model", "*.tiktoken", "*.jinja", "chat_template*",
    "*chat_templates/*",
)  # fmt: skip
"""Files of a checkpoint, beside its weights, that can change a prompt or where an answer ends."""


def prompt_files(checkpoint: Path) -> list[Path]:
    """Return the files of a checkpoint folder that can change a prompt or an answer, other than its weights."""
    found = {path for pattern in PROMPT_FILES for path in checkpoint.glob(pattern)}
    return sorted(path for path in found if path.is_file())
