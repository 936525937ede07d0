"""Losses of tokens from hidden states: logits of one stretch are held at a time, and made again for the gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def token_losses(head: Tensor, hidden: Tensor, wanted: Tensor, stretch: int, aim: Tensor | None = None) -> Tensor:
    """Return the loss of each token and its divergence from a teacher, ``[2, T]`` float32.

    Args:
        head: ``[V, H]``, the model's and the teacher's.
        hidden: ``[T, H]``.
        wanted: ``[T]`` int64.
        stretch: tokens whose logits are held at a time.
        aim: the teacher's hidden states ``[T, H]``; without, the divergence is 0.
    """

    def losses(hidden: Tensor, wanted: Tensor, aim: Tensor | None) -> Tensor:
        known = (hidden.to(head.dtype) @ head.T).float().log_softmax(dim=-1)
        own = F.nll_loss(known, wanted, reduction="none")
        if aim is None:
            return torch.stack((own, torch.zeros_like(own)))
        right = (aim.to(head.dtype) @ head.T).float().log_softmax(dim=-1)
        return torch.stack((own, (right.exp() * (right - known)).sum(dim=-1)))

    aims = [None] * len(hidden) if aim is None else aim.split(stretch)
    parts = zip(hidden.split(stretch), wanted.split(stretch), aims, strict=False)
    return torch.cat(
        [checkpoint(losses, *part, use_reentrant=False, preserve_rng_state=False) for part in parts], dim=1
    )
