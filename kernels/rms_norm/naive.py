"""RMS normalisation, alone and after a residual addition, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each vector to unit root mean square, then by a learned weight: ``weight * x / sqrt(mean(x^2) + eps)``.

    The quotient is rounded to ``x``'s dtype before the weight is applied, as Llama checkpoints were trained. Moves two
    passes of ``x``.

    Args:
        x: ``[..., H]``, any float dtype; the mean is taken in float32 (float64 for float64).
        weight: ``[H]``.
        eps: added to the mean square.

    Returns:
        ``[..., H]`` in ``x``'s dtype.

    Source: Zhang and Sennrich 2019 (arXiv 1910.07467), equation 4.
    """
    wide = x.to(accumulator(x.dtype))
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def add_rms_norm(delta: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add a block's output to the residual stream and normalise the sum: ``r' = r + d``, ``rms_norm(r')``.

    The sum is rounded to the dtype before it is normalised, as the stream that goes on is. Moves four passes of the
    residual (two reads, two writes), two where there is no delta.

    Args:
        delta: ``[..., H]`` in ``residual``'s dtype, or ``None`` before the first block.
        residual: ``[..., H]``, any float dtype.
        weight: ``[H]``.
        eps: added to the mean square.

    Returns:
        The normalised sum and the sum, ``[..., H]`` in ``residual``'s dtype; without a delta the latter is ``residual``
        itself.

    Source: Zhang and Sennrich 2019 (arXiv 1910.07467), equation 4.
    """
    total = residual if delta is None else residual + delta
    return rms_norm(total, weight, eps), total
