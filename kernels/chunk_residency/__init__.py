"""Find the slots that hold listed chunks, and queue the chunks that have to be fetched into others."""

from torch import Tensor

from longdecode.kernels.block_residency import BlockQueue
from longdecode.kernels.chunk_residency import naive
from longdecode.kernels.chunk_residency.naive import ChunkResidents
from longdecode.kernels.dispatch import use_triton

__all__ = ["ChunkResidents", "claim_chunks"]


def claim_chunks(indices: Tensor, counts: Tensor, residents: ChunkResidents, queue: BlockQueue, out: Tensor) -> None:
    """Write the slot of every listed chunk and queue the missing ones; see ``naive.claim_chunks``."""
    if use_triton(residents.like):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.chunk_residency.gpu import claim_chunks_gpu

        return claim_chunks_gpu(indices, counts, residents, queue, out)
    return naive.claim_chunks(indices, counts, residents, queue, out)
