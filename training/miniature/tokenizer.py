"""The byte tokenizer as a ``tokenizers`` file: id = byte value, 256 = end of text, no merges."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 256


def byte_tokenizer() -> Tokenizer:
    """A byte-level BPE with the 256 bytes as its whole vocabulary."""
    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    return tokenizer


def _byte_symbols() -> list[str]:
    """The printable stand-in that byte-level tokenizers use for each byte, in byte order."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in kept)
    symbols = {byte: chr(byte) for byte in kept} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [symbols[byte] for byte in range(256)]
