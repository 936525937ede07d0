"""Projections against float64, in torch and in Triton: its interpreter without a GPU, the device with one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_inputs import CPU, DEVICE, captured, close, random_on_device
from longdecode.kernels.linear import gated_linear, linear, naive
from longdecode.kernels.linear.gpu import gated_linear_gpu, linear_gpu
from longdecode.kernels.linear.launch import MAX_ROWS, NARROW_ROWS, Launch, choose_launch, fuses_norm
from longdecode.kernels.linear.norm_gpu import norm_linear_gpu
from longdecode.kernels.rms_norm import naive as norm_naive
from longdecode.kernels.rms_norm.add_gpu import Launch as NormLaunch
from longdecode.kernels.rms_norm.add_gpu import add_rms_norm_gpu

TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
LAUNCHES = {
    "fma": Launch("fma", block_n=16, block_k=64, num_warps=1),
    "fma staged": Launch("fma", block_n=8, block_k=512, num_warps=4, num_stages=3),
    "dot": Launch("dot", block_n=16, block_k=64, num_warps=2, num_stages=3),
    "fma overlapping": Launch("fma", block_n=16, block_k=128, num_warps=2, launch_pdl=True, prefetch=2),
    "dot overlapping": Launch("dot", block_n=32, block_k=64, num_warps=1, launch_pdl=True, prefetch=2),
    "dot in parts": Launch("dot", block_n=16, block_k=64, num_warps=4, num_stages=2, k_parts=4, block_rows=8),
    "dot of many rows": Launch("dot", block_n=16, block_k=64, num_warps=4, num_stages=2, block_rows=32, splits=3),
}
SHAPES = [(1, 96, 256), (3, 37, 100), (16, 16, 300), (1, 1, 17)]


def inputs(rng: Generator, rows: int, n: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of a wider buffer ``[rows, 1, K]``, a weight that keeps outputs near one, a bias."""
    x = torch.randn(rows, 1, k + 3, generator=rng).to(dtype)[..., 3:]
    return x, (k**-0.5 * torch.randn(n, k, generator=rng)).to(dtype), torch.randn(n, generator=rng).to(dtype)


def unsplit(launch: Launch | None) -> Launch | None:
    """Return the launch without splits: gating is no sum over channels."""
    return None if launch is None else replace(launch, splits=1)


def gated(x: Tensor, gate_up: Tensor) -> Tensor:
    """``g * sigmoid(g) * u`` in float64."""
    gate, up = (x.double() @ gate_up.double().T).chunk(2, dim=-1)
    return gate / (1 + (-gate).exp()) * up


# Every launch at every shape and in every dtype, not in every combination.
PROJECTIONS = [
    (name, shape, list(TOLERANCE)[(place + number) % 3])
    for number, name in enumerate(["naive", *LAUNCHES])
    for place, shape in enumerate(SHAPES)
]


@pytest.mark.parametrize(("name", "shape", "dtype"), PROJECTIONS, ids=str)
def test_projections(rng: Generator, name: str, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Odd sizes, a row of weight that does not start at a vector's edge, bias and none, plain and gated."""
    launch = LAUNCHES.get(name)
    x, weight, bias = inputs(rng, *shape, dtype)
    where = CPU if launch is None else DEVICE
    on = [t.to(where) for t in (x, weight, bias)]
    plain = linear(*on) if launch is None else linear_gpu(*on, launch=launch)
    assert plain.dtype == dtype and plain.shape == (*x.shape[:-1], len(weight))
    close(plain, x.double() @ weight.double().T + bias.double(), TOLERANCE[dtype])
    without = linear(*on[:2]) if launch is None else linear_gpu(*on[:2], launch=launch)
    close(without, x.double() @ weight.double().T, TOLERANCE[dtype])
    gate_up = torch.cat((weight, weight.roll(1, dims=1)))
    both = (on[0], gate_up.to(where))
    got = gated_linear(*both) if launch is None else gated_linear_gpu(*both, launch=unsplit(launch))
    assert got.dtype == dtype and got.shape == plain.shape
    close(got, gated(x, gate_up), 2 * TOLERANCE[dtype])


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_any_strides(rng: Generator, launch: Launch) -> None:
    """The weight a column-major view of a larger buffer, the input a transposed one without an axis of one token."""
    weight = torch.randn(70, 2 * 38, generator=rng)[:, ::2].T
    x = torch.randn(70, 3, generator=rng).T
    assert weight.shape == (38, 70) and x.stride() == (1, 3)
    on = (x.to(DEVICE), weight.to(DEVICE))
    close(linear_gpu(*on, launch=launch), x.double() @ weight.double().T, 9 * TOLERANCE[torch.float32])
    close(gated_linear_gpu(*on, launch=unsplit(launch)), gated(x, weight), 99 * TOLERANCE[torch.float32])


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_a_row_does_not_depend_on_its_neighbours(rng: Generator, launch: Launch) -> None:
    x, weight, _ = inputs(rng, 9, 20, 200, torch.float16)
    x, weight = x.to(DEVICE), weight.to(DEVICE)
    for op, how in ((linear_gpu, launch), (gated_linear_gpu, unsplit(launch))):
        together = op(x, weight, launch=how)
        for row in (0, 8):
            alone = torch.full_like(x, float("nan"))
            alone[row] = x[row]
            assert torch.equal(op(alone, weight, launch=how)[row], together[row])


@pytest.mark.parametrize("rows", [1, 2, 9, MAX_ROWS, MAX_ROWS + 1, 2 * MAX_ROWS + 1, NARROW_ROWS + 1])
def test_the_rule_by_shape(rng: Generator, rows: int) -> None:
    """Whatever the rule picks computes the projection; it leaves float32 and many rows to torch."""
    x, weight, bias = inputs(rng, rows, 18, 300, torch.float16)
    assert (choose_launch(18, 300, rows, torch.float16) is None) == (rows > 2 * MAX_ROWS)
    assert (choose_launch(9, 300, rows, torch.float16, gated=True) is None) == (rows > NARROW_ROWS)
    assert (choose_launch(4096, 4096, rows, torch.float16) is None) == (rows > MAX_ROWS)
    assert choose_launch(65_536, 300, rows, torch.float16) is None or rows <= MAX_ROWS  # a head
    assert choose_launch(18, 300, rows, torch.float32) is None
    got = linear_gpu(*(t.to(DEVICE) for t in (x, weight, bias)))
    close(got, x.double() @ weight.double().T + bias, TOLERANCE[x.dtype])
    close(gated_linear_gpu(x.to(DEVICE), weight.to(DEVICE)), gated(x, weight), 2 * TOLERANCE[x.dtype])


class Products(TorchDispatchMode):
    """Count torch's products of matrices by name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm"):
            self.names.append(op.overloadpacket.__name__)
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize(("n", "bias", "gated"), [(5, False, False), (5, True, False), (6, False, True)])
def test_torch_reads_the_weight_once_for_last_rows_of_a_block(rng: Generator, n: int, bias: bool, gated: bool) -> None:
    """Strided ``[B, 1, K]`` is one product, not one a row; with more rows than any launch takes."""
    block = torch.randn(99, 2, 16, generator=rng).to(DEVICE)
    weight, added = torch.randn(n, 16, generator=rng).to(DEVICE), torch.randn(n, generator=rng).to(DEVICE)
    with Products() as products:
        x = block[:, -1:]
        got = gated_linear_gpu(x, weight) if gated else linear_gpu(x, weight, added if bias else None)
    assert products.names == ["addmm" if bias else "mm"]
    want = naive.gated_linear(x, weight) if gated else naive.linear(x, weight, added if bias else None)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [17, 40])
def test_a_narrow_model_s_many_rows(rng: Generator, rows: int) -> None:
    """The rule serves many outputs and many channels: plain, gated, shared out over programs."""
    wanted = Launch("dot", 64, 128, 4, 4, block_rows=32 if rows <= 32 else 64, splits=5)
    assert choose_launch(1536, 8960, rows, torch.bfloat16) == wanted
    for n, k, gate, splits in ((70, 4200, False, 8), (8200, 40, True, 1), (35, 4200, True, 1)):
        chosen = choose_launch(n, k, rows, torch.float16, gate)
        assert chosen is not None and chosen.splits == splits
        x, weight, bias = (t.to(DEVICE) for t in inputs(rng, rows, 2 * n if gate else n, k, torch.float16))
        if gate:
            close(gated_linear_gpu(x, weight), gated(x, weight).cpu(), 2 * TOLERANCE[x.dtype])
        else:
            close(linear_gpu(x, weight, bias), (x.double() @ weight.double().T + bias).cpu(), TOLERANCE[x.dtype])


@pytest.mark.parametrize("rows", [33, 70])
def test_programs_that_share_channels_leave_their_counters_at_zero(rng: Generator, rows: int) -> None:
    """A second call gives the same bits; the last split has fewer channels, or none."""
    x, weight, bias = (t.to(DEVICE) for t in inputs(rng, rows, 70, 330, torch.float16))
    want = x.double() @ weight.double().T + bias.double()
    for splits in (2, 4, 5):
        launch = Launch("dot", block_n=64, block_k=64, num_warps=4, num_stages=2, block_rows=64, splits=splits)
        first = linear_gpu(x, weight, bias, launch=launch)
        close(first, want.cpu(), TOLERANCE[x.dtype])
        assert torch.equal(linear_gpu(x, weight, bias, launch=launch), first)
        with pytest.raises(ValueError, match="splits of the channels"):
            gated_linear_gpu(x, weight, launch=launch)


def test_no_rows() -> None:
    x, weight = torch.ones(0, 8, device=DEVICE), torch.ones(4, 8, device=DEVICE)
    for launch in (None, LAUNCHES["fma"], LAUNCHES["dot"]):
        assert linear_gpu(x, weight, launch=launch).shape == (0, 4)
        assert gated_linear_gpu(x, weight, launch=launch).shape == (0, 2)


def test_naive_on_meta() -> None:
    x, weight = torch.empty(2, 1, 8, device="meta"), torch.empty(6, 8, device="meta")
    assert linear(x, weight).shape == (2, 1, 6) and gated_linear(x, weight).shape == (2, 1, 3)


@pytest.mark.parametrize(
    ("op", "weight", "bias", "says"),
    [
        (linear_gpu, torch.ones(4, 7), None, "channels"),
        (linear_gpu, torch.ones(4, 8).half(), None, "dtype"),
        (linear_gpu, torch.ones(4, 8), torch.ones(3), "bias"),
        (gated_linear_gpu, torch.ones(5, 8), None, "equal number"),
    ],
)
def test_a_misfit_is_refused(op: Callable[..., Tensor], weight: Tensor, bias: Tensor | None, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        op(torch.ones(1, 8), weight, *([] if bias is None else [bias]))


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("hidden", "ffn"), [(4096, 14336), (1536, 8960), (256, 640)])
@pytest.mark.parametrize("rows", [1, 4, 16, 64])
def test_equals_naive_in_graphs(seed: int, rows: int, hidden: int, ffn: int, dtype: torch.dtype, pdl: bool) -> None:
    """A feed-forward block, eager and replayed on fresh inputs, its kernels free to start before their predecessors."""
    shapes = ((rows, 1, hidden), (rows, 1, hidden), (hidden,), (2 * ffn, hidden), (hidden, ffn))
    delta, residual, norm, gate_up, down = random_on_device(seed, *shapes, dtype=dtype)
    gate_up, down = gate_up * hidden**-0.5, down * ffn**-0.5

    def launch(n: int, k: int, gate: bool = False) -> Launch | None:
        chosen = choose_launch(n, k, rows, dtype, gate)
        return chosen and replace(chosen, launch_pdl=pdl, prefetch=2)

    def fast() -> Tensor:
        normed, total = add_rms_norm_gpu(delta, residual, norm, 1e-5, launch=NormLaunch(8, launch_pdl=pdl))
        middle = gated_linear_gpu(normed, gate_up, launch=launch(ffn, hidden, True))
        return total + linear_gpu(middle, down, launch=launch(hidden, ffn))

    def reference() -> Tensor:
        normed, total = norm_naive.add_rms_norm(delta, residual, norm, 1e-5)
        return total + F.linear(naive.gated_linear(normed, gate_up), down)

    def compare(got: Tensor) -> None:
        torch.testing.assert_close(got, reference(), atol=2 * TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype])

    compare(fast())
    graph, found = captured(fast)
    for fresh in range(3):
        new_delta, new_residual = random_on_device(seed + 1 + fresh, *shapes[:2], dtype=dtype)
        delta.copy_(new_delta)
        residual.copy_(new_residual)
        graph.replay()
        compare(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("width", "channels"), [(7, 96), (33, 520)], ids=str)
@pytest.mark.parametrize("gated", [False, True])
def test_one_row_is_normed_within(rng: Generator, dtype: torch.dtype, width: int, channels: int, gated: bool) -> None:
    """The projection and the total are those of the separate ops, with and without something to add."""
    residual, delta = (torch.randn(1, 1, channels, generator=rng).to(dtype) for _ in range(2))
    norm = (1 + 0.3 * torch.randn(channels, generator=rng)).to(dtype)
    weight = (torch.randn(width * (1 + gated), channels, generator=rng) * channels**-0.5).to(dtype)
    bias = None if gated else torch.randn(width, generator=rng).to(dtype)
    for added in (delta, None):
        on = [None if x is None else x.to(DEVICE) for x in (added, residual, norm, weight, bias)]
        out, total = norm_linear_gpu(*on[:3], 1e-3, *on[3:], gated)
        want, want_total = naive.norm_linear(added, residual, norm, 1e-3, weight, bias, gated)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(out.cpu(), want, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(total.cpu(), want_total, atol=tolerance, rtol=tolerance)
        assert added is not None or total.data_ptr() == on[1].data_ptr()


def test_only_one_row_of_few_channels_is_normed_by_its_projection() -> None:
    assert fuses_norm(4096, 1, torch.bfloat16)
    assert not fuses_norm(4097, 1, torch.bfloat16) and not fuses_norm(4096, 2, torch.bfloat16)
    assert not fuses_norm(64, 1, torch.float32)


@pytest.mark.parametrize(("n", "k", "gated"), [(2048, 1536, False), (1536, 8960, False), (8960, 1536, True)])
def test_a_small_model_s_projections_reach_most_multiprocessors(n: int, k: int, gated: bool) -> None:
    """Widths of Qwen2.5-1.5B, one row: no launch leaves more than a third of 132 multiprocessors without a program."""
    launch = choose_launch(n, k, 1, torch.bfloat16, gated)
    assert launch is not None and -(-n // launch.block_n) >= 88
