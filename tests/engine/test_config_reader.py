"""config.json in both of transformers' formats; what is refused, and in which words."""

from __future__ import annotations

import json
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from longdecode.engine.config_reader import parse_config, resolve_checkpoint
from longdecode.engine.errors import CheckpointError, UnsupportedFamilyError
from published_configs import MISTRAL, REFUSED, RUNNABLE, as_transformers

LLAMA_31 = RUNNABLE["Llama-3.1-8B-Instruct"]
MIXTURE = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2}
LONGROPE = RUNNABLE["MiniCPM4-8B"]["rope_scaling"]

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
    later = {"rope_scaling", "rope_theta", "num_key_value_heads", "attention_bias", "mlp_bias"}
    config = parse_config({key: LLAMA_31[key] for key in LLAMA_31.keys() - later}, "c")
    assert config.num_kv_heads == 32 and config.rope == {"rope_type": "default", "rope_theta": 10_000.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, "'mamba'.*llama, minicpm, mistral, phi3, qwen2, qwen3, qwen3_moe"),
        ({"mlp_bias": True}, "MLP"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "remote code"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'.*default, llama3, yarn, longrope"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping = 30.0"),
        ({"final_logit_softcapping": 0.0}, "final_logit_softcapping = 0.0"),
        ({"logit_scale": 1}, "logit_scale = 1"),
        ({"pretraining_tp": 2}, "pretraining_tp = 2"),
        ({"is_causal": False}, "is_causal = False"),
        ({"sliding_window": 512}, "sliding_window = 512"),
        ({"rope_scaling": {"full_attention": {"rope_theta": 1e6}}}, "rope_scaling by layer type.*'full_attention'"),
        ({"rope_scaling": {"full_attention": None}}, "rope_scaling by layer type.*'full_attention'"),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [16, 24, 24]}}, "mrope_section"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "long_factor": [1.0]}}, "long_factor"),
        ({"rope_scaling": {"partial_rotary_factor": 0.25}}, "partial"),
    ],
)
def test_what_the_engine_lacks_or_may_compute_otherwise_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedFamilyError, match=words):
        parse_config(changed(**changes), "config.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "minicpm"}, "scale_emb is None, expected a positive number"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor, high_freq_factor"),
        ({"rope_scaling": LONGROPE | {"long_factor": [1.0] * 63}}, "long_factor is .*expected a list of 64 numbers"),
        ({"rope_scaling": LONGROPE | {"short_factor": [0] * 64}}, r"short_factor\[0\] is 0, expected a positive"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false', expected true or false"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"layer_types": ["full_attention"]}, "1 entries, num_hidden_layers is 32"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_theta is 500000.0 in config.json and 10000.0 elsewhere"),
        ({"original_max_position_embeddings": 4096}, "original_max_position_embeddings is 4096"),
        ({"rope_scaling": LLAMA_31["rope_scaling"] | {"type": "yarn"}}, "type is 'yarn'"),
        (MIXTURE | {"num_experts_per_tok": 5}, "num_experts_per_tok is 5, num_experts is 4"),
        (MIXTURE | {"num_local_experts": 8}, "num_experts is 4 and num_local_experts 8; which one holds"),
        (MIXTURE | {"mlp_only_layers": "all"}, "mlp_only_layers is 'all', expected a list of layers"),
        (MIXTURE | {"norm_topk_prob": 1}, "norm_topk_prob is 1, expected true or false"),
        (MIXTURE | {"moe_intermediate_size": -1}, "moe_intermediate_size is -1, expected a positive integer"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": "no"}}, "truncate is 'no'"),
        ({"rope_scaling": {"type": "yarn", "factor": 1e308}}, r"factor 1e\+308 makes over"),
    ],
)
def test_contradictions_and_what_cannot_be_told_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        parse_config(changed(**changes), "config.json")


def test_a_name_that_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint folder"):
        resolve_checkpoint(tmp_path / "absent")


def test_a_hub_id_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> str:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(CheckpointError, match=r"'someone/model'.*no network"):
        resolve_checkpoint("someone/model")


def test_a_hub_id_of_an_unsupported_family_moves_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(changed(model_type="rwkv")))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(tmp_path / "config.json"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("weights were fetched"))
    with pytest.raises(UnsupportedFamilyError, match="rwkv"):
        resolve_checkpoint("someone/model")


def test_a_hub_id_asks_for_safetensors(tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("name", RUNNABLE)
def test_published_checkpoints_read_as_transformers_reads_them(name: str) -> None:
    from transformers import AutoConfig

    raw = RUNNABLE[name]
    config, theirs = parse_config(raw, "config.json"), AutoConfig.for_model(**as_transformers(raw))
    assert (config.family, config.num_kv_heads) == (raw["model_type"], theirs.num_key_value_heads)
    assert config.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    rope = {k: v for k, v in theirs.rope_parameters.items() if k not in ("type", "partial_rotary_factor")}
    assert config.rope == rope
    assert (config.tie_embeddings, config.rms_norm_eps) == (theirs.tie_word_embeddings, theirs.rms_norm_eps)
    assert getattr(theirs, "sliding_window", None) is None


def test_a_mixture_counts_what_is_held_and_what_a_token_reads() -> None:
    raw = RUNNABLE["Qwen3-30B-A3B"]
    config = parse_config(raw, "c")
    assert (config.parameters(), config.parameters(read=True)) == (30_531_911_680, 3_352_821_760)
    assert parse_config(raw | {"num_experts": 0}, "c").experts is None


@pytest.mark.parametrize("name", REFUSED)
def test_published_checkpoints_that_are_refused(name: str) -> None:
    raw, words = REFUSED[name]
    with pytest.raises(UnsupportedFamilyError, match=words):
        parse_config(raw, "config.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"attn_logit_softcapping": None}, {"some_feature": False}, {"other_feature": {}}, {"third": []},
        {"num_nextn_predict_layers": 0}, {"hidden_dropout_prob": 0.1}, {"hidden_act": "swish"},
        {"layer_types": ["full_attention"] * 32}, {"use_sliding_window": False, "sliding_window": 4096},
    ],
)  # fmt: skip
def test_a_feature_that_is_off_changes_nothing(changes: dict[str, Any]) -> None:
    assert parse_config(changed(**changes), "c") == parse_config(LLAMA_31, "c")


def test_a_window_that_mistral_does_not_mention_is_transformers_own() -> None:
    absent = {key: value for key, value in MISTRAL.items() if key != "sliding_window"}
    with pytest.raises(UnsupportedFamilyError, match=r"sliding_window = 4096.*where the key is absent"):
        parse_config(absent, "c")
    assert parse_config(MISTRAL, "c").head_dim == 128
    assert parse_config({k: v for k, v in MISTRAL.items() if k != "num_key_value_heads"}, "c").num_kv_heads == 8
    assert parse_config(MISTRAL | {"num_key_value_heads": None}, "c").num_kv_heads == 32
