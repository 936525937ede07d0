"""How good a role map is: the student's distance from the teacher under hard roles and inheritance as at inference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from longdecode.engine.decoder import Decoder
from longdecode.identification.data.batch import TargetBatch
from longdecode.identification.gated_model import GatedModel
from longdecode.identification.token_sets import SparseBranch
from longdecode.methods.head_roles import Roles


@dataclass(frozen=True, slots=True)
class HardRoleLoss:
    """How far a student with hard roles is from its teacher.

    ``logits`` is the squared error of the logits, summed over the vocabulary and averaged over targets. ``kept`` is the
    share of the tokens that the teacher predicts rightly which the student predicts rightly too; not a number where
    the teacher has none right.
    """

    logits: float
    kept: float


@torch.no_grad()
def hard_role_loss(
    decoder: Decoder, roles: Sequence[Roles], batches: Iterable[TargetBatch], sparse: SparseBranch
) -> list[HardRoleLoss]:
    """Compare role maps on the same episodes.

    Args:
        roles: maps ``[L][Hkv]``; a head that retrieves attends fully, the others to what they inherit along the chain
            (or to sink and recent tokens where the branch streams).
        batches: held-out episodes.
        sparse: sizes of the sets; its inheritance is taken as ``chain`` and its selection as ``causal``.

    Returns:
        One result a map.
    """
    model = GatedModel(decoder, replace(sparse, inherit="chain", selection="causal"))
    sums = torch.zeros(len(roles), 2, device=decoder.device, dtype=torch.float64)
    right = torch.zeros((), device=decoder.device, dtype=torch.float64)
    count = 0
    for batch in batches:
        cache, targets = batch.prefill(decoder), batch.targets.to(decoder.device)
        teacher = model.logits(model.hidden(targets, cache, batch.start))
        known = teacher[:, :-1].argmax(dim=-1) == targets[:, 1:]
        for row, map_ in enumerate(roles):
            gates = torch.tensor(map_, device=decoder.device, dtype=torch.float32).expand(len(targets), -1, -1)
            student = model.logits(model.hidden(targets, cache, batch.start, gates))
            sums[row, 0] += (student - teacher).square().sum(dim=-1).mean()
            sums[row, 1] += (known & (student[:, :-1].argmax(dim=-1) == targets[:, 1:])).sum()
        right += known.sum()
        count += 1
    total = right.item() or math.nan
    return [HardRoleLoss(logits / count, kept / total) for logits, kept in sums.tolist()]
