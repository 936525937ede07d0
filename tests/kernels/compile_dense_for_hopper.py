"""Compiles the kernels around attention for compute capability 9.0; fails where one spills or loads narrow words."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import torch
from compile_only import Binary, check, integers, meta, spills

from longdecode.kernels.linear.gpu import gated_linear_gpu, linear_gpu
from longdecode.kernels.linear.launch import NARROW, choose_launch
from longdecode.kernels.linear.norm_gpu import norm_linear_gpu
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.rms_norm import add_gpu as add_rms_norm
from longdecode.kernels.rope import append_gpu as rope_append

# hidden, feed-forward, query heads, KV heads, head dimension, capacity
SHAPES = {
    "Qwen2.5-1.5B": (1536, 8960, 12, 2, 128, 32_768),
    "Llama-3-8B": (4096, 14336, 32, 8, 128, 131_072),
    "miniature": (256, 640, 8, 4, 32, 4096),
}
NARROW_LOADS = re.compile(r"cp\.async\.ca|ld\.global(?!\S*v4)\S*")
WAIT, OVERLAPPING = "griddepcontrol.wait", "overlapping"
tensor = partial(meta, dtype=torch.bfloat16)


def project(hidden: int, ffn: int, rows: int, pdl: bool) -> None:
    """The projections whose binaries differ: a program knows its channels, not its outputs."""
    for n, k, gated in ((hidden, hidden, False), (ffn, hidden, True), (hidden, ffn, False)):
        chosen = choose_launch(n, k, rows, torch.bfloat16, gated)
        if chosen is None and rows > 32:
            continue  # torch's
        if chosen is None:
            raise ValueError(f"no launch for {rows} rows of {k}")
        launch = replace(chosen, launch_pdl=pdl)
        if gated:
            gated_linear_gpu(tensor(rows, 1, k), tensor(2 * n, k), launch=launch)
        else:
            linear_gpu(tensor(rows, 1, k), tensor(n, k), launch=launch)


def around_attention(hidden: int, heads: int, kv_heads: int, dim: int, capacity: int, pdl: bool) -> None:
    """Norm, rotation and append, the latter with all options, with none, and for a block."""
    norm = replace(add_rms_norm.choose_launch(hidden), launch_pdl=pdl)
    add_rms_norm.add_rms_norm_gpu(tensor(1, 1, hidden), tensor(1, 1, hidden), tensor(hidden), 1e-5, launch=norm)
    launch = replace(rope_append.choose_launch(), launch_pdl=pdl)
    fused = tensor(1, 1, heads + 2 * kv_heads, dim)
    q, k, v = (x.transpose(1, 2) for x in fused.split((heads, kv_heads, kv_heads), dim=2))
    angles, slots = meta(1, 1, dim), integers(1)
    cache = tensor(1, kv_heads, capacity, dim)
    bounds = PageBounds(cache[:, :, : capacity // 16], cache[:, :, : capacity // 16])
    inputs = (q, k, v, angles, angles, cache, cache, slots)
    rope_append.rope_append_gpu(
        *inputs, q_norm=tensor(dim), k_norm=tensor(dim), eps=1e-6, bounds=bounds, page_size=16, launch=launch
    )
    rope_append.rope_append_gpu(*inputs, launch=launch)
    q, k, v = (tensor(1, count, 8, dim) for count in (heads, kv_heads, kv_heads))
    angles, slots = meta(1, 8, dim), integers(1, kv_heads, 8)
    rope_append.rope_append_gpu(q, k, v, angles, angles, cache, cache, slots, launch=launch)


def faults(name: str, binary: Binary, pdl: bool | None = None) -> list[str]:
    """Name what is wrong with a binary; whether it overlaps is part of its name where it is not given."""
    found, pdl = spills(binary), name.endswith(OVERLAPPING) if pdl is None else pdl
    if binary.kernel.startswith("linear") and NARROW_LOADS.search(binary.ptx):
        found.append(f"loads narrower than 16 bytes: {sorted(set(NARROW_LOADS.findall(binary.ptx)))}")
    before, wait, after = binary.ptx.partition(WAIT)
    # Weights may be read early, by the norm and into registers; what else a kernel reads or writes belongs to a step.
    readers = ("add_rms_norm_kernel", "linear_fma_kernel", "norm_linear_kernel", "peer_sum_norm_kernel")
    weights = binary.kernel in readers
    early = ("st.global",) if weights else ("st.global", "ld.global", "cp.async")
    if pdl and (not wait or WAIT in after or any(access in before for access in early)):
        found.append("does not wait once, before its first access, for the kernels ahead of it")
    if not pdl and wait:
        found.append("waits for kernels that it cannot overlap")
    return found


def launch_all(hidden: int, ffn: int, *attention: int, pdl: bool) -> None:
    around_attention(hidden, *attention, pdl)
    if pdl:
        row = tensor(1, 1, hidden)
        norm_linear_gpu(row, row, tensor(hidden), 1e-6, tensor(hidden, hidden), tensor(hidden), False)
        norm_linear_gpu(row, row, tensor(hidden), 1e-6, tensor(2 * ffn, hidden), None, True)
    for rows in (1, 4, 16, 32, 64) if pdl and hidden <= NARROW else (1, 16):
        project(hidden, ffn, rows, pdl)


if __name__ == "__main__":
    cases = []
    for model, shape in SHAPES.items():
        pdl = model != "miniature"  # without overlap a kernel is the same less its wait, whatever the sizes
        cases.append((f"{model}, {OVERLAPPING}" if pdl else model, partial(launch_all, *shape, pdl=pdl)))
    check(cases, faults)
