"""Projections and their gate in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from longdecode.kernels.layout import accumulator
from longdecode.kernels.rms_norm.naive import add_rms_norm


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Project the last axis: ``y = x W^T + b``. Moves ``N * K`` elements of weight, whatever the rows.

    Args:
        x: ``[..., K]``, any float dtype.
        weight: ``[N, K]`` in ``x``'s dtype.
        bias: ``[N]``, likewise.

    Returns:
        ``[..., N]`` in ``x``'s dtype.
    """
    return F.linear(x, weight, bias)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Multiply the second half by the SiLU of the first: ``g * sigmoid(g) * u``.

    Moves ``3 * F`` elements a row.

    Args:
        gate_up: ``[..., 2F]``, the gate's ``F`` channels before the ``F`` up channels; products are taken in float32
            (float64 for float64).

    Returns:
        ``[..., F]`` in the input's dtype.

    Source: Shazeer 2020 (arXiv 2002.05202), equation 5 (SwiGLU with beta 1).
    """
    gate, up = gate_up.to(accumulator(gate_up.dtype)).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def gated_linear(x: Tensor, gate_up: Tensor) -> Tensor:
    """Project to gate and up, both rounded to the dtype, and gate: ``silu(x G^T) * (x U^T)``.

    Moves ``2 * F * K`` elements of weight, whatever the rows.

    Args:
        x: ``[..., K]``, any float dtype.
        gate_up: ``[2F, K]`` in ``x``'s dtype, the gate's ``F`` rows before the ``F`` up rows.

    Returns:
        ``[..., F]`` in ``x``'s dtype.

    Source: Shazeer 2020 (arXiv 2002.05202), equation 5 (SwiGLU with beta 1).
    """
    return silu_mul(F.linear(x, gate_up))


def norm_linear(
    delta: Tensor | None, residual: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None, gated: bool
) -> tuple[Tensor, Tensor]:
    """Return the projection of ``norm * t / rms(t)`` with ``t = residual + delta``, and ``t``.

    Each step rounds to the dtype as the separate ops do. Moves the weight, whatever the rows.

    Args:
        delta: ``[..., K]``, or ``None`` for nothing to add.
        residual: ``[..., K]``, any float dtype.
        norm: ``[K]``.
        eps: added to the mean square.
        weight: ``[N, K]``; gated ``[2F, K]``, the gate's rows first.
        bias: ``[N]`` or ``None``.
        gated: whether to gate as ``gated_linear`` does.
    """
    normed, total = add_rms_norm(delta, residual, norm, eps)
    return gated_linear(normed, weight) if gated else linear(normed, weight, bias), total
