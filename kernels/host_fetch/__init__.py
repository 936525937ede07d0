"""Copies of listed blocks of keys and values between host memory and the device."""

from torch import Tensor

from longdecode.kernels.block_residency import Arrivals, BlockQueue
from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.host_fetch import naive

__all__ = ["KeysValues", "copy_blocks"]

KeysValues = tuple[Tensor, Tensor]


def copy_blocks(source: KeysValues, target: KeysValues, queue: BlockQueue, arrivals: Arrivals | None = None) -> None:
    """Copy the queued blocks of keys and of values; see ``naive.copy_blocks``.

    On CUDA one of the pairs may lie in pinned host memory. With ``arrivals`` the next kernel may start meanwhile, where
    launches overlap (``kernels/overlap.py``): it must wait for what is late, and nothing may be left that it does not
    wait for.
    """
    on_device = next((tensor for tensor in (*source, *target) if tensor.device.type != "cpu"), target[0])
    if use_triton(on_device):
        # Triton is installed where it can run; elsewhere this module must still import.
        from longdecode.kernels.host_fetch.gpu import copy_blocks_gpu

        return copy_blocks_gpu(source, target, queue, arrivals)
    return naive.copy_blocks(source, target, queue, arrivals)
