"""Every op on a CUDA device gives what it gives on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.page_minmax import build_page_minmax
from longdecode.kernels.page_score import page_score
from longdecode.kernels.prefill_attention import prefill_attention
from longdecode.kernels.rms_norm import rms_norm
from longdecode.kernels.rope import apply_rope
from longdecode.kernels.silu_mul import silu_mul
from longdecode.kernels.sparse_decode_attention import sparse_decode_attention
from longdecode.kernels.token_score import token_probabilities
from longdecode.kernels.topk_select import topk_select

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def selection(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> Any:
    """Page bounds, scores, top pages and attention over them, in one go."""
    bounds = build_page_minmax(k, lengths, 16)
    used = -(-lengths // 16)
    indices, counts = topk_select(page_score(q, bounds, used, group="max").float(), 4, used)
    out, lse = sparse_decode_attention(q, k, v, indices, counts, block_size=16, kv_lengths=lengths)
    return indices, counts, out, lse


def rotated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> Any:
    """Queries and first keys turned by angles that differ from row to row."""
    angles = (lengths[:, None, None].cpu() * torch.arange(32)).float().repeat(1, 1, 2)
    return apply_rope(q, k[:, :, :1], angles.cos().to(q.device), angles.sin().to(q.device))


OPS: dict[str, Callable[..., Any]] = {
    "decode_attention": decode_attention,
    "selection": selection,
    "token_probabilities": lambda q, k, v, lengths: token_probabilities(q, k, lengths),
    "rms_norm": lambda q, k, v, lengths: rms_norm(q, q[0, 0, 0], 1e-5),
    "rope": rotated,
    "silu_mul": lambda q, k, v, lengths: silu_mul(q),
}


def compare(op: Callable[..., Any], inputs: list[torch.Tensor], tolerance: float) -> None:
    on_cpu, on_cuda = op(*inputs), op(*(x.cuda() for x in inputs))
    if isinstance(on_cpu, torch.Tensor):
        on_cpu, on_cuda = (on_cpu,), (on_cuda,)
    for want, got in zip(on_cpu, on_cuda, strict=True):
        torch.testing.assert_close(got.cpu(), want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("group", "size"), [(1, 2), (4, 63), (2, 1000)])
def test_op(rng: torch.Generator, name: str, group: int, size: int, dtype: torch.dtype) -> None:
    q = torch.randn(3, 2 * group, 1, 64, generator=rng).to(dtype)
    k, v = (torch.randn(3, 2, size, 64, generator=rng).to(dtype) for _ in range(2))
    lengths = torch.tensor([size, 2, (size + 2) // 2])
    for row, length in enumerate(lengths.tolist()):
        k[row, :, length:], v[row, :, length:] = float("nan"), float("nan")
    compare(OPS[name], [q, k, v, lengths], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("start", "rows"), [(0, 1), (0, 40), (7, 8), (200, 33)])
@pytest.mark.parametrize("group", [1, 4])
def test_prefill(rng: torch.Generator, start: int, rows: int, group: int, dtype: torch.dtype) -> None:
    q = torch.randn(2, 2 * group, rows, 32, generator=rng).to(dtype)
    k, v = (torch.randn(2, 2, start + rows + 3, 32, generator=rng).to(dtype) for _ in range(2))
    compare(lambda *x: prefill_attention(*x, start), [q, k, v], TOLERANCE[dtype])
