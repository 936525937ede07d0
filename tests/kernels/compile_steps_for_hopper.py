"""Compiles kernels of a step without attention for compute capability 9.0: draws, walks, tables, experts."""

from __future__ import annotations

from functools import partial

import torch
from compile_dense_for_hopper import faults
from compile_only import check, integers, meta

from longdecode.kernels.draw import DrawRule, Noise, Progress
from longdecode.kernels.draw.gpu import draw_gpu
from longdecode.kernels.draw.record_gpu import record_tokens_gpu
from longdecode.kernels.experts.gpu import experts_gpu
from longdecode.kernels.ngram_table import NgramCounts
from longdecode.kernels.ngram_table.gpu import add_ngrams_gpu, frequent_continuations_gpu
from longdecode.kernels.peer_sum import peer_sum_norm_kernel
from longdecode.kernels.token_move import PartialSlots
from longdecode.kernels.token_move.gpu import compact_tokens_gpu, fill_tokens_gpu
from longdecode.kernels.tree_walk.gpu import tree_walk_gpu


def launch_all() -> None:
    """Plain, drafting and verifying steps: greedy and drawn, one candidate and several."""
    minp, rows, vocab = DrawRule(1.0, 0.1, 1.2), 32, 128_256
    logits = meta(rows, vocab)
    for count in (1, 9):
        draw_gpu(logits, count, minp, Noise(integers(rows), integers(rows)), integers(rows, 1024))
        draw_gpu(logits, count, DrawRule(0.7), Noise(integers(rows), integers(rows)))
        draw_gpu(logits, count, DrawRule(penalty=1.2), None, integers(rows, 1024))
    text = integers(1, 106_497)
    table = NgramCounts(text, integers(1), text, text, meta(1, 106_497, dtype=torch.bool), 4, 0, 9)
    add_ngrams_gpu(table, integers(1, 5), integers(1))
    for k in (5, 20):
        frequent_continuations_gpu(table, integers(1), k)
    cache, partial = (meta(30, 1, 3, size, 64, dtype=torch.bfloat16) for size in (9999, 4100))
    compact_tokens_gpu(cache, cache, integers(1), integers(1, 5))
    fill_tokens_gpu(cache, cache, integers(1), integers(1), 5, PartialSlots(partial, partial, *[integers(1)] * 2, 4096))
    active = meta(1, dtype=torch.bool)
    for stops in (None, integers(1, 3)):
        record_tokens_gpu(
            Progress(text, *[integers(1)] * 3, active, *[integers(1)] * 2, stops), integers(1, 5), integers(1)
        )
    sizes = {"RANK": 1, "WORLD": 2, "ROWS": 51, "WIDTH": 5120, "BLOCK": 8192, "PDL": True, "launch_pdl": True}
    for dtype in (torch.bfloat16, torch.float32):
        tensors = [meta(4, 5120, dtype=dtype) for _ in range(5)]
        peer_sum_norm_kernel[(4,)](
            *tensors, (1 << 34, 1 << 35), meta(51, dtype=torch.int32), 1e-6, num_warps=16, **sizes
        )
    for tree in (32, 121):
        tree_walk_gpu(integers(1, tree), integers(1, tree - 1), integers(tree, 5), integers(tree))


def through_experts(rows: int, dtype: torch.dtype) -> None:
    """A layer of Qwen3-30B-A3B."""
    shapes = ((rows, 1, 2048), (128, 2048), (128, 2 * 768, 2048), (128, 2048, 768))
    experts_gpu(*(meta(*shape, dtype=dtype) for shape in shapes), 8, True)


if __name__ == "__main__":
    check([("a step", launch_all)], partial(faults, pdl=True))
    mixtures = [(1, torch.bfloat16), (4096, torch.bfloat16), (4096, torch.float32)]
    check((f"{case[0]} rows, {case[1]}", partial(through_experts, *case)) for case in mixtures)
