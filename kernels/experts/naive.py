"""A mixture of experts in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from longdecode.kernels.layout import accumulator
from longdecode.kernels.linear.naive import gated_linear


def route(rows: Tensor, router: Tensor, per_row: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """Return the weights of each row's chosen experts, and these: ``topk(softmax(x R^T))``.

    Args:
        rows: ``[N, H]``, any float dtype.
        router: ``[E, H]`` in the rows' dtype.
        per_row: experts of a row, ``k``.
        normalise: divide the weights of a row by their sum.

    Returns:
        ``[N, k]`` in the rows' dtype, from shares taken in float32 at least; ``[N, k]`` int64.

    Source: ``Qwen3MoeTopKRouter`` of transformers.
    """
    weights, chosen = F.linear(rows, router).softmax(-1, dtype=accumulator(rows.dtype)).topk(per_row)
    weights = weights / weights.sum(-1, keepdim=True) if normalise else weights
    return weights.to(rows.dtype), chosen


def experts(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, per_row: int, normalise: bool) -> Tensor:
    """Return ``sum_e w_e (silu(x G_e^T) * (x U_e^T)) D_e^T`` over a row's chosen experts ``e``.

    Moves ``3 * F * H`` elements of weight for each expert that any row chooses.

    Args:
        x: ``[..., H]``, any float dtype.
        router: ``[E, H]`` in ``x``'s dtype, as are the others.
        gate_up: ``[E, 2F, H]``, an expert's gate rows before its up rows.
        down: ``[E, H, F]``.
        per_row: as of ``route``.
        normalise: likewise.

    Returns:
        ``[..., H]`` in ``x``'s dtype, summed in float32 at least.
    """
    rows = x.flatten(0, -2)
    weights, chosen = route(rows, router, per_row, normalise)
    out = torch.zeros_like(rows, dtype=accumulator(x.dtype))
    # A graph's capture forbids the host to ask who was chosen: on a GPU every row goes through every expert.
    for expert in range(len(router)) if x.is_cuda else chosen.unique().tolist():
        share = torch.where(chosen == expert, weights, 0).sum(-1, keepdim=True)
        own = slice(None) if x.is_cuda else share.nonzero()[:, 0]
        result = share[own] * F.linear(gated_linear(rows[own], gate_up[expert]), down[expert])
        out[own] += torch.where(share[own] != 0, result, 0).to(out.dtype)
    return out.to(x.dtype).view(x.shape)
