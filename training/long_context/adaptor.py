"""The long-context adaptor: low-rank factors and norms in peft's file format, read, checked, merged and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.errors import CheckpointError
from longdecode.training.files import write_json

SHIPPED = Path(__file__).resolve().parents[2] / "models" / "smollm2-long"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
LENGTHENED = "longdecode.json"
"""Rotary base and context length that go with the adaptor; peft's own configuration has no place for them."""
_PREFIX = "base_model.model."


def read_adaptor(folder: Path) -> tuple[dict[str, Tensor], float, dict[str, Any]]:
    """Read an adaptor.

    Returns:
        Tensors by name, the scale of the low-rank products (``lora_alpha / r``), and the configuration values
        (``rope_theta``, ``max_position_embeddings``) of the lengthened model.

    Raises:
        CheckpointError: a file is missing or cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        lengthened = json.loads((folder / LENGTHENED).read_text(encoding="utf-8"))
        tensors = load_file(folder / WEIGHTS)
        scale = float(config["lora_alpha"]) / int(config["r"])
        changes = {key: lengthened[key] for key in ("rope_theta", "max_position_embeddings")}
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} is not an adaptor that can be read: {type(error).__name__}: {error}"
        ) from error
    return tensors, scale, changes


def merge(state: dict[str, Tensor], tensors: dict[str, Tensor], scale: float, source: str) -> dict[str, Tensor]:
    """Return ``state`` with an adaptor merged into it: ``W + scale B A`` in float32, norms replaced.

    Args:
        state: the model's tensors by name; left as they are.
        tensors: the adaptor's, named as peft names them.
        scale: factor of the low-rank products.
        source: where the adaptor came from, for messages.

    Raises:
        CheckpointError: a tensor fits no weight of the model, or a weight has half an adaptor.
    """
    merged = dict(state)
    factors = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
    while factors:
        name, tensor = factors.popitem()
        if name.endswith((".lora_A.weight", ".lora_B.weight")):
            stem = name.rsplit(".lora_", 1)[0]
            other = factors.pop(f"{stem}.lora_{'B' if name.endswith('A.weight') else 'A'}.weight", None)
            if other is None:
                raise CheckpointError(f"{source}: {name} has no counterpart")
            down, up = (tensor, other) if name.endswith("A.weight") else (other, tensor)
            shape = (up.shape[0], down.shape[1])
            target = f"{stem}.weight"
            _refuse_misfit(state, target, shape, source, inner=(down.shape[0], up.shape[1]))
            product = scale * (up.float() @ down.float())
            merged[target] = (state[target].float() + product).to(state[target].dtype)
        else:
            _refuse_misfit(state, name, tuple(tensor.shape), source)
            merged[name] = tensor.to(state[name].dtype)
    return merged


def low_rank_model(base: Any, rank: int, alpha: int, targets: str | list[str] = "all-linear") -> Any:
    """Return the peft model of a base, with factors on the linear layers named; what is trained is float32."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0, modules_to_save=["norm"])
    model = get_peft_model(base, lora)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.train()
    return model


def trained_tensors(model: Any) -> dict[str, Tensor]:
    """Return what was trained of a peft model, by name, as bfloat16 on the CPU."""
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(model)
    return {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in state.items()}


def write_adaptor(folder: Path, model: Any, rope_theta: float, max_positions: int) -> None:
    """Write a trained peft model's adaptor as bfloat16 with its configuration.

    Args:
        folder: an existing folder.
        model: the peft model.
        rope_theta: rotary base that it was trained with.
        max_positions: context length that the merged model declares.
    """
    from safetensors.torch import save_file

    save_file(trained_tensors(model), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)
    config = model.peft_config["default"].to_dict()
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    plain |= {"inference_mode": True, "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct"}
    write_json(folder / CONFIG, plain)
    write_json(folder / LENGTHENED, {"rope_theta": rope_theta, "max_position_embeddings": max_positions})


def _refuse_misfit(
    state: dict[str, Tensor], name: str, shape: tuple[int, ...], source: str, inner: tuple[int, int] = (0, 0)
) -> None:
    if name not in state:
        raise CheckpointError(f"{source}: the model has no {name}")
    if tuple(state[name].shape) != shape or inner[0] != inner[1]:
        raise CheckpointError(
            f"{source}: the adaptor of {name} makes {list(shape)} over ranks {list(inner)}; "
            f"the model has {list(state[name].shape)}"
        )
