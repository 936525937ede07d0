"""Decoders of tiny checkpoints, and random rows prefilled up to where targets start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from longdecode.engine.decoder import Decoder
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.weights import load_decoder
from longdecode.training.miniature.tokenizer import byte_tokenizer


@dataclass
class Rows:
    """Token rows ``[B, S]`` of a decoder, the first ``start`` of each prefilled."""

    decoder: Decoder
    tokens: Tensor
    start: int
    cache: KVCache

    @property
    def targets(self) -> Tensor:
        return self.tokens[:, self.start :]


@pytest.fixture
def rows(tiny_checkpoint: Callable[..., Path], seed: int) -> Callable[..., Rows]:
    """Maker of rows on a tiny checkpoint by its name."""

    def make(name: str, batch: int = 2, total: int = 29, start: int = 21) -> Rows:
        decoder = load_decoder(tiny_checkpoint(name), device="cpu", dtype=torch.float32)
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, decoder.config.vocab_size, (batch, total), generator=generator)
        cache = decoder.new_cache(batch, start)
        decoder.prefill(list(tokens[:, :start]), cache, 64)
        return Rows(decoder, tokens, start, cache)

    return make


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of three layers and two KV heads whose tokens are bytes, in transformers' format."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("byte_model")
    config = LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(5)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, (1.0 if "embed" in name else 2.0 * parameter.shape[1] ** -0.5))
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
