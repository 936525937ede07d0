"""The miniature as it is trained: a Llama whose parameters carry the names of ``transformers``' checkpoint format.

Inference runs on the project's engine; this module exists because training wants fused, compiled blocks over a fixed
number of tokens a step, whatever the sequence length.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longdecode.kernels.rms_norm.naive import rms_norm


@dataclass(frozen=True, slots=True)
class MiniatureShape:
    """8.33 M parameters; everything the checkpoint's config.json needs to know."""

    vocab_size: int = 264
    hidden_size: int = 256
    intermediate_size: int = 640
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    max_position_embeddings: int = 16_384
    rope_theta: float = 5e5
    rms_norm_eps: float = 1e-5

    def config_json(self) -> dict[str, Any]:
        """The checkpoint's config.json, in ``transformers``' format."""
        fields = asdict(self)
        theta = fields.pop("rope_theta")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **fields,
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
            "rope_theta": theta,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "hidden_act": "silu",
            "bos_token_id": None,
            "eos_token_id": 256,
            "torch_dtype": "bfloat16",
        }


class _Weight(nn.Module):
    """A bare matrix or vector under the name ``weight``."""

    weight: Tensor

    def __init__(self, *shape: int, std: float | None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(*shape) if std is None else torch.randn(*shape) * std)


def _trunk(shape: MiniatureShape) -> nn.ModuleDict:
    """Draw all weights, under their names in a checkpoint."""
    embedding, layers = _Weight(shape.vocab_size, shape.hidden_size, std=0.02), range(shape.num_hidden_layers)
    stack, norm = nn.ModuleList(_layer(shape) for _ in layers), _Weight(shape.hidden_size, std=None)
    return nn.ModuleDict({"embed_tokens": embedding, "layers": stack, "norm": norm})


def _layer(shape: MiniatureShape) -> nn.ModuleDict:
    hidden, ffn = shape.hidden_size, shape.intermediate_size
    q, kv = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    std, out_std = 0.02, 0.02 / (2 * shape.num_hidden_layers) ** 0.5
    attention = {name: _Weight(rows, hidden, std=std) for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv))}
    attention["o_proj"] = _Weight(hidden, q, std=out_std)
    mlp = {name: _Weight(ffn, hidden, std=std) for name in ("gate_proj", "up_proj")}
    mlp["down_proj"] = _Weight(hidden, ffn, std=out_std)
    return nn.ModuleDict(
        {
            "input_layernorm": _Weight(hidden, std=None),
            "self_attn": nn.ModuleDict(attention),
            "post_attention_layernorm": _Weight(hidden, std=None),
            "mlp": nn.ModuleDict(mlp),
        }
    )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def _before_attention(
    x: Tensor, norm: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, cos: Tensor, sin: Tensor, eps: float, head_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    h = rms_norm(x, norm, eps).to(torch.bfloat16)
    q, k, v = ((h @ w.to(torch.bfloat16).T).unflatten(-1, (-1, head_dim)) for w in (wq, wk, wv))
    return _rotate(q, cos, sin), _rotate(k, cos, sin), v


def _after_attention(
    x: Tensor, attended: Tensor, wo: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor, eps: float
) -> Tensor:
    x = x + (attended @ wo.to(torch.bfloat16).T).float()
    h = rms_norm(x, norm, eps).to(torch.bfloat16)
    inner = F.silu(h @ gate.to(torch.bfloat16).T) * (h @ up.to(torch.bfloat16).T)
    return x + (inner @ down.to(torch.bfloat16).T).float()


class Miniature(nn.Module):
    """The trainable model; ``state_dict`` loads into ``LlamaForCausalLM`` as it is.

    Master weights are float32, matrix products bfloat16, the residual stream float32.
    """

    def __init__(self, shape: MiniatureShape, *, compiled: bool):
        super().__init__()
        self.shape = shape
        self.model = _trunk(shape)
        self._before = torch.compile(_before_attention, dynamic=False) if compiled else _before_attention
        self._after = torch.compile(_after_attention, dynamic=False) if compiled else _after_attention

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``[B, T, V]`` (float32) of every position of ``tokens`` ``[B, T]``."""
        shape, (rows, length) = self.shape, tokens.shape
        cos, sin = self._angles(rows, length, tokens.device)
        model: Any = self.model
        x = F.embedding(tokens.reshape(-1), model.embed_tokens.weight)
        for layer in model.layers:
            a, m = layer.self_attn, layer.mlp
            q, k, v = self._before(
                x, layer.input_layernorm.weight, a.q_proj.weight, a.k_proj.weight, a.v_proj.weight, cos, sin,
                shape.rms_norm_eps, shape.head_dim,
            )  # fmt: skip
            q, k, v = (t.unflatten(0, (rows, length)).transpose(1, 2) for t in (q, k, v))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = self._after(
                x, attended.transpose(1, 2).reshape(rows * length, -1), a.o_proj.weight,
                layer.post_attention_layernorm.weight, m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight,
                shape.rms_norm_eps,
            )  # fmt: skip
        x = rms_norm(x, model.norm.weight, shape.rms_norm_eps).to(torch.bfloat16)
        logits = x @ model.embed_tokens.weight.to(torch.bfloat16).T
        return logits.float().unflatten(0, (rows, length))

    def _angles(self, rows: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        half = self.shape.head_dim // 2
        inverse = self.shape.rope_theta ** -(torch.arange(half, device=device, dtype=torch.float32) / half)
        angle = torch.outer(torch.arange(length, device=device, dtype=torch.float32), inverse)
        angle = angle.repeat(rows, 1)[:, None, :]
        return angle.cos(), angle.sin()
