"""Choice of the token that the next one replaces, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import before, group_reduce

RULES = ("accumulate", "latest")


def choose_victims(
    logits: Tensor,
    lse: Tensor,
    lengths: Tensor,
    newest: Tensor,
    position: Tensor,
    protected: Tensor,
    slot_positions: Tensor,
    scores: Tensor,
    victims: Tensor,
    *,
    rule: str,
) -> None:
    """Score the stored tokens by the attention of a step and choose the one with the lowest score.

    A token's weight is ``w_hi = exp(logit_hi - lse_h)``. Rule ``accumulate`` adds the sum over the group's query heads
    to what each KV head's tokens had, 0 for the newest. Rule ``latest`` takes the mean over all query heads, the same
    for all KV heads, which store the same tokens in the same slots. Of equal scores the first slot is the victim; where
    every token is protected it is slot 0. Moves one float32 a query head and slot, and a score and a position of four
    bytes a KV head and slot.

    Args:
        logits: ``[B, Hq, S]`` of the step's queries, as ``decode_attention`` leaves them.
        lse: ``[B, Hq]``, their log-sum-exp.
        lengths: ``[B, Hkv]`` int64, slots in use, the newest token's among them.
        newest: ``[B, Hkv]`` int64, the slot of the newest token.
        position: ``[B]`` int64, its position.
        protected: ``[B]`` int64, the first position that no step may evict; those before it are free.
        slot_positions: ``[B, Hkv, S]`` int32, changed in place: the newest token's is recorded.
        scores: ``[B, Hkv, S]`` in the dtype of ``logits``, changed in place.
        victims: ``[B, Hkv]`` int64, written.
        rule: ``accumulate`` or ``latest``.

    Raises:
        ValueError: the rule is unknown.

    Source: Zhang et al. 2023, H2O (arXiv 2306.14048), algorithm 1; Oren et al. 2024, TOVA (arXiv 2401.06104), 3.2.
    """
    check_rule(rule)
    heads, size = scores.shape[1], scores.shape[2]
    stored = before(lengths, size)
    slot = newest[..., None]
    slot_positions.scatter_(2, slot, position.to(slot_positions.dtype)[:, None, None].expand_as(slot))
    weights = torch.exp(logits - lse[..., None])
    if rule == "accumulate":
        scores.scatter_(2, slot, 0.0)
        scores += torch.where(stored, group_reduce(weights, heads, "sum"), 0.0)
    else:
        scores.copy_(weights.mean(dim=1, keepdim=True).expand_as(scores))
    free = stored & (slot_positions < protected[:, None, None])
    lowest = torch.where(free, scores, torch.inf)
    # The first of equal scores, on every device.
    place = torch.arange(size, device=scores.device)
    victims.copy_(torch.where(lowest == lowest.amin(dim=2, keepdim=True), place, size).amin(dim=2))


def check_rule(rule: str) -> None:
    """Refuse a rule that does not exist.

    Raises:
        ValueError: as said.
    """
    if rule not in RULES:
        raise ValueError(f"eviction rule {rule!r} is none of {', '.join(RULES)}")
