"""Quantised keys and values: the formats against plain loops, the kernels against the formats."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from kernel_inputs import DEVICE, check_sparse, lists_of_blocks, on_device, poison_past, ragged, rotation, same, whole
from longdecode.kernels.decode_attention.naive import decode_attention
from longdecode.kernels.page_minmax import build_page_minmax
from longdecode.kernels.quantised_kv import Fp8Layer, Int4Layer, fill_fp8, fill_int4, naive, new_fp8, new_int4
from longdecode.kernels.quantised_kv.append_gpu import append_quantised_gpu
from longdecode.kernels.quantised_kv.fp8_gpu import attend_fp8_gpu
from longdecode.kernels.quantised_kv.int4_gpu import attend_int4_gpu
from longdecode.kernels.quantised_kv.launch import QuantisedLaunch
from longdecode.kernels.sparse_decode_attention import EVERYTHING
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu
from longdecode.kernels.sparse_decode_attention.naive import sparse_decode_attention as naive_sparse

INTERPRETED = DEVICE.type == "cpu"
TOLERANCE = {torch.float32: 2e-4, torch.float16: 8e-3, torch.bfloat16: 3e-2}
FILL = {Fp8Layer: partial(fill_fp8, by_channel=True), Int4Layer: fill_int4}
ATTEND = {Fp8Layer: attend_fp8_gpu, Int4Layer: attend_int4_gpu}


def layer_of(
    kind: type, batch: int, kv: int, dim: int, capacity: int, dtype: torch.dtype, block: int = 128
) -> Fp8Layer | Int4Layer:
    """Storage with room for ``capacity`` tokens, full of what must not be read."""
    size = (batch, kv), capacity, dim, dtype, torch.device("cpu")
    layer: Fp8Layer | Int4Layer = new_fp8(*size, block) if kind is Fp8Layer else new_int4(*size)
    for part in layer:
        part.fill_(torch.nan if part.is_floating_point() else 255)
    return layer


def filled(
    rng: Generator,
    kind: type,
    lengths: list[int],
    kv: int,
    dim: int,
    capacity: int,
    dtype: torch.dtype,
    block: int = 128,
) -> tuple[Fp8Layer | Int4Layer, Tensor, Tensor]:
    """Storage that holds random keys and values, which are returned too, NaN past the lengths."""
    k, v = (torch.randn(len(lengths), kv, max(lengths), dim, generator=rng).to(dtype) for _ in range(2))
    k *= torch.linspace(0.05, 1.0, dim)  # channels of unlike size
    poison_past(torch.tensor(lengths), k, v)
    layer = layer_of(kind, len(lengths), kv, dim, capacity, dtype, block)
    FILL[kind](layer, k, v, torch.tensor(lengths))
    return layer, k, v


def read(layer: Fp8Layer | Int4Layer, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Keys and values by position that the codes stand for."""
    return naive.from_fp8(layer) if isinstance(layer, Fp8Layer) else naive.from_int4(layer, torch.tensor(lengths))


def test_the_codes_of_e4m3_are_the_nearest_numbers_of_the_format() -> None:
    """Micikevicius et al. 2022, table 1: largest 448, smallest 2^-9, three bits behind the leading one."""
    numbers = torch.tensor([0.0, 448.0, 1e9, -1e9, 2**-9, 2**-10, 3 * 2**-10, 1.0, 1.0625, 1.1875, 17.0, 19.0])
    wanted = [0.0, 448.0, 448.0, -448.0, 2**-9, 0.0, 2**-8, 1.0, 1.0, 1.25, 16.0, 20.0]
    assert naive.to_fp8(numbers, torch.ones(())).view(torch.float8_e4m3fn).float().tolist() == wanted


@pytest.mark.parametrize("lengths", [[1, 5], [127, 64], [128, 129], [200, 63], [330, 256]], ids=str)
@pytest.mark.parametrize("dim", [16, 96])
def test_four_bits_are_what_a_loop_over_groups_gives(rng: Generator, lengths: list[int], dim: int) -> None:
    layer, k, v = filled(rng, Int4Layer, lengths, 2, dim, 331, torch.float64)
    got_k, got_v = read(layer, lengths)
    for row, length in enumerate(lengths):
        packed = max(0, length // 64 - 1) * 64
        assert got_k[row, :, packed:length].equal(k[row, :, packed:length])
        assert got_v[row, :, packed:length].equal(v[row, :, packed:length])
        for head in range(2):
            for first in range(0, packed, 64):
                for channel in range(0, dim, 5):
                    check_run(got_k[row, head, first : first + 64, channel], k[row, head, first : first + 64, channel])
                for run in range(0, dim, 64):
                    for token in range(first, first + 64, 7):
                        check_run(got_v[row, head, token, run : run + 64], v[row, head, token, run : run + 64])


def check_run(got: Tensor, exact: Tensor) -> None:
    """The numbers of a run lie on at most 16 levels from its least to its largest, each on the nearest."""
    step = float(exact.max() - exact.min()) / 15
    assert len(got.unique()) <= 16 and float((got - exact).abs().max()) <= step * 0.51 + 2e-3
    assert abs(float(got.max() - exact.max())) <= 2e-3 + step / 50 and abs(float(got.min() - exact.min())) <= 2e-3


@pytest.mark.parametrize("by_channel", [True, False])
def test_eight_bits_scale_with_the_prompt_of_their_row_and_head(rng: Generator, by_channel: bool) -> None:
    layer = layer_of(Fp8Layer, 2, 2, 20, 200, torch.float64)
    k, v = (torch.randn(2, 2, 150, 20, generator=rng).double() for _ in range(2))
    k[..., 3], k[..., 4] = k[..., 3] + 300, 0  # a bias, as some models' keys have it
    fill_fp8(layer, k, v, torch.tensor([150, 3]), by_channel=by_channel)
    for part, exact, scale in zip(naive.from_fp8(layer), (k, v), (layer.k_scale, layer.v_scale), strict=True):
        for row, length in enumerate([150, 3]):
            known = exact[row, :, :length].abs()
            own = known.amax(dim=1) if exact is k and by_channel else known.amax(dim=(1, 2))[:, None]
            want = torch.where(own > 0, own / (224 if own.shape[1] > 1 else 448), known.amax(dim=(1, 2))[:, None] / 448)
            torch.testing.assert_close(scale[row].view(2, -1), want.expand(2, scale[row].numel() // 2))
            near = known / 16 + 1e-3 * own[:, None]
            assert bool(((part[row, :, :length] - exact[row, :, :length]).abs() <= near).all())


@pytest.mark.parametrize(
    ("lengths", "group", "dim", "dtype"),
    [([700, 1, 64], 3, 32, torch.float32), ([300, 128, 131], 8, 64, torch.bfloat16),
     ([129, 400, 2], 1, 128, torch.float16)], ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", FILL)
def test_attention_is_that_of_the_numbers_the_codes_stand_for(
    rng: Generator, kind: type, lengths: list[int], group: int, dim: int, dtype: torch.dtype
) -> None:
    layer, *_ = filled(rng, kind, lengths, 2, dim, max(lengths) + 9, dtype)
    q = (3 * torch.randn(len(lengths), 2 * group, 1, dim, generator=rng)).to(dtype)
    many = torch.tensor(lengths)
    k, v = (part.double() for part in read(layer, lengths))
    want = decode_attention(q.double(), k, v, many)[0]
    on_device = type(layer)(*(part.to(DEVICE) for part in layer))
    # Four-bit weights meet 64 + code in float16: a tenth of what the codes themselves are off by.
    near = 3e-2 if kind is Int4Layer and dtype != torch.float32 else TOLERANCE[dtype]
    for splits in (None, 3, 40):
        launch = splits and QuantisedLaunch(16 if kind is Fp8Layer else 8, splits, 2)
        seen = torch.zeros(len(lengths), dtype=torch.int64, device=DEVICE)
        out = ATTEND[kind](on_device, q.to(DEVICE), many.to(DEVICE), seen, launch=launch)
        assert seen.tolist() == [2 * length for length in lengths]
        torch.testing.assert_close(out.cpu().double(), want, atol=near, rtol=near)
    plain = naive.attend_quantised(layer, q, many)
    torch.testing.assert_close(plain.double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("shape", "block", "score_block", "dtype"),
    [((2, 2, 3, 32, 150), 16, None, torch.float32), ((3, 2, 4, 64, 200), 64, 64, torch.bfloat16),
     ((2, 1, 7, 80, 70), 12, None, torch.float16), ((2, 2, 2, 16, 90), 1, 1, torch.float32),
     ((2, 2, 6, 128, 300), 16, None, torch.bfloat16)], ids=str,
)  # fmt: skip
@pytest.mark.parametrize("op", [naive_sparse, sparse_decode_attention_gpu], ids=["naive", "triton"])
def test_listed_blocks_of_codes_are_read(
    rng: Generator, op: Any, shape: tuple[int, ...], block: int, score_block: int | None, dtype: torch.dtype
) -> None:
    """Lists of everything, of some, of none; rows that end in a page; NaN behind the last page's values."""
    batch, kv, *_, size, within = *shape, math.gcd(block, 16)
    q, k, v, lengths = ragged(rng, *shape, dtype=dtype)
    layer = layer_of(Fp8Layer, batch, kv, shape[3], size, dtype, within)
    fill_fp8(layer, k, v, lengths, by_channel=True)
    poison_past(lengths, *(numbers := [part[:, :, :size] for part in naive.from_fp8(layer)]))
    for row, length in enumerate(lengths.tolist()):
        for part, first in ((layer.k, length), (layer.v, -(-length // within))):
            part.view(torch.uint8)[row, :, first:] = 0x7F
    indices, counts = lists_of_blocks(rng, batch, kv, -(-size // block), 4, [EVERYTHING, 4, 0, 3][: batch * kv])
    codes = Fp8Layer(*on_device(*layer))

    def attend(q: Tensor, *given: Any, **plan: Any) -> tuple[Tensor, Tensor]:
        plan |= {"k_scale": codes.k_scale, "v_scale": codes.v_scale, "uneven": score_block is not None}
        return op(q, codes.k[:, :, :size], codes.v, *given[2:], **plan)

    scored = {} if score_block is None else {"score_rows": range(kv), "score_block": score_block}
    check_sparse(attend, (q, *numbers, lengths), indices, counts, block, **scored)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("kind", "block"), [(Fp8Layer, 128), (Fp8Layer, 16), (Int4Layer, 128)])
def test_tokens_are_stored_as_a_prompt(rng: Generator, kind: type, block: int, dtype: torch.dtype, norms: bool) -> None:
    """Over the end of a group, row by row at another place; the kernel's codes are the definition's, bounds theirs."""
    lengths, dim, heads, kv = [126, 190, 62], 32, 4, 2
    both = [filled(Generator().manual_seed(1), kind, lengths, kv, dim, 300, dtype, block)[0] for _ in range(2)]
    if kind is Int4Layer:
        for layer in both:  # what a step packs is not there yet
            for row, length in enumerate(lengths):
                for part in layer[:6]:
                    part[row, :, max(0, length // 64 - 1) :] = 15
    plain, fast = both[0], type(both[1])(*(part.to(DEVICE) for part in both[1]))
    sized = [{"bounds": build_page_minmax(layer.k, whole(lengths).to(layer.k.device), 16), "page_size": 16}
             if block == 16 else {} for layer in (plain, fast)]  # fmt: skip
    weights = [torch.randn(dim, generator=rng).to(dtype) if norms else None for _ in range(2)]
    for step in range(3):
        q, k, v = (torch.randn(3, n, 1, dim, generator=rng).to(dtype) for n in (heads, kv, kv))
        _, cos, sin = rotation(rng, 3, 1, dim)
        positions = torch.tensor(lengths) + step
        options = {"q_norm": weights[0], "k_norm": weights[1], "eps": 1e-5}
        want = naive.append_quantised(plain, q, k, v, cos, sin, positions, **options, **sized[0])
        moved = [None if x is None else x.to(DEVICE) for x in weights]
        got = append_quantised_gpu(
            fast, *(x.to(DEVICE) for x in (q, k, v, cos, sin, positions)), q_norm=moved[0], k_norm=moved[1], eps=1e-5,
            **sized[1],
        )  # fmt: skip
        torch.testing.assert_close(got.cpu().double(), want.double(), atol=2e-3, rtol=2e-3)
    now = [length + 3 for length in lengths]
    for layer, given in zip((plain, fast), sized, strict=True):
        if given:
            same(given["bounds"], build_page_minmax(layer.k, whole(now).to(layer.k.device), 16))
            assert layer.v[1, :, 12].float().isfinite().all() and layer.v[1, :, 13].float().isnan().all()
    for mine, truth in zip(read(type(fast)(*(x.cpu() for x in fast)), now), read(plain, now), strict=True):
        for row, length in enumerate(now):
            a, b = mine[row, :, :length].double(), truth[row, :, :length].double()
            wrong = (a - b).abs() > 2e-3
            if INTERPRETED and kind is Fp8Layer:
                # Triton's interpreter halves what rounds up to a power of two where a number becomes e4m3, and cuts
                # off what becomes float16, which may be a code less.
                wrong &= ((a - b / 2).abs() > 2e-3) & ((a - b).abs() > b.abs() / 7)
            assert not bool(wrong.any())
            assert float(((a - b).abs() > 2e-3)[:, -3:].double().mean()) < 0.1
