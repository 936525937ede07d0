"""A tiny random Llama over bytes, and a short recipe, so that the whole path runs on a CPU in seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from longdecode.training.long_context.recipe import Recipe, Stage


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers with tied embeddings and the byte tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from longdecode.training.miniature.tokenizer import byte_tokenizer

    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=260, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=512, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4}, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def short_recipe() -> Recipe:
    """Six steps in two stages, the second with gradient checkpointing."""
    return Recipe(
        seed=0, rank=2, alpha=4, rope_theta=1e5, max_positions=2048, warmup_steps=2, final_share=0.2, gradient_clip=1.0,
        loss_slice=100, checkpointing_from=500, text_weight=0.3, answer_weight=4.0,
        stages=(Stage(400, 2, 3, 1e-2, 1.0), Stage(600, 1, 3, 1e-2, 0.5)),
    )  # fmt: skip
