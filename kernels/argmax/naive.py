"""Row-wise argmax in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def argmax(x: Tensor) -> Tensor:
    """The index of each row's largest value, the lowest of several that share it.

    ``torch.argmax`` leaves open which of equal values it names; a token must not depend on that. Moves ``B * N``
    elements.

    Args:
        x: ``[B, N]``, any float dtype, without NaN.

    Returns:
        ``[B]`` int64.
    """
    index = torch.arange(x.shape[-1], device=x.device)
    return torch.where(x == x.amax(dim=-1, keepdim=True), index, x.shape[-1]).amin(dim=-1)
