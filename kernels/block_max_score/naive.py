"""Max-pooled logits in plain torch."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from longdecode.kernels.token_score.naive import token_logits


def block_max_score(
    q: Tensor, k: Tensor, lengths: Tensor, *, block_size: int, scale: float | None = None, group: str | None = None
) -> Tensor:
    """Largest logit of each block: ``score_j = max_{i in block j} reduce_h (scale * q_h . k_i)``.

    The group is reduced before the maximum is taken: under ``mean`` these are max-pooled group-mean scores. Moves
    ``sum(lengths) * Hkv * D`` elements.

    Args:
        q: ``[B, Hq, 1, D]``, any float dtype; sums run in float32 (float64 for float64).
        k: ``[B, Hkv, S, D]``, ``Hq`` a multiple of ``Hkv``.
        lengths: ``[B]`` integers, at most ``S``; blocks that begin at or past it score minus infinity.
        block_size: tokens in a block; the last may be cut short by ``S``.
        scale: factor on the scores; ``D ** -0.5`` when left out.
        group: ``max``, ``sum`` or ``mean`` over the query heads of a KV head; ``None`` keeps one score per query head.

    Returns:
        ``[B, Hq, P]``, or ``[B, Hkv, P]`` under a group reduction, ``P = ceil(S / block_size)``, in float32 (float64
        for float64).

    Raises:
        ValueError: the group reduction is unknown or the heads do not divide.
    """
    logits = token_logits(q, k, lengths, scale=scale, group=group)
    batch, heads, size = logits.shape
    blocks = -(-size // block_size)
    padded = pad(logits, (0, blocks * block_size - size), value=float("-inf"))
    return padded.view(batch, heads, blocks, block_size).amax(dim=-1)
