"""Find the slots that hold listed blocks, the blocks that have to be fetched into others, and what else is in slots."""

from longdecode.kernels.block_residency import naive
from longdecode.kernels.block_residency.naive import Arrivals, BlockQueue, Residents
from longdecode.kernels.dispatch import op

__all__ = ["Arrivals", "BlockQueue", "Residents", "claim_slots", "values_in_slots"]

claim_slots = op(naive.claim_slots, by="residents.like")
values_in_slots = op(naive.values_in_slots, gpu="slots_gpu")
