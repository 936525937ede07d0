"""Compiles the selection kernels for compute capability 9.0; fails where one spills or takes too much shared memory."""

from __future__ import annotations

import sys

import torch
from compile_only import SHARED_LIMIT_BYTES, compile_only

from longdecode.kernels.topk_select import gpu as topk

VERBOSE = "-v" in sys.argv


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launch_topk() -> None:
    """Lists in registers and in radix passes."""
    for size, k in ((63, 16), (8192, 256), (16_384, 1024), (32_768, 3277), (131_072, 4096)):
        topk.topk_select_gpu(meta(1, 8, size), k, meta(1, dtype=torch.int64), keep_last=1)


def main() -> None:
    """Compile, and exit with the list of what does not fit."""
    faults = []
    for launch in (launch_topk,):
        with compile_only() as binaries:
            launch()
        for binary in binaries:
            usage = f"{binary.kernel}: {binary.registers} registers, {binary.stack_bytes} B stack, "
            usage += f"{binary.local_bytes} B local, {binary.shared_bytes} B shared"
            if VERBOSE:
                print(usage)
            if binary.stack_bytes or binary.local_bytes or binary.shared_bytes > SHARED_LIMIT_BYTES:
                faults.append(usage)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
