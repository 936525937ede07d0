"""Let a model write on to any length."""

from __future__ import annotations

from pathlib import Path

from longdecode.engine.decoder import Decoder
from longdecode.engine.tokenizer import eos_ids


def without_ends(decoder: Decoder, folder: Path) -> Decoder:
    """Return the decoder with rows of zeros for end tokens in its LM head: min-p never draws a logit of 0.

    A text goes on to its length, by whatever method.
    """
    if ends := sorted(eos_ids(folder)):
        decoder.weights.lm_head = decoder.weights.lm_head.clone()
        decoder.weights.lm_head[ends] = 0
    return decoder
