"""The student, spelled out query by query in float64, as an independent reference."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from longdecode.engine.decoder import Decoder
from longdecode.training.roles.token_sets import SparseBranch


def student_reference(decoder: Decoder, row: Tensor, start: int, gates: Tensor, branch: SparseBranch) -> Tensor:
    """Final hidden states ``[T, H]`` float64 of one row's targets, given gates ``[L, Hkv]``.

    Every query of the context attends fully; every target query mixes.
    """
    config, weights = decoder.config, decoder.weights
    total, group, dim = len(row), config.group_size, config.head_dim
    size = min(total, max(branch.sink + branch.recent, int(branch.ratio * total)))
    x = weights.embedding.double()[row]
    inherited: dict[tuple[int, int], set[int]] = {}  # (query head, position) -> tokens
    for index, layer in enumerate(weights.layers):
        fused = _norm(x, layer.input_norm, config.rms_norm_eps) @ layer.qkv.double().T
        if layer.qkv_bias is not None:
            fused = fused + layer.qkv_bias.double()
        heads = fused.view(total, -1, dim)
        q = heads[:, : config.num_heads]
        k = heads[:, config.num_heads : config.num_heads + config.num_kv_heads]
        v = heads[:, config.num_heads + config.num_kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = _norm(q, layer.q_norm, config.rms_norm_eps), _norm(k, layer.k_norm, config.rms_norm_eps)
        q, k = _rotated(q, decoder), _rotated(k, decoder)
        out = torch.zeros(total, config.num_heads, dim, dtype=torch.float64)
        handed: dict[tuple[int, int], set[int]] = {}
        for t in range(total):
            for head in range(config.num_heads):
                kv = head // group
                logits = k[:, kv] @ q[t, head]
                out[t, head] = _read(logits, v[:, kv], range(t + 1), dim)
                if t < start:
                    continue
                z = float(gates[index, kv])
                if branch.branch == "streaming":
                    sparse = {i for i in range(t + 1) if i < branch.sink or i > t - branch.recent}
                else:
                    if branch.selection == "code":
                        own = _top(logits, range(total), size, branch.sink, total - branch.recent)
                        own = {i for i in own if i <= t}
                    else:
                        mean = k[:, kv] @ q[t, kv * group : (kv + 1) * group].mean(dim=0)
                        own = _top(mean, range(t + 1), size, branch.sink, t - branch.recent + 1)
                    sparse = inherited.get((head, t))
                    keeps = sparse is not None and branch.inherit == "chain" and z <= 0.5
                    handed[head, t] = sparse if keeps else own
                if sparse is not None:
                    out[t, head] = z * out[t, head] + (1 - z) * _read(logits, v[:, kv], sorted(sparse), dim)
        inherited, x = handed, x + out.flatten(1) @ layer.o.double().T
        if layer.o_bias is not None:
            x = x + layer.o_bias.double()
        gate, up = (_norm(x, layer.mlp_norm, config.rms_norm_eps) @ layer.gate_up.double().T).chunk(2, dim=-1)
        x = x + (torch.nn.functional.silu(gate) * up) @ layer.down.double().T
    return _norm(x, weights.final_norm, config.rms_norm_eps)[start:]


def _read(logits: Tensor, values: Tensor, tokens: range | list[int], dim: int) -> Tensor:
    chosen = torch.tensor(list(tokens))
    return (logits[chosen] / math.sqrt(dim)).softmax(dim=0) @ values[chosen]


def _top(scores: Tensor, candidates: range, size: int, sink: int, recent_from: int) -> set[int]:
    """Sink and recent tokens among the candidates, and the best others up to ``size``."""
    forced = {i for i in candidates if i < sink or i >= recent_from}
    others = sorted((i for i in candidates if i not in forced), key=lambda i: -float(scores[i]))
    return forced | set(others[: max(0, size - len(forced))])


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


def _rotated(x: Tensor, decoder: Decoder) -> Tensor:
    half = x.shape[-1] // 2
    cos, sin = (table[: len(x), None].double() for table in (decoder.rope.cos, decoder.rope.sin))
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
