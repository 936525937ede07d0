"""Checkpoint folders and config.json: from a local path or a hub id to a ``ModelConfig``."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from longdecode.engine.config_keys import SUPPORTED_FAMILIES, refuse_unimplemented, shown
from longdecode.engine.errors import CheckpointError, UnsupportedFamilyError
from longdecode.engine.model_config import Experts, ModelConfig

IMPORTANCE_FILE = "importance.safetensors"
"""Importance heads beside a checkpoint's weights; see ``methods.importance_heads``."""
PROMPT_FILES = (
    "config.json", "generation_config.json", "tokenizer*", "tekken.json", "special_tokens_map.json",
    "added_tokens.json", "vocab*", "merges*", "*.model", "*.tiktoken", "*.jinja", "chat_template*",
    "*chat_templates/*",
)  # fmt: skip
"""Files of a checkpoint, beside its weights, that can change a prompt or where an answer ends."""
BUILT_MODELS = (
    "smollm2", "smollm2-long", "qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-yarn", "qwen2.5-coder-1.5b",
    "qwen2.5-coder-1.5b-yarn",
)  # fmt: skip
"""Names of the models that ``models.build`` makes; ``models/sources.py`` says of what."""
_HUB_FILES = ["*.safetensors", "*.json", *PROMPT_FILES]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_ROPE_TYPES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ("original_max_position_embeddings",)),
    "yarn": (
        ("factor",),
        (
            "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
            "mscale_all_dim", "truncate",
        ),
    ),
    "longrope": (("short_factor", "long_factor", "original_max_position_embeddings"), ("factor", "attention_factor")),
}  # fmt: skip
"""Keys that each kind of rotary embedding needs, and those that it may have."""
_ABSENT_KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32, "qwen3_moe": 4}
"""Transformers' defaults where the key is absent; Llama, and null in any family, have as many as query heads."""
_MOST = {
    "num_hidden_layers": 1024, "num_attention_heads": 1024, "num_key_value_heads": 1024, "head_dim": 4096,
    "hidden_size": 1 << 20, "intermediate_size": 1 << 22, "vocab_size": 1 << 24, "max_position_embeddings": 1 << 28,
    "num_experts": 1 << 16, "num_local_experts": 1 << 16, "num_experts_per_tok": 1 << 16,
    "moe_intermediate_size": 1 << 22, "decoder_sparse_step": 1024,
}  # fmt: skip
"""Limits that no model comes near: a larger number is a damaged file."""


def cache_root() -> Path:
    """Return the folder for built models: ``LONGDECODE_CACHE``, else that in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(os.environ.get("LONGDECODE_CACHE") or caches / "longdecode").expanduser().absolute()


def built_model(name: str) -> Path | None:
    """Return where a built model lies, present or not, or ``None`` where ``name`` is no built model."""
    return cache_root() / name if name in BUILT_MODELS else None


def prompt_files(checkpoint: Path) -> list[Path]:
    """Return the files of a checkpoint folder that can change a prompt or an answer, other than its weights."""
    found = {path for pattern in PROMPT_FILES for path in checkpoint.glob(pattern)}
    return sorted(path for path in found if path.is_file())


def resolve_checkpoint(path_or_id: str | Path, revision: str | None = None) -> Path:
    """Return the local folder of a checkpoint, downloading a hub id's config and safetensors when needed.

    Args:
        path_or_id: a local folder, a built model's name (``smollm2-long``), or a hub id such as ``Qwen/Qwen3-8B``.
        revision: branch, tag or commit of a hub id; local folders have none.

    Raises:
        CheckpointError: neither a folder nor a hub id that can be fetched.
        UnsupportedFamilyError: the hub id's config names an architecture the engine lacks; no weights are fetched.
    """
    built = built_model(str(path_or_id))
    folder = built or Path(path_or_id).expanduser()
    if folder.is_dir():
        return folder
    _refuse_odd_folder(folder, str(path_or_id))
    if built is not None:
        raise CheckpointError(f"{path_or_id} is not built yet; `snakemake {built / 'model.safetensors'}` builds it")
    if not _HUB_ID.fullmatch(str(path_or_id)):
        raise CheckpointError(f"no checkpoint folder at {folder}, and the name is not a hub id either")
    from huggingface_hub import hf_hub_download, snapshot_download

    name = str(path_or_id)
    try:
        config_file = Path(hf_hub_download(name, "config.json", revision=revision))
        read_config(config_file.parent)
        return Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES))
    except CheckpointError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        ours = [built for built in BUILT_MODELS if name.lower().rpartition("/")[2].startswith(built)]
        instead = f"; {ours[0]} is built here without the hub, in 4 bits" if ours else ""
        raise CheckpointError(
            f"{name!r} is not a local folder and could not be fetched from the hub: {type(error).__name__}: {reason}"
            + instead
        ) from error


def _refuse_odd_folder(folder: Path, given: str) -> None:
    """Refuse a path that is there and no folder, and one whose first part is a folder here: neither is a hub id."""
    if folder.is_symlink() and not folder.exists():
        raise CheckpointError(f"{given} is a link that leads nowhere; a checkpoint folder is needed")
    if folder.exists():
        raise CheckpointError(f"{given} is a file; the folder of a checkpoint is needed")
    parts = Path(given).parts
    if len(parts) > 1 and Path(parts[0]).expanduser().is_dir():
        raise CheckpointError(f"no checkpoint folder at {given} (seen from {Path.cwd()})")


def read_config(folder: Path) -> ModelConfig:
    """Read ``config.json`` of a checkpoint folder.

    Raises:
        CheckpointError: the file is missing, is not JSON or lacks a key.
        UnsupportedFamilyError: the architecture is not one the engine implements.
    """
    file = folder / "config.json"
    if not file.exists() and not file.is_symlink():
        raise CheckpointError(f"{folder} has no config.json")
    importance = folder / IMPORTANCE_FILE
    found = parse_config(read_json(file), str(file))
    return replace(found, importance_file=str(importance) if importance.is_file() else "")


def read_json(file: Path) -> dict[str, Any]:
    """Read a file of a checkpoint that holds one JSON object.

    Raises:
        CheckpointError: it is missing, unreadable, not JSON, or something else than an object.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not valid JSON: {' '.join(str(error).split())[:200]}") from error
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds a {type(content).__name__}, expected a JSON object")
    return content


def parse_config(raw: Mapping[str, Any], source: str) -> ModelConfig:
    """Turn the content of a config.json, in transformers' present or older format, into a ``ModelConfig``.

    Raises:
        CheckpointError: a needed key is missing or two keys contradict each other.
        UnsupportedFamilyError: the architecture is not one the engine implements.
    """
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in SUPPORTED_FAMILIES:
        raise UnsupportedFamilyError(
            f"{source}: model family {family!r} is not supported; supported: {', '.join(SUPPORTED_FAMILIES)}"
        )
    refuse_unimplemented(raw, family, source)
    heads = _positive_int(raw, "num_attention_heads", source)
    hidden = _positive_int(raw, "hidden_size", source)
    absent = heads if "num_key_value_heads" in raw else _ABSENT_KV_HEADS.get(family, heads)
    kv_heads = _positive_int(raw, "num_key_value_heads", source, absent)
    # transformers' own defaults for a config that leaves head_dim out.
    head_dim = _positive_int(raw, "head_dim", source, 128 if family == "qwen3" else hidden // heads)
    if heads % kv_heads:
        raise CheckpointError(f"{source}: {heads} query heads are not a multiple of {kv_heads} KV heads")
    if head_dim % 2:
        raise CheckpointError(f"{source}: head_dim {head_dim} is odd, rotary embeddings need pairs")
    trained = _positive_int(raw, "max_position_embeddings", source)
    rope = _rope_parameters(raw, trained, head_dim, source)
    attention_bias = bool(raw.get("attention_bias"))
    layers = _positive_int(raw, "num_hidden_layers", source)
    is_scaled = family == "minicpm"
    scales = _scales(raw, hidden, layers, source) if is_scaled else (1.0, 1.0, 1.0)
    is_tied = bool(raw.get("tie_word_embeddings", is_scaled))
    return ModelConfig(
        family=family,
        vocab_size=_positive_int(raw, "vocab_size", source),
        hidden_size=hidden,
        intermediate_size=_positive_int(raw, "intermediate_size", source),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=_max_positions(trained, rope, source),
        rms_norm_eps=_positive(raw, "rms_norm_eps", source, 1e-5 if family == "phi3" else 1e-6),
        tie_embeddings=is_tied and not is_scaled,
        qkv_bias=family == "qwen2" or attention_bias,
        o_bias=family != "qwen2" and attention_bias,
        qk_norm=family in ("qwen3", "qwen3_moe"),
        rope=rope,
        embedding_scale=scales[0],
        residual_scale=scales[1],
        logit_scale=scales[2],
        copies_embedding=is_tied and is_scaled,
        experts=_experts(raw, layers, source) if family == "qwen3_moe" else None,
    )


def _experts(raw: Mapping[str, Any], layers: int, source: str) -> Experts | None:
    """Qwen3's experts, with transformers' values where keys are absent; ``None`` where every layer is dense.

    The released files say ``num_experts``, those that transformers 5 writes ``num_local_experts``.
    """
    count, local = raw.get("num_experts"), raw.get("num_local_experts")
    if None not in (count, local) and count != local:
        raise CheckpointError(
            f"{source}: num_experts is {shown(count)} and num_local_experts {shown(local)}; which one holds?"
        )
    key = "num_experts" if local is None else "num_local_experts"
    if not isinstance(dense := raw.get("mlp_only_layers") or [], list) or any(type(at) is not int for at in dense):
        raise CheckpointError(f"{source}: mlp_only_layers is {shown(dense)}, expected a list of layers")
    if not isinstance(normalise := raw.get("norm_topk_prob"), bool | None):
        raise CheckpointError(f"{source}: norm_topk_prob is {shown(normalise)}, expected true or false")
    step = _positive_int(raw, "decoder_sparse_step", source, 1)
    sparse = tuple(layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)
    if not sparse or raw.get(key) == 0:
        return None
    count = _positive_int(raw, key, source, 128)
    if (chosen := _positive_int(raw, "num_experts_per_tok", source, 8)) > count:
        raise CheckpointError(f"{source}: num_experts_per_tok is {chosen}, {key} is {count}")
    return Experts(count, chosen, _positive_int(raw, "moe_intermediate_size", source, 768), bool(normalise), sparse)


def _scales(raw: Mapping[str, Any], hidden: int, layers: int, source: str) -> tuple[float, float, float]:
    """MiniCPM's factors on the embedding, on what each half of a layer adds to the residual, and on the logits.

    Source: MiniCPM's modeling_minicpm.py; with its names, Granite's arithmetic in transformers.
    """
    embedding, depth = _positive(raw, "scale_emb", source), _positive(raw, "scale_depth", source)
    return embedding, depth / math.sqrt(layers), _positive(raw, "dim_model_base", source) / hidden


def _rope_parameters(raw: Mapping[str, Any], trained: int, head_dim: int, source: str) -> dict[str, Any]:
    """Normalize both notations: ``rope_parameters`` (one dict) and ``rope_theta`` beside ``rope_scaling``."""
    rope = _one_rope(raw, source)
    rope_type = rope.pop("type", "default")
    if not isinstance(rope_type, str) or rope_type not in _ROPE_TYPES:
        raise UnsupportedFamilyError(
            f"{source}: rotary embedding {rope_type!r} is not supported; supported: {', '.join(_ROPE_TYPES)}"
        )
    needed, optional = _ROPE_TYPES[rope_type]
    if rope.pop("partial_rotary_factor", 1) != 1:
        raise UnsupportedFamilyError(f"{source}: partial rotary embeddings are not supported; supported: whole heads")
    if rope_type == "default":
        rope.pop("original_max_position_embeddings", None)
    if foreign := sorted(rope.keys() - {"rope_theta", *needed, *optional}):
        raise UnsupportedFamilyError(
            f"{source}: rotary embedding {rope_type!r} with {foreign[0]} = {shown(rope[foreign[0]])}; known: "
            + ", ".join(("rope_theta", *needed, *optional))
        )
    rope["rope_type"] = rope_type
    rope.setdefault("rope_theta", 10_000.0)
    if "original_max_position_embeddings" in optional:
        rope.setdefault("original_max_position_embeddings", trained)
    if missing := [key for key in needed if key not in rope]:
        raise CheckpointError(f"{source}: rotary embedding {rope_type!r} lacks {', '.join(missing)}")
    for key in rope.keys() - {"rope_type", "truncate", "short_factor", "long_factor"}:
        _positive(rope, key, f"{source}: rotary embedding")
    for key in ("short_factor", "long_factor") if rope_type == "longrope" else ():
        if not isinstance(rope[key], list) or len(rope[key]) != head_dim // 2:
            raise CheckpointError(f"{source}: {key} is {shown(rope[key])}, expected a list of {head_dim // 2} numbers")
        for place in range(head_dim // 2):
            _positive({f"{key}[{place}]": rope[key][place]}, f"{key}[{place}]", f"{source}: rotary embedding")
    if not isinstance(rope.get("truncate", True), bool):
        raise CheckpointError(f"{source}: rotary embedding: truncate is {shown(rope['truncate'])}, not true or false")
    return rope


def _one_rope(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Merge the places that may name a rotary parameter, under the variant's older name ``type``; null is absent.

    Raises:
        CheckpointError: two places contradict each other.
        UnsupportedFamilyError: layer types have parameters of their own.
    """
    places: list[tuple[str, Mapping[str, Any]]] = []
    for place in ("rope_scaling", "rope_parameters"):
        if not isinstance(given := raw.get(place) or {}, Mapping):
            raise CheckpointError(f"{source}: {place} is {shown(given)}, expected an object")
        if nested := [key for key, value in given.items() if isinstance(value, Mapping) or key.endswith("_attention")]:
            raise UnsupportedFamilyError(
                f"{source}: {place} by layer type ({', '.join(map(repr, nested))}); supported: one for all layers"
            )
        places.append((place, given))
    outside = ("rope_theta", "original_max_position_embeddings")
    places.append(("config.json", {key: raw[key] for key in outside if key in raw}))
    rope: dict[str, Any] = {}
    for place, given in places:
        for key, value in given.items():
            name = "type" if key == "rope_type" else key
            if value is not None and rope.setdefault(name, value) != value:
                raise CheckpointError(
                    f"{source}: {key} is {shown(value)} in {place} and {shown(rope[name])} elsewhere; which one holds?"
                )
    return rope


def _max_positions(trained: int, rope: Mapping[str, Any], source: str) -> int:
    """The longest context; published YaRN recipes leave ``max_position_embeddings`` at the length before scaling."""
    if rope["rope_type"] != "yarn":
        return trained
    longest, most = rope["factor"] * rope["original_max_position_embeddings"], _MOST["max_position_embeddings"]
    if longest > most:
        raise CheckpointError(f"{source}: rotary embedding: factor {rope['factor']:g} makes over {most:,} positions")
    return max(trained, int(longest))


def _positive_int(raw: Mapping[str, Any], key: str, source: str, default: int | None = None) -> int:
    value = default if raw.get(key) is None else raw[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST[key]:
        raise CheckpointError(f"{source}: {key} is {shown(value)}, expected a positive integer up to {_MOST[key]:,}")
    return value


def _positive(raw: Mapping[str, Any], key: str, source: str, default: float | None = None) -> float:
    value = default if raw.get(key) is None else raw[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise CheckpointError(f"{source}: {key} is {shown(value)}, expected a positive number")
    return float(value)
