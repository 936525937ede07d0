"""Find the slots that hold listed blocks, the blocks that have to be fetched into others, and what else is in slots."""

from torch import Tensor

from longdecode.kernels.block_residency import naive
from longdecode.kernels.block_residency.naive import Arrivals, BlockQueue, Residents
from longdecode.kernels.dispatch import use_triton

__all__ = ["Arrivals", "BlockQueue", "Residents", "claim_slots", "values_in_slots"]


def claim_slots(
    indices: Tensor,
    counts: Tensor,
    residents: Residents,
    queue: BlockQueue,
    blocks: int,
    arrivals: Arrivals | None = None,
) -> Tensor:
    """Return the slot of every listed block and queue the blocks that no slot holds; see ``naive.claim_slots``."""
    if use_triton(residents.like):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.block_residency.gpu import claim_slots_gpu

        return claim_slots_gpu(indices, counts, residents, queue, blocks, arrivals)
    return naive.claim_slots(indices, counts, residents, queue, blocks, arrivals)


def values_in_slots(values: Tensor, held: Tensor, block_size: int) -> Tensor:
    """Return numbers by token in the order of slots; see ``naive.values_in_slots``."""
    if use_triton(values):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.block_residency.slots_gpu import values_in_slots_gpu

        return values_in_slots_gpu(values, held, block_size)
    return naive.values_in_slots(values, held, block_size)
