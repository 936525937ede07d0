"""Attention of a training document over chosen blocks, and its gradient: naive and Triton against float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernel_inputs import DEVICE, NAN
from longdecode.kernels.importance import ImportanceWeights, token_importance
from longdecode.kernels.sparse_training_attention import naive
from longdecode.kernels.sparse_training_attention.gpu import sparse_training_attention_gpu as gpu

Attention = Callable[..., Tensor]


def given(rng: torch.Generator, tokens: int, dim: int, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two rows, three query heads a KV head, random blocks read beside each query's own."""
    q = torch.randn(2, 6, tokens, dim, generator=rng)
    k, v = (torch.randn(2, 2, tokens, dim, generator=rng) for _ in range(2))
    read = torch.rand(2, 2, tokens, -(-tokens // size), generator=rng) < 0.2
    read[:, :, torch.arange(tokens), torch.arange(tokens) // size] = True
    return q, k, v, read


def one_by_one(leaves: list[Tensor], read: Tensor, size: int, scale: float, form: str | None) -> Tensor:
    """Attend query by query over the listed tokens alone, importances and all in float64."""
    q, k, v, *heads = leaves
    out = torch.zeros_like(q)
    for row, head, t in np.ndindex(q.shape[:3]):
        kv = head // 3
        seen = [i for i in range(t + 1) if read[row, kv, t, i // size]]
        logits = k[row, kv, seen] @ q[row, head, t] * scale
        if form is not None:
            raised = v[row, :, seen].transpose(0, 1).flatten(1) @ heads[0][kv]
            e = heads[1][kv] * (raised.sigmoid() if form == "s_dma" else F.softplus(raised))
            logits = logits + (e.exp() if form == "dma" else e)
        out[row, head, t] = logits.softmax(0) @ v[row, kv, seen]
    return out


def attended(
    attend: Attention, leaves: list[Tensor], read: Tensor, size: int, scale: float, form: str | None
) -> Tensor:
    """Attend as a fork does."""
    q, k, v, *heads = leaves
    bias = token_importance(v, ImportanceWeights(*heads, form)) if form else None
    return attend(q, k, v, read, size, bias, scale)


@pytest.mark.parametrize(
    ("tokens", "dim", "size", "form"),
    [(64, 16, 16, "ed_dma"), (70, 8, 4, "s_dma"), (33, 8, 1, "dma"), (77, 24, 8, None), (131, 8, 12, "ed_dma"),
     (130, 8, 96, None)],
)  # fmt: skip
def test_outputs_and_gradients(rng: torch.Generator, tokens: int, dim: int, size: int, form: str | None) -> None:
    """All of queries, keys, values and the importance head, at lengths that end within a tile."""
    *inputs, read = given(rng, tokens, dim, size)
    if form is not None:
        inputs += [torch.randn(2, 2 * dim, generator=rng) * 0.3, torch.randn(2, generator=rng)]
    exact = [x.double().requires_grad_() for x in inputs]
    want = one_by_one(exact, read, size, 0.3, form)
    probe = torch.randn(want.shape, generator=rng)
    (want * probe).sum().backward()
    for attend in (naive.sparse_training_attention, gpu):
        mine = [x.to(DEVICE, copy=True).requires_grad_() for x in inputs]
        got = attended(attend, mine, read.to(DEVICE), size, 0.3, form)
        torch.testing.assert_close(got.cpu(), want.float(), atol=1e-5, rtol=1e-5)
        (got * probe.to(DEVICE)).sum().backward()
        for leaf, double in zip(mine, exact, strict=True):
            assert leaf.grad is not None and double.grad is not None
            torch.testing.assert_close(leaf.grad.cpu(), double.grad.float(), atol=1e-4, rtol=1e-4)


def test_tiles_that_no_query_reads_are_not_loaded(rng: torch.Generator) -> None:
    """Keys and values of unread tiles are poisoned; queries that read nothing give zeros and no gradient."""
    *inputs, read = given(rng, 200, 16, 16)
    read[:, :, 128:, 4:8] = False  # tokens 64 to 127
    read[:, :, 64:128] = False
    inputs = [x.to(DEVICE) for x in inputs]
    for x in inputs[1:]:
        x[:, :, 64:128] = NAN
    leaves = [x.requires_grad_() for x in inputs]
    out = gpu(*leaves, read.to(DEVICE), 16, None, 0.25)
    assert not out[:, :, 64:128].any() and out.isfinite().all() and out[:, :, 128:].any()
    out.sum().backward()
    for leaf in leaves:
        assert leaf.grad is not None and leaf.grad.isfinite().all() and not leaf.grad[:, :, 64:128].any()


@pytest.mark.parametrize("size", [16, 1])
def test_outputs_and_gradients_in_half_precision(rng: torch.Generator, size: int) -> None:
    """Against float64 on the processor from the same numbers; whole tiles unread come first."""
    # Triton's interpreter, which CPU tensors imply, computes wrongly on bfloat16.
    tokens, half = (1501, torch.bfloat16) if DEVICE.type == "cuda" else (150, torch.float16)
    *inputs, read = given(rng, tokens, 64, size)
    read[:, :, :, : 64 // size] = False
    read[:, :, torch.arange(tokens), torch.arange(tokens) // size] = True
    inputs = [x.to(half) for x in inputs] + [torch.randn(2, 128, generator=rng) * 0.1, torch.randn(2, generator=rng)]
    probe, sides = torch.randn(inputs[0].shape, generator=rng).to(half), []
    for attend, device, dtype in ((gpu, DEVICE, None), (naive.sparse_training_attention, "cpu", torch.float64)):
        leaves = [x.to(device, dtype or x.dtype, copy=True).requires_grad_() for x in inputs]
        out = attended(attend, leaves, read.to(device), size, 0.125, "ed_dma")
        out.backward(probe.to(out))
        sides.append([out, *(leaf.grad for leaf in leaves)])
    for got, want in zip(*sides, strict=True):
        assert got is not None and want is not None
        error = (got.detach().cpu().double() - want.detach()).norm() / want.detach().norm()
        assert error < 0.02, error
