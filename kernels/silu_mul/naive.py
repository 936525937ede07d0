"""SwiGLU's gate in plain torch."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import silu

from longdecode.kernels.layout import accumulator


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
    return (silu(gate) * up).to(gate_up.dtype)
