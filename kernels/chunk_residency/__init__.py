"""Find the slots that hold listed chunks, and queue the chunks that have to be fetched into others."""

from longdecode.kernels.chunk_residency import naive
from longdecode.kernels.chunk_residency.naive import ChunkResidents
from longdecode.kernels.dispatch import op

__all__ = ["ChunkResidents", "claim_chunks"]

claim_chunks = op(naive.claim_chunks, by="residents.like")
