"""Cases of the kernel bench that do not depend on the context: norms, rotation and append, projections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longdecode.evals.throughput.kernel_case import Case, Inputs, Size, is_close, require_close
from longdecode.kernels.add_rms_norm import add_rms_norm
from longdecode.kernels.dispatch import naive_kernels
from longdecode.kernels.linear import gated_linear, linear
from longdecode.kernels.rope_append import rope_append

EPS = 1e-5
_SLOTS = 64
"""Cache slots that ``rope_append`` writes into; it touches one a row, however long the cache is."""


def add_rms_norm_case(size: Size) -> Case:
    """Time residual addition and normalisation of one token a row."""
    hidden = size.config.hidden_size

    def make_sets(count: int) -> list[Inputs]:
        return [
            {
                "delta": size.normal(size.batch, 1, hidden),
                "residual": size.normal(size.batch, 1, hidden),
                "weight": size.normal(hidden),
            }
            for _ in range(count)
        ]

    def ours(x: Inputs) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x["delta"], x["residual"], x["weight"], EPS)

    def check(x: Inputs, got: Any) -> None:
        with naive_kernels():
            require_close(got, ours(x), size.dtype, "add_rms_norm")

    moved = (4 * size.batch + 1) * hidden * size.dtype.itemsize
    return Case(
        "add_rms_norm", size, make_sets, ours, check, moved, moved,
        same=lambda peer, mine: is_close(peer[0], mine[0], size.dtype),
    )  # fmt: skip


def rope_append_case(size: Size) -> Case:
    """Time the rotation of one token's queries and keys, and its append to the cache."""
    config = size.config
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim

    def make_sets(count: int) -> list[Inputs]:
        return [_heads_set(size) for _ in range(count)]

    def ours(x: Inputs) -> Tensor:
        return rope_append(x["q"], x["k"], x["v"], x["cos"], x["sin"], x["keys"], x["values"], x["slots"])

    def check(x: Inputs, got: Any) -> None:
        # The op has written into the set's cache by now; its definition writes into a copy of its own.
        plain = x | {"keys": x["keys"].clone(), "values": x["values"].clone()}
        with naive_kernels():
            want = ours(plain)
        require_close([got, x["keys"], x["values"]], [want, plain["keys"], plain["values"]], size.dtype, "rope_append")

    moved = 2 * size.batch * (heads + 2 * kv_heads) * dim * size.dtype.itemsize
    held = moved + 2 * size.batch * kv_heads * _SLOTS * dim * size.dtype.itemsize
    return Case(
        "rope_append", size, make_sets, ours, check, moved, held,
        same=lambda peer, mine: is_close(peer, mine, size.dtype),
    )  # fmt: skip


def linear_case(size: Size, name: str, rows: int, columns: int, gated: bool = False) -> Case:
    """Time a projection of one token a row by a weight ``[rows, columns]``."""

    def make_sets(count: int) -> list[Inputs]:
        return [
            {"x": size.normal(size.batch, 1, columns), "weight": size.normal(rows, columns) * columns**-0.5}
            for _ in range(count)
        ]

    def ours(x: Inputs) -> Tensor:
        return gated_linear(x["x"], x["weight"]) if gated else linear(x["x"], x["weight"])

    def check(x: Inputs, got: Any) -> None:
        with naive_kernels():
            require_close([got], [ours(x)], size.dtype, name)

    weight = rows * columns * size.dtype.itemsize
    moved = weight + size.batch * (columns + (rows // 2 if gated else rows)) * size.dtype.itemsize
    return Case(
        name, size, make_sets, ours, check, moved, 2 * weight,
        same=lambda peer, mine: is_close(peer, mine, size.dtype), params={"rows": rows, "columns": columns},
    )  # fmt: skip


def projection_shapes(size: Size) -> dict[str, tuple[int, int, bool]]:
    """Return rows, columns and gating of every projection of a step, by the name of its case."""
    config = size.config
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, ffn = config.hidden_size, config.intermediate_size
    return {
        "linear_qkv": (q_width + 2 * kv_width, hidden, False),
        "linear_o": (hidden, q_width, False),
        "linear_down": (hidden, ffn, False),
        "linear_lm_head": (config.vocab_size, hidden, False),
        "gated_linear": (2 * ffn, hidden, True),
    }


def _heads_set(size: Size) -> Inputs:
    """Return heads as views of one fused projection, angles, and a cache that holds finite values."""
    config = size.config
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    fused = size.normal(size.batch, 1, (heads + 2 * kv_heads) * dim).unflatten(-1, (-1, dim)).transpose(1, 2)
    q, k, v = fused.split((heads, kv_heads, kv_heads), dim=1)
    angles = torch.rand(size.batch, 1, dim // 2, device=size.device) * 6.28
    angles = torch.cat((angles, angles), dim=-1)
    return {
        "q": q, "k": k, "v": v, "cos": angles.cos(), "sin": angles.sin(),
        "keys": size.normal(size.batch, kv_heads, _SLOTS, dim),
        "values": size.normal(size.batch, kv_heads, _SLOTS, dim),
        "slots": size.whole(size.batch, value=_SLOTS // 2),
    }  # fmt: skip
