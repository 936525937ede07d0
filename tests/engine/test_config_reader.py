"""config.json in both of transformers' formats; what is refused, and in which words."""

from __future__ import annotations

import json
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from longdecode.engine.config_reader import parse_config, read_config, resolve_checkpoint
from longdecode.engine.errors import CheckpointError, UnsupportedFamilyError

# The published config.json of Llama-3.1-8B, in the format of its day.
LLAMA_31: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}


REPOSITORY = (
    "config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json",
    "pytorch_model.bin", "consolidated.00.pth", "modeling_custom.py", "model.gguf",
)  # fmt: skip


def changed(**changes: Any) -> dict[str, Any]:
    return LLAMA_31 | changes


def test_older_and_present_rope_notation_read_alike() -> None:
    present = changed(rope_parameters={**LLAMA_31["rope_scaling"], "rope_theta": 500000.0})
    del present["rope_scaling"], present["rope_theta"]
    older = parse_config(LLAMA_31, "config.json")
    assert older == parse_config(present, "config.json")
    assert older.rope == {**LLAMA_31["rope_scaling"], "rope_theta": 500000.0}
    assert (older.num_kv_heads, older.head_dim, older.max_positions, older.qkv_bias) == (8, 128, 131072, False)


def test_the_oldest_notation_calls_the_variant_type() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = parse_config(changed(model_type="qwen2", rope_scaling=yarn, max_position_embeddings=32768), "c")
    assert config.rope["rope_type"] == "yarn" and "type" not in config.rope
    assert config.max_positions == 131072, "YaRN multiplies the trained context"
    assert config.qkv_bias and not config.o_bias


def test_defaults_of_an_early_llama() -> None:
    early = {
        key: value
        for key, value in LLAMA_31.items()
        if key not in ("rope_scaling", "rope_theta", "num_key_value_heads", "attention_bias", "mlp_bias")
    }
    config = parse_config(early, "c")
    assert config.num_kv_heads == 32
    assert config.rope == {"rope_type": "default", "rope_theta": 10_000.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, "'mamba'.*llama, qwen2, qwen3"),
        ({"model_type": "qwen3_moe"}, "'qwen3_moe'"),
        ({"model_type": None}, "None"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"num_local_experts": 8}, "experts"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"mlp_bias": True}, "MLP"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "remote code"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope'.*default, llama3, yarn"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"partial_rotary_factor": 0.5}, "partial"),
    ],
)
def test_what_the_engine_lacks_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedFamilyError, match=words):
        parse_config(changed(**changes), "config.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_key_value_heads": 5}, "not a multiple of 5"),
        ({"head_dim": 33}, "odd"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor, high_freq_factor"),
    ],
)
def test_contradictions_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        parse_config(changed(**changes), "config.json")


def test_a_folder_without_a_readable_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read_config(tmp_path)


def test_a_name_that_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint folder"):
        resolve_checkpoint(tmp_path / "absent")


def test_a_hub_id_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*_: Any, **__: Any) -> str:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(CheckpointError, match=r"'someone/model'.*no network"):
        resolve_checkpoint("someone/model")


def test_a_hub_id_of_an_unsupported_family_moves_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    (tmp_path / "config.json").write_text(json.dumps(changed(model_type="rwkv")))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(tmp_path / "config.json"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("weights were fetched"))
    with pytest.raises(UnsupportedFamilyError, match="rwkv"):
        resolve_checkpoint("someone/model")


def test_a_hub_id_asks_for_safetensors_only(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    folder, asked = tiny_checkpoint("llama2"), {}

    def snapshot(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(folder / "config.json"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve_checkpoint("someone/model", "abc") == folder
    assert asked["name"] == "someone/model" and asked["revision"] == "abc"
    patterns = asked["allow_patterns"]
    wanted = {name: any(fnmatch(name, pattern) for pattern in patterns) for name in REPOSITORY}
    assert wanted == {name: not name.endswith((".bin", ".pth", ".py", ".gguf")) for name in REPOSITORY}
