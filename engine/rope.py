"""Rotary position tables: inverse frequencies of each RoPE variant, cosines and sines up to the model's limit."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.engine.model_config import ModelConfig


def inverse_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Frequencies ``[D/2]`` float32 in radians per position, and the factor on cosines and sines.

    The default variant is computed here, so that models which need no other do not pay for importing transformers.

    LongRoPE has factors for short and for long texts. One set serves every length, since a cached key keeps its
    rotation: the long one where ``max_position_embeddings`` exceeds ``original_max_position_embeddings``, as in vLLM.
    (Transformers takes the short one for as long as a sequence is within the original length.)

    Source: Su et al. 2021 (RoFormer), section 3.2; the others: transformers' ``ROPE_INIT_FUNCTIONS``.
    """
    rope_type = config.rope.get("rope_type", "default")
    if rope_type == "default":
        theta = float(config.rope.get("rope_theta", 10_000.0))
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        return 1.0 / theta**exponents, 1.0
    from transformers import PreTrainedConfig  # a model's own class would take four seconds more to import
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = dict(config.rope)
    if rope_type == "longrope":  # transformers' own default, but without its warning
        rope.setdefault("factor", max(1.0, config.max_positions / rope["original_max_position_embeddings"]))
    reference = PreTrainedConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_positions,
        rope_parameters=rope,
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope_type](reference, torch.device("cpu"), config.max_positions)
    return frequencies.to(torch.float32), float(factor)


SPARE_POSITIONS = 256
"""Positions past the model's limit, for drafts that a row near it makes and never keeps."""


class RopeTable:
    """Cosines and sines of every position, float32 whatever the model's dtype: ``[max_positions + spare, D/2]``."""

    def __init__(self, config: ModelConfig, device: torch.device):
        frequencies, factor = inverse_frequencies(config)
        positions = torch.arange(config.max_positions + SPARE_POSITIONS, dtype=torch.float32, device=device)
        angles = positions[:, None] * frequencies.to(device)
        self.cos = angles.cos().mul_(factor)
        self.sin = angles.sin().mul_(factor)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Look up positions ``[B, T]`` int64: cosines and sines ``[B, T, D]``, both halves equal."""
        return _twice(self.cos[positions]), _twice(self.sin[positions])


def _twice(half: Tensor) -> Tensor:
    return torch.cat((half, half), dim=-1)
