"""Triton kernels against float64: in Triton's interpreter where there is no GPU, on the device where there is one."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from longdecode.evals.provenance import collect
from longdecode.kernels import dispatch
from longdecode.kernels.decode_attention import naive as dense_naive
from longdecode.kernels.decode_attention.gpu import decode_attention_gpu
from longdecode.kernels.sparse_decode_attention import naive as sparse_naive
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
NAN = float("nan")
SHARPNESS = 3.0
"""Factor on the queries: outputs of plain random ones are averages near zero, which any tolerance forgives."""


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(got.cpu().double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def attend(q: Tensor, k: Tensor, v: Tensor, tokens: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of rows ``[..., D]`` over the chosen tokens of one KV head in float64."""
    if not len(tokens):
        return torch.zeros(q.shape, dtype=torch.float64), torch.full(q.shape[:-1], -math.inf, dtype=torch.float64)
    scores = scale * q.double() @ k[tokens].double().T
    return scores.softmax(-1) @ v[tokens].double(), scores.logsumexp(-1)


def ragged(
    rng: torch.Generator, batch: int, kv: int, group: int, dim: int, size: int, dtype: torch.dtype, rows: int = 1
):
    """Queries, a cache with NaN past random lengths, and the lengths: one row full, the last empty or of one token."""
    q = (SHARPNESS * torch.randn(batch, kv * group, rows, dim, generator=rng)).to(dtype)
    k, v = (torch.randn(batch, kv, size, dim, generator=rng).to(dtype) for _ in range(2))
    lengths = torch.randint(1, size + 1, (batch,), generator=rng)
    lengths[-1] = int(torch.randint(0, 2, (), generator=rng))
    lengths[0] = size
    for row, length in enumerate(lengths.tolist()):
        k[row, :, length:], v[row, :, length:] = NAN, NAN
    return q, k, v, lengths


def check_dense(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float | None = None, **plan: int) -> None:
    out, lse = decode_attention_gpu(*(x.to(DEVICE) for x in (q, k, v, lengths)), scale=scale, **plan)
    assert out.dtype == q.dtype and out.shape == q.shape and lse.dtype == torch.float32
    group = q.shape[1] // k.shape[1]
    for b, length in enumerate(lengths.tolist()):
        for h in range(q.shape[1]):
            tokens = torch.arange(length)
            want, want_lse = attend(q[b, h], k[b, h // group], v[b, h // group], tokens, scale or q.shape[-1] ** -0.5)
            close(out[b, h], want, q.dtype)
            torch.testing.assert_close(lse[b, h].cpu().double(), want_lse, atol=1e-4, rtol=1e-4)


# batch, KV heads, group, head dimension, capacity, query rows: each of the odd sizes once.
DENSE = [
    (1, 1, 1, 32, 1, 1),
    (2, 2, 2, 64, 15, 1),
    (3, 1, 4, 128, 63, 1),
    (2, 2, 8, 32, 257, 1),
    (1, 1, 1, 128, 257, 3),
    (2, 1, 7, 80, 130, 5),
    (1, 2, 16, 20, 200, 1),
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", DENSE, ids=str)
def test_decode_attention(rng: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    *sizes, rows = shape
    check_dense(*ragged(rng, *sizes, dtype, rows=rows))


@pytest.mark.parametrize("splits", [1, 3, 33])
def test_the_result_does_not_hang_on_the_splits(rng: torch.Generator, splits: int) -> None:
    """33 splits of 257 tokens leave some without a token: what their scratch holds must not show."""
    check_dense(*ragged(rng, 2, 1, 2, 32, 257, torch.float32), scale=0.5, splits=splits)


def test_decode_attention_takes_any_strides(rng: torch.Generator) -> None:
    q, k, v, lengths = ragged(rng, 2, 2, 2, 32, 40, torch.float32, rows=2)
    apart = q.transpose(1, 2).contiguous().transpose(1, 2), k.transpose(2, 3).contiguous().transpose(2, 3)
    check_dense(*apart, v.transpose(1, 2).contiguous().transpose(1, 2), lengths)


def test_lengths_past_the_capacity_count_as_the_capacity(rng: torch.Generator) -> None:
    q, k, v, _ = ragged(rng, 1, 1, 2, 32, 40, torch.float32)
    full = [x.to(DEVICE) for x in (q, k, v)]
    lists = torch.arange(3, device=DEVICE).view(1, 1, 3), torch.tensor([[3]], device=DEVICE)
    want, _ = decode_attention_gpu(*full, torch.tensor([40], device=DEVICE))
    over = torch.tensor([41], device=DEVICE, dtype=torch.int32)
    torch.testing.assert_close(decode_attention_gpu(*full, over)[0], want)
    got, _ = sparse_decode_attention_gpu(*full, *lists, block_size=16, lengths=over)
    torch.testing.assert_close(got, want)


def test_a_nan_within_the_length_reaches_the_output(rng: torch.Generator) -> None:
    q, k, v, _ = ragged(rng, 2, 1, 2, 32, 20, torch.float32)
    k[0, 0, 3] = NAN
    k[1], v[1] = 1.0, 1.0
    out, lse = decode_attention_gpu(*(x.to(DEVICE) for x in (q, k, v)), torch.tensor([20, 20], device=DEVICE))
    assert out[0].isnan().all() and lse[0].isnan().all() and out[1].isfinite().all()


def test_decode_attention_refuses_mixed_dtypes(rng: torch.Generator) -> None:
    q, k, v, lengths = ragged(rng, 1, 1, 1, 32, 4, torch.float32)
    with pytest.raises(ValueError, match="one dtype"):
        decode_attention_gpu(q.half(), k, v, lengths)


def lists_of_blocks(
    rng: torch.Generator, batch: int, lists: int, blocks: int, width: int, counts: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Distinct random blocks in random order, with entries past each count that point far outside the cache."""
    order = torch.rand(batch, lists, blocks, generator=rng).argsort(-1)[..., :width].contiguous()
    number = torch.randint(0, width + 1, (batch, lists), generator=rng)
    if counts is not None:
        number.view(-1)[: len(counts)] = torch.tensor(counts)
    order[torch.arange(width) >= number[..., None]] = 1 << 40
    return order, number


def check_sparse(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, indices: Tensor, counts: Tensor, block: int, **plan: int
) -> None:
    on_device = [x.to(DEVICE) for x in (q, k, v, indices, counts)]
    out, lse = sparse_decode_attention_gpu(*on_device, block_size=block, lengths=lengths.to(DEVICE), **plan)
    assert out.dtype == q.dtype and out.shape == q.shape and lse.dtype == torch.float32
    group, served = q.shape[1] // k.shape[1], q.shape[1] // indices.shape[1]
    for b, length in enumerate(lengths.tolist()):
        for h in range(q.shape[1]):
            blocks = indices[b, h // served, : counts[b, h // served]]
            tokens = (blocks[:, None] * block + torch.arange(block)).flatten()
            tokens = tokens[tokens < length]
            want, want_lse = attend(q[b, h], k[b, h // group], v[b, h // group], tokens, q.shape[-1] ** -0.5)
            close(out[b, h], want, q.dtype)
            torch.testing.assert_close(lse[b, h].cpu().double(), want_lse, atol=1e-4, rtol=1e-4)


# batch, KV heads, group, head dimension, capacity, block, one list a query head
SPARSE = [
    (1, 1, 1, 32, 1, 16, False),
    (2, 2, 4, 64, 15, 1, False),
    (2, 1, 8, 128, 63, 16, False),
    (2, 2, 2, 32, 257, 16, True),
    (2, 2, 2, 32, 257, 64, False),
    (1, 1, 4, 64, 257, 1, True),
    (2, 1, 7, 80, 150, 3, False),
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SPARSE, ids=str)
def test_sparse_decode_attention(rng: torch.Generator, shape: tuple, dtype: torch.dtype) -> None:
    *sizes, block, per_query_head = shape
    batch, kv, group, _, size = sizes
    blocks = -(-size // block)
    width = max(1, blocks * 3 // 4)
    lists = kv * group if per_query_head else kv
    indices, counts = lists_of_blocks(rng, batch, lists, blocks, width, [width])
    check_sparse(*ragged(rng, *sizes, dtype), indices, counts, block)


@pytest.mark.parametrize("splits", [1, 2, 33])
def test_unequal_lists_share_one_launch(rng: torch.Generator, splits: int) -> None:
    """One head reads everything, one a block, one nothing, one only blocks past the length."""
    q, k, v, _ = ragged(rng, 1, 4, 2, 32, 200, torch.float32)
    lengths = torch.tensor([170])
    k[0, :, 170:], v[0, :, 170:] = NAN, NAN
    indices, counts = lists_of_blocks(rng, 1, 4, 13, 13, [13, 1, 0, 2])
    indices[0, 3, :2] = torch.tensor([12, 11])
    check_sparse(q, k, v, lengths, indices, counts, 16, splits=splits)


def test_sparse_takes_expanded_lists(rng: torch.Generator) -> None:
    q, k, v, lengths = ragged(rng, 3, 2, 2, 32, 50, torch.float32)
    counts = -(-lengths // 16)[:, None].expand(3, 2)
    check_sparse(q, k, v, lengths, torch.arange(4).expand(3, 2, 4), counts, 16)


def test_sparse_refuses_what_it_cannot_mean(rng: torch.Generator) -> None:
    q, k, v, lengths = ragged(rng, 1, 2, 2, 32, 8, torch.float32)
    three, one = torch.zeros(1, 3, 1, dtype=torch.int64), torch.zeros(1, 2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="3 index lists"):
        sparse_decode_attention_gpu(q, k, v, three, three[..., 0], block_size=1, lengths=lengths)
    with pytest.raises(ValueError, match="one query row"):
        sparse_decode_attention_gpu(q.expand(1, 4, 2, 32), k, v, one, one[..., 0], block_size=1, lengths=lengths)


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    assert dispatch.kernel_path(cuda, torch.bfloat16) == "triton"
    assert dispatch.kernel_path(cuda, torch.float64) == "naive"
    assert dispatch.kernel_path(cpu, torch.bfloat16) == "naive"
    monkeypatch.setenv(dispatch.VARIABLE, "naive")
    assert dispatch.kernel_path(cuda, torch.bfloat16) == "naive"
    monkeypatch.setenv(dispatch.VARIABLE, "fast")
    with pytest.raises(dispatch.KernelChoiceError, match="'fast'"):
        dispatch.kernel_path(cpu)


def test_provenance_names_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    found = collect(code="", model="", data="", device=torch.device("cpu"), dtype=torch.float32)
    assert found.versions["kernels"] == "naive"


def test_kernels_compile_for_hopper_without_spills() -> None:
    """In a process of its own: functions decorated under the interpreter cannot be compiled."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    script = Path(__file__).with_name("compile_for_hopper.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 128])
@pytest.mark.parametrize("size", [1, 15, 63, 1000, 2047, 70_000])
@pytest.mark.parametrize(
    ("batch", "kv", "group", "dim"), [(1, 8, 4, 128), (5, 4, 2, 32), (3, 2, 16, 64), (2, 3, 1, 96)]
)
def test_dense_equals_naive_on_the_device(
    seed: int, batch: int, kv: int, group: int, dim: int, size: int, rows: int, dtype: torch.dtype
) -> None:
    q, k, v, lengths = on_the_device(seed, batch, kv, group, dim, size, dtype, rows)
    close_on_the_device(decode_attention_gpu(q, k, v, lengths), dense_naive.decode_attention(q, k, v, lengths))


def on_the_device(
    seed: int, batch: int, kv: int, group: int, dim: int, size: int, dtype: torch.dtype, rows: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As ``ragged``, made on the device."""
    rng = torch.Generator("cuda").manual_seed(seed)
    q = (2 * SHARPNESS * torch.randn(batch, kv * group, rows, dim, generator=rng, device="cuda")).to(dtype)
    k, v = (torch.randn(batch, kv, size, dim, generator=rng, device="cuda").to(dtype) for _ in range(2))
    lengths = torch.randint(0, size + 1, (batch,), generator=rng, device="cuda")
    lengths[0] = size
    past = (torch.arange(size, device="cuda") >= lengths[:, None])[:, None, :, None]
    return q, k.masked_fill_(past, NAN), v.masked_fill_(past, NAN), lengths


def close_on_the_device(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor]) -> None:
    """Outputs within the dtype's rounding; the log-sum-exp, float32 in both, always closely."""
    tolerance = max(1e-4, TOLERANCE[want[0].dtype])
    torch.testing.assert_close(got[0], want[0], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(got[1], want[1], atol=1e-3, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("per_query_head", [False, True])
@pytest.mark.parametrize(("size", "block"), [(63, 1), (1000, 16), (2047, 64), (70_000, 16), (70_000, 1)])
@pytest.mark.parametrize(
    ("batch", "kv", "group", "dim"), [(1, 8, 4, 128), (5, 4, 2, 32), (3, 2, 16, 64), (2, 3, 1, 96)]
)
def test_sparse_equals_naive_on_the_device(
    seed: int,
    batch: int,
    kv: int,
    group: int,
    dim: int,
    size: int,
    block: int,
    per_query_head: bool,
    dtype: torch.dtype,
) -> None:
    q, k, v, lengths = on_the_device(seed, batch, kv, group, dim, size, dtype)
    blocks = -(-size // block)
    lists = kv * group if per_query_head else kv
    rng = torch.Generator().manual_seed(seed)
    indices, counts = (x.cuda() for x in lists_of_blocks(rng, batch, lists, blocks, min(blocks, 4096 // block)))
    got = sparse_decode_attention_gpu(q, k, v, indices, counts, block_size=block, lengths=lengths)
    listed = torch.arange(indices.shape[2], device="cuda") < counts[..., None]
    inside = torch.where(listed, indices, 0)
    want = sparse_naive.sparse_decode_attention(q, k, v, inside, counts, block_size=block, lengths=lengths)
    close_on_the_device(got, want)


@pytest.mark.gpu
def test_a_captured_graph_follows_lengths_and_lists(seed: int) -> None:
    """One capture, replayed after lengths, lists and counts changed in place, equals the eager results bit by bit."""
    q, k, v, lengths = on_the_device(seed, 2, 4, 4, 128, 3000, torch.bfloat16)
    k.nan_to_num_(), v.nan_to_num_()
    indices, counts = (x.cuda() for x in lists_of_blocks(torch.Generator().manual_seed(seed), 2, 4, 188, 40))

    def both() -> tuple[Tensor, ...]:
        sparse = sparse_decode_attention_gpu(q, k, v, indices, counts, block_size=16, lengths=lengths)
        return *decode_attention_gpu(q, k, v, lengths), *sparse

    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    for trial in range(3):
        lengths.random_(0, 3001)
        new_indices, new_counts = lists_of_blocks(torch.Generator().manual_seed(seed + trial), 2, 4, 188, 40)
        indices.copy_(new_indices), counts.copy_(new_counts)
        for tensor in captured:
            tensor.fill_(NAN)
        graph.replay()
        for got, want in zip(captured, both(), strict=True):
            assert got.equal(want)
