"""A tiny byte-level checkpoint, whole records and small configurations for tests of the evals room."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from longdecode.evals.records import Provenance, Record
from longdecode.miniature.tokenizer import byte_tokenizer

_SHAPE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}


@pytest.fixture(scope="session")
def byte_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers whose tokens are bytes, in transformers' format."""
    folder = tmp_path_factory.mktemp("byte_llama")
    generator = torch.Generator().manual_seed(int(os.environ.get("LONGDECODE_TEST_SEED", "0")))

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * 2 * columns**-0.5

    tensors = {
        "model.embed_tokens.weight": torch.randn(257, 32, generator=generator),
        "model.norm.weight": torch.ones(32),
    }
    for layer in range(2):
        name = f"model.layers.{layer}"
        tensors |= {
            f"{name}.input_layernorm.weight": torch.ones(32),
            f"{name}.post_attention_layernorm.weight": torch.ones(32),
            f"{name}.self_attn.q_proj.weight": matrix(32, 32),
            f"{name}.self_attn.k_proj.weight": matrix(16, 32),
            f"{name}.self_attn.v_proj.weight": matrix(16, 32),
            f"{name}.self_attn.o_proj.weight": matrix(32, 32),
            f"{name}.mlp.gate_proj.weight": matrix(48, 32),
            f"{name}.mlp.up_proj.weight": matrix(48, 32),
            f"{name}.mlp.down_proj.weight": matrix(32, 48),
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_SHAPE))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def config_values(byte_checkpoint: Path) -> dict[str, Any]:
    """A small configuration over the byte checkpoint, as YAML would give it."""
    return {
        "profile": "tiny",
        "device": "cpu",
        "seed": 5,
        "models": {"tiny": {"path": str(byte_checkpoint)}},
        "methods": {"full": {}, "streaming": {}},
        "budgets": [0.5, 64],
        "suites": {
            "mini_recall": {
                "contexts": [256, 320],
                "samples": 5,
                "batch": 2,
                "tasks": ["mini_recall_single", "mini_recall_two_hop"],
            },
            "mini_book": {"contexts": [512], "samples": 2, "batch": 2},
        },
    }


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """Maker of whole records; keywords replace fields."""
    provenance = Provenance(
        revision="r", dirty=False, code_hash="c", model_hash="m", data_hash="d", device="cpu", dtype="float32",
        versions={"torch": "2"}, started_at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    fields: dict[str, Any] = {
        "profile": "p", "model": "tiny", "method": "full", "label": "full", "params": {}, "suite": "mini_longgen",
        "task": "mini_longgen_45", "task_version": 1, "metric": "accuracy", "unit": "fraction",
        "higher_is_better": True, "data_source": "generated", "budget": "full", "budget_tokens": None, "context": 2048,
        "batch": 8, "seed": 0, "sample_index": 0, "status": "ok", "provenance": provenance,
    }  # fmt: skip

    def make(**changes: Any) -> Record:
        score = {"score": 0.5} if changes.get("status", "ok") == "ok" else {}
        return Record(**(fields | score | changes))

    return make


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Slices of real data: ``LONGDECODE_TEST_DATA``, or the folder that stands beside a checkout."""
    folder = Path(os.environ.get("LONGDECODE_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}; LONGDECODE_TEST_DATA may name a folder")
    return folder
