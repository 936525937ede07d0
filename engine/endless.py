"""Let a model write on to any length."""

from __future__ import annotations

from pathlib import Path

from longdecode.engine.decoder import Decoder
from longdecode.engine.tokenizer import eos_ids, load_tokenizer


def without_ends(decoder: Decoder, folder: Path) -> Decoder:
    """Return the decoder with rows of zeros in its LM head for all that is no text: min-p never draws a logit of 0.

    These are the end tokens, the tokenizer's added tokens (turns of a chat, files, tools) and rows beyond its
    vocabulary. A text goes on to its length, by whatever method, and stays a text.
    """
    head, barred = decoder.weights.lm_head, set(eos_ids(folder))
    if (folder / "tokenizer.json").exists():
        tokenizer = load_tokenizer(folder)
        added = getattr(tokenizer.library, "added_tokens_decoder", {}).keys()  # those not marked special too, as Qwen's
        barred |= set(range(len(head))) - (set(tokenizer.known_ids.values()) - added)
    if barred:
        decoder.weights.lm_head = head.clone()
        decoder.weights.lm_head[sorted(barred)] = 0
    return decoder
