"""Cross-entropy through a frozen LM head: its gradient is made beside it, so that logits are made once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def frozen_head_loss(states: Tensor, wanted: Tensor, head: Tensor, rows: int) -> Tensor:
    """Return the mean cross-entropy of ``softmax(states @ head.T)``, differentiable in ``states`` alone.

    Logits and probabilities are of the head's dtype and exist for ``rows`` states at once. A step of training moves
    four times their bytes: autograd's way, logits in float32 and once more for the gradient, moved over twenty.

    Args:
        states: ``[N, H]``, float32.
        wanted: ``[N]`` int64.
        head: ``[V, H]``, frozen.
        rows: states at once.
    """
    return _FrozenHeadLoss.apply(states, wanted, head, rows)


class _FrozenHeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, wanted: Tensor, head: Tensor, rows: int) -> Tensor:
        """Sum ``-log p[wanted]``, and keep ``(p - onehot(wanted)) @ head``."""
        gradient, total = torch.empty_like(states), torch.zeros((), device=states.device)
        pieces = (part.split(rows) for part in (states, wanted, gradient))
        for state, want, slope in zip(*pieces, strict=True):
            chance = torch.softmax(state.to(head.dtype) @ head.T, dim=1)
            named = chance.gather(1, want[:, None])
            total -= named.float().clamp_min(torch.finfo(torch.float32).tiny).log().sum()
            chance.scatter_(1, want[:, None], named - 1)
            slope.copy_(chance @ head)
        ctx.save_for_backward(gradient.div_(len(wanted)))
        return total / len(wanted)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None, None, None]:
        """Scale the kept gradient."""
        return ctx.saved_tensors[0] * given[0], None, None, None
