"""How good a role map is: the student's distance from the teacher under hard roles and inheritance as at inference."""

from __future__ import annotations

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
    """Means over episodes: squared error of the logits per counted target, and how often the best token is the
    teacher's."""

    logits: float
    agreement: float


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
    count = 0
    for batch in batches:
        cache, targets = batch.prefill(decoder), batch.targets.to(decoder.device)
        teacher = model.logits(model.hidden(targets, cache, batch.start))
        for row, map_ in enumerate(roles):
            gates = torch.tensor(map_, device=decoder.device, dtype=torch.float32).expand(len(targets), -1, -1)
            student = model.logits(model.hidden(targets, cache, batch.start, gates))
            sums[row, 0] += (student - teacher).square().sum(dim=-1).mean()
            sums[row, 1] += (student.argmax(dim=-1) == teacher.argmax(dim=-1)).double().mean()
        count += 1
    return [HardRoleLoss(*row) for row in (sums / count).tolist()]
