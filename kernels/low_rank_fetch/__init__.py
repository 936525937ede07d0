"""Chunks of a prompt fetched into slots: keys rebuilt from factors of low rank, values copied from host memory."""

from torch import Tensor

from longdecode.kernels.block_residency import BlockQueue
from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.low_rank_fetch import naive
from longdecode.kernels.low_rank_fetch.naive import LowRankPrompt

__all__ = ["LowRankPrompt", "fetch_chunks"]


def fetch_chunks(prompt: LowRankPrompt, k: Tensor, v: Tensor, queue: BlockQueue) -> None:
    """Put the queued chunks of a prompt into slots; see ``naive.fetch_chunks``.

    On CUDA the values may lie in pinned host memory.
    """
    if use_triton(k):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.low_rank_fetch.gpu import fetch_chunks_gpu

        return fetch_chunks_gpu(prompt, k, v, queue)
    return naive.fetch_chunks(prompt, k, v, queue)
