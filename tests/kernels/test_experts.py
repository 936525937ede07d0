"""A mixture of experts against sums written out in float64: naive, and in Triton's interpreter or on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_inputs import CPU, DEVICE, HALF_AND_SINGLE, captured, close
from longdecode.kernels.experts import experts, naive
from longdecode.kernels.experts.gpu import experts_gpu
from longdecode.kernels.multiprocessors import power_of_two

TOLERANCE = {torch.float32: 3e-6, torch.float16: 6e-3, torch.bfloat16: 0.15}
CASES = [(1, 6, 2, 48, 24), (3, 8, 8, 100, 37), (140, 3, 2, 33, 16), (7, 5, 1, 65, 129)]
"""Rows, experts, experts a row, channels, channels of an expert."""


def inputs(rng: torch.Generator, rows: int, count: int, hidden: int, ffn: int, dtype: torch.dtype) -> list[Tensor]:
    """Rows of a batch, a router of their first channels, and matrices that keep outputs near one.

    Those channels differ by as much as every dtype can tell apart, so that rounding changes no choice.
    """
    shapes = {(rows, 1, hidden): 1.0, (count, 2 * ffn, hidden): hidden, (count, hidden, ffn): ffn}
    x, *matrices = ((n**-0.5 * torch.randn(s, generator=rng, device=rng.device)).to(dtype) for s, n in shapes.items())
    x[..., :count] = x[..., :count].argsort() * (4 / power_of_two(count))
    return [x, torch.eye(count, hidden, dtype=dtype, device=rng.device), *matrices]


def mixed(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, per_row: int, normalise: bool) -> Tensor:
    """Each row through its likeliest experts, one after the other, in float64."""
    x, router, gate_up, down = (t.double() for t in (x, router, gate_up, down))
    out = torch.zeros_like(x)
    for place, row in enumerate(x[:, 0]):
        shares = (router @ row).softmax(0)
        chosen = shares.argsort(descending=True)[:per_row].tolist()
        for expert in chosen:
            gate, up = (gate_up[expert] @ row).chunk(2)
            result = down[expert] @ (gate * gate.sigmoid() * up)
            out[place] += shares[expert] / (shares[chosen].sum() if normalise else 1) * result
    return out


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("dtype", HALF_AND_SINGLE, ids=str)
@pytest.mark.parametrize(("op", "where"), [(experts, CPU), (experts_gpu, DEVICE)], ids=["naive", "triton"])
@pytest.mark.parametrize(("rows", "count", "per_row", "hidden", "ffn"), CASES)
def test_rows_go_through_their_experts(
    rng: torch.Generator, rows: int, count: int, per_row: int, hidden: int, ffn: int, op: Any, where: torch.device,
    dtype: torch.dtype, normalise: bool,
) -> None:  # fmt: skip
    given = inputs(rng, rows, count, hidden, ffn, dtype)
    got = op(*(t.to(where) for t in given), per_row, normalise)
    assert got.dtype == dtype and got.shape == given[0].shape
    close(got, mixed(*given, per_row, normalise), TOLERANCE[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 600])
def test_a_replayed_graph_follows_the_choice(seed: int, rows: int) -> None:
    """One capture at a size of Qwen3-30B-A3B serves other rows, which choose other experts."""
    rng = torch.Generator("cuda").manual_seed(seed)
    given, fresh = (inputs(rng, rows, 128, 2048, 768, torch.bfloat16) for _ in range(2))
    graph, found = captured(lambda: experts_gpu(*given, 8, True))
    given[0].copy_(fresh[0])
    graph.replay()
    close(found, naive.experts(*given, 8, True), TOLERANCE[torch.bfloat16])
    close(found, experts_gpu(*given, 8, True), 0.0)
