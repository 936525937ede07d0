"""Find the slots that hold listed blocks, and the blocks that have to be fetched into others."""

from torch import Tensor

from longdecode.kernels.block_residency import naive
from longdecode.kernels.block_residency.naive import BlockQueue, Residents
from longdecode.kernels.dispatch import use_triton

__all__ = ["BlockQueue", "Residents", "claim_slots"]


def claim_slots(indices: Tensor, counts: Tensor, residents: Residents, queue: BlockQueue, blocks: int) -> Tensor:
    """Return the slot of every listed block and queue the blocks that no slot holds; see ``naive.claim_slots``."""
    if use_triton(residents.like):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.block_residency.gpu import claim_slots_gpu

        return claim_slots_gpu(indices, counts, residents, queue, blocks)
    return naive.claim_slots(indices, counts, residents, queue, blocks)
