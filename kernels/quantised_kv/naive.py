"""Two formats of quantised keys and values in plain torch: what the kernels are held to."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from longdecode.kernels.decode_attention.naive import decode_attention
from longdecode.kernels.layout import accumulator, before
from longdecode.kernels.page_minmax.naive import PageBounds, update_page_minmax
from longdecode.kernels.rms_norm.naive import rms_norm
from longdecode.kernels.rope.naive import rotate

V_BLOCK = 128
"""Tokens of a block of eight-bit values that are read whole; see ``Fp8Layer``."""
LISTED_V_BLOCK = 16
"""The same at most where blocks are chosen: 16 bytes of a channel are one load."""
GROUP = 64
"""Tokens that share a scale by channel of four-bit keys, and channels that share one by token of four-bit values."""
RECENT = 2 * GROUP
"""Tokens that four-bit storage holds exactly at most; ``GROUP`` at least."""
FP8_MAX = 448.0
HEADROOM = 2.0
"""Eight-bit channels of keys leave room for numbers twice the prompt's largest: rotation mixes pairs of channels."""
_CODES = 16


class Fp8Layer(NamedTuple):
    """One layer in e4m3: ``k`` ``[B, Hkv, N * V, D]``, ``v`` ``[B, Hkv, N, D, V]``.

    A number is its code times a float32 scale: ``k_scale`` ``[B, Hkv, D]`` by channel, ``v_scale`` ``[B, Hkv]``. Values
    lie channel by channel in blocks of ``V`` tokens: a product over tokens then loads whole words. ``V`` is 128 where
    everything is read; where blocks are chosen it divides them, so that none is read for the sake of another, and no
    code behind a row's last token is NaN in the block of that token.
    """

    k: Tensor
    v: Tensor
    k_scale: Tensor
    v_scale: Tensor


class Int4Layer(NamedTuple):
    """One layer in four bits, a group of 64 tokens after the other, and the latest 64 to 127 tokens exactly.

    ``k`` ``[B, Hkv, G, 64, D / 2]`` uint8: channel ``c`` in the low and ``c + D / 2`` in the high half of byte ``c``;
    ``k_scale`` and ``k_least`` ``[B, Hkv, G, D]`` float16. ``v`` ``[B, Hkv, G, D, 32]`` uint8: token ``j`` in the low
    and ``j + 32`` in the high half; ``v_scale`` and ``v_least`` ``[B, Hkv, G, ceil(D / 64), 64]`` float16. A number is
    ``code * scale + least``. The token at position ``p`` stands in slot ``p % 128`` of ``recent_k`` and ``recent_v``
    ``[B, Hkv, 128, D]``; of ``n`` tokens the first ``64 * max(0, n // 64 - 1)`` are read from the groups.

    Source: Liu et al. 2024, KIVI (arXiv 2402.02750), section 3.2: keys by channel, values by token, a recent window.
    """

    k: Tensor
    k_scale: Tensor
    k_least: Tensor
    v: Tensor
    v_scale: Tensor
    v_least: Tensor
    recent_k: Tensor
    recent_v: Tensor


def new_fp8(
    lists: tuple[int, int], capacity: int, dim: int, dtype: torch.dtype, device: torch.device, block: int = V_BLOCK
) -> Fp8Layer:
    """Return storage of one layer for ``lists`` ``(B, Hkv)``, whose scales are 1 until a prompt sets them.

    Args:
        lists: rows and KV heads.
        capacity: tokens.
        dim: channels of a head.
        dtype: of the numbers that are stored.
        device: where.
        block: tokens of a block of values.
    """
    blocks = -(-capacity // block)
    codes = (torch.zeros(*lists, blocks * block * dim, dtype=torch.uint8, device=device) for _ in range(2))
    k, v = (part.view(torch.float8_e4m3fn) for part in codes)
    scales = (torch.ones(size, dtype=accumulator(dtype), device=device) for size in ((*lists, dim), lists))
    return Fp8Layer(k.unflatten(2, (-1, dim)), v.unflatten(2, (blocks, dim, block)), *scales)


def new_int4(lists: tuple[int, int], capacity: int, dim: int, dtype: torch.dtype, device: torch.device) -> Int4Layer:
    """Return uninitialised storage of one layer; arguments as in ``new_fp8``."""
    groups, runs = max(1, capacity // GROUP), -(-dim // GROUP)
    sizes = ((groups, GROUP, dim // 2), (groups, dim), (groups, dim),
             (groups, dim, GROUP // 2), (groups, runs, GROUP), (groups, runs, GROUP))  # fmt: skip
    kinds = (torch.uint8, torch.float16, torch.float16) * 2
    stored = [torch.empty(*lists, *size, dtype=kind, device=device) for size, kind in zip(sizes, kinds, strict=True)]
    return Int4Layer(*stored, *(torch.empty(*lists, RECENT, dim, dtype=dtype, device=device) for _ in range(2)))


def packed_tokens(lengths: Tensor) -> Tensor:
    """Return how many of the first tokens four-bit rows of these lengths read from their groups."""
    return (lengths // GROUP - 1).clamp(min=0) * GROUP


def to_fp8(x: Tensor, scale: Tensor) -> Tensor:
    """Return the nearest e4m3 codes of ``x / scale``, ties to even, largest where it is beyond; as uint8."""
    scaled = (x.to(scale.dtype) / scale).clamp(-FP8_MAX, FP8_MAX)
    return scaled.float().to(torch.float8_e4m3fn).view(torch.uint8)


def fill_fp8(layer: Fp8Layer, keys: Tensor, values: Tensor, lengths: Tensor, *, by_channel: bool) -> None:
    """Set the scales by a prompt's largest numbers and store it; row by row, which bounds the memory it takes.

    Args:
        layer: written.
        keys: ``[B, Hkv, S, D]``, the slot of a token is its position.
        values: ``[B, Hkv, S, D]``.
        lengths: ``[B]`` int64; what stands past them does not matter.
        by_channel: a key's channel has the scale of its own largest number, with headroom; else of its KV head's.
    """
    tokens = min(keys.shape[2], layer.k.shape[2])
    stored = before(lengths, tokens)[:, None, :, None]
    codes_k, codes_v = (part.view(torch.uint8) for part in (layer.k, layer.v))
    for row in range(keys.shape[0]):
        known_k, known_v = (torch.where(stored[row], part[row, :, :tokens], 0.0) for part in (keys, values))
        layer.v_scale[row] = fp8_scale(known_v.abs().amax(dim=(1, 2)).to(layer.v_scale.dtype))
        largest = known_k.abs().amax(dim=1).to(layer.k_scale.dtype)
        whole = fp8_scale(largest.amax(dim=1, keepdim=True))
        own = torch.where(largest > 0, fp8_scale(largest) * HEADROOM, whole) if by_channel else whole
        layer.k_scale[row] = own.expand_as(largest)
        codes_k[row, :, :tokens] = to_fp8(known_k, layer.k_scale[row, :, None])
        codes = to_fp8(known_v, layer.v_scale[row, :, None, None])
        block = layer.v.shape[4]
        blocks = pad(codes, (0, 0, 0, -tokens % block)).unflatten(1, (-1, block))
        codes_v[row, :, : blocks.shape[1]] = blocks.transpose(2, 3)


def fp8_scale(largest: Tensor) -> Tensor:
    """Return the scale at which these numbers have the largest code; 1 for 0."""
    return torch.where(largest > 0, largest / FP8_MAX, 1.0)


def from_fp8(layer: Fp8Layer) -> tuple[Tensor, Tensor]:
    """Return the keys and values that the codes stand for, ``[B, Hkv, N * V, D]`` in the scales' dtype."""
    k = layer.k.to(layer.k_scale.dtype) * layer.k_scale[:, :, None]
    v = layer.v.to(layer.v_scale.dtype).transpose(3, 4).flatten(2, 3) * layer.v_scale[..., None, None]
    return k, v


def to_int4(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes of ``x`` (uint8, 0 to 15), and the scale and least number of each run along ``dim``, float16."""
    least, most = x.amin(dim=dim, keepdim=True), x.amax(dim=dim, keepdim=True)
    scale = ((most - least) / (_CODES - 1)).half().to(x.dtype)
    scale, least = torch.where(scale > 0, scale, 1.0), least.half().to(x.dtype)
    codes = torch.floor((x - least) / scale + 0.5).clamp(0, _CODES - 1)
    return codes.to(torch.uint8), scale.half().squeeze(dim), least.half().squeeze(dim)


def pack_groups(layer: Int4Layer, at: tuple[Tensor, ...], keys: Tensor, values: Tensor) -> None:
    """Quantise groups of keys and values ``[N, 64, D]`` into places of a layer: batch, head and group ``[N]``."""
    dim, half = keys.shape[2], keys.shape[2] // 2
    keys, values = (part.to(accumulator(part.dtype)) for part in (keys, values))
    codes, layer.k_scale[at], layer.k_least[at] = to_int4(keys, 1)
    layer.k[at] = codes[..., :half] | codes[..., half:] << 4
    # A last group of fewer channels repeats one of its own, which changes neither its least nor its largest.
    runs = -(-dim // GROUP)
    channel = torch.arange(runs * GROUP, device=keys.device).clamp(max=dim - 1)
    codes, scale, least = to_int4(values[..., channel].unflatten(2, (runs, GROUP)), 3)
    layer.v_scale[at], layer.v_least[at] = scale.transpose(1, 2), least.transpose(1, 2)
    codes = codes.flatten(2)[..., :dim].transpose(1, 2)
    layer.v[at] = codes[..., : GROUP // 2] | codes[..., GROUP // 2 :] << 4


def fill_int4(layer: Int4Layer, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
    """Store a prompt: groups in four bits, the latest tokens exactly; row by row. Arguments as in ``fill_fp8``."""
    tokens = min(keys.shape[2], layer.k.shape[2] * GROUP)
    groups, heads = tokens // GROUP, torch.arange(keys.shape[1], device=keys.device)
    for row in range(keys.shape[0] if groups else 0):
        at = torch.meshgrid(heads, torch.arange(groups, device=keys.device), indexing="ij")
        whole = (part[row, :, : groups * GROUP].unflatten(1, (groups, GROUP)).flatten(0, 1) for part in (keys, values))
        first = torch.full_like(at[0].flatten(), row)
        pack_groups(layer, (first, at[0].flatten(), at[1].flatten()), *whole)
    slots = torch.arange(RECENT, device=keys.device)
    newest = lengths[:, None] - 1
    # The latest position before the length that maps to each slot; any where none does yet.
    source = (newest - (newest - slots).remainder(RECENT)).clamp(0, keys.shape[2] - 1)
    index = source[:, None, :, None].expand(layer.recent_k.shape)
    for recent, dense in ((layer.recent_k, keys), (layer.recent_v, values)):
        recent.copy_(dense.gather(2, index))


def from_int4(layer: Int4Layer, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values as a step reads them, by position ``[B, Hkv, G * 64 + 128, D]``; any past a length."""
    dim, dtype = layer.recent_k.shape[3], accumulator(layer.recent_k.dtype)
    codes = torch.cat((layer.k & 15, layer.k >> 4), dim=-1).to(dtype)
    k = codes * layer.k_scale[..., None, :].to(dtype) + layer.k_least[..., None, :].to(dtype)
    codes = torch.cat((layer.v & 15, layer.v >> 4), dim=-1).to(dtype)
    scale, least = (
        part.to(dtype).repeat_interleave(GROUP, dim=3)[:, :, :, :dim] for part in (layer.v_scale, layer.v_least)
    )
    v = (codes * scale + least).transpose(3, 4)
    k, v = (pad(part.flatten(2, 3), (0, 0, 0, RECENT)) for part in (k, v))
    position = torch.arange(k.shape[2], device=k.device)
    exact = (position >= packed_tokens(lengths)[:, None])[:, None, :, None]
    slot = position % RECENT
    return (
        torch.where(exact, layer.recent_k[:, :, slot].to(dtype), k),
        torch.where(exact, layer.recent_v[:, :, slot].to(dtype), v),
    )


def append_quantised(
    layer: Fp8Layer | Int4Layer,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    bounds: PageBounds | None = None,
    page_size: int = 0,
) -> Tensor:
    """Normalise, rotate and store one token a row; return its queries ``[B, Hq, 1, D]``.

    Eight bits: the first token of a block of values sets the codes behind it to zero. Four bits: the token goes to the
    recent ones; where it completes a group, the group before is quantised.

    Args:
        layer: changed in place.
        q: ``[B, Hq, 1, D]``.
        k: ``[B, Hkv, 1, D]``.
        v: ``[B, Hkv, 1, D]``.
        cos: ``[B or 1, 1, D]``.
        sin: likewise.
        positions: ``[B]`` int64, the slots; at most the last one.
        q_norm: ``[D]``, weight of the queries' norm.
        k_norm: ``[D]``, weight of the keys' norm.
        eps: added to the mean square of both.
        bounds: of the codes of keys in eight bits, changed in place.
        page_size: tokens in a page of ``bounds``.
    """
    q = q if q_norm is None else rms_norm(q, q_norm, eps)
    k = k if k_norm is None else rms_norm(k, k_norm, eps)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    rows = torch.arange(q.shape[0], device=q.device)
    if isinstance(layer, Fp8Layer):
        codes = to_fp8(k[:, :, 0], layer.k_scale)
        layer.k.view(torch.uint8)[rows, :, positions] = codes
        if bounds is not None:
            wide, new = PageBounds(*(part.float() for part in bounds)), codes.view(layer.k.dtype).float()[:, :, None]
            update_page_minmax(wide, new, positions[:, None, None].expand(new.shape[:3]), page_size)
            for part, widened in zip(bounds, wide, strict=True):
                part.copy_(widened)
        block, place = positions // layer.v.shape[4], positions % layer.v.shape[4]
        blocks = layer.v.view(torch.uint8)[rows, :, block] * (place > 0)[:, None, None, None]
        blocks[rows, :, :, place] = to_fp8(v[:, :, 0], layer.v_scale[..., None])
        layer.v.view(torch.uint8)[rows, :, block] = blocks
        return q
    layer.recent_k[rows, :, positions % RECENT] = k[:, :, 0]
    layer.recent_v[rows, :, positions % RECENT] = v[:, :, 0]
    # In fixed shapes: every row packs the last group that it has left, to what it holds already where that is not new.
    group = (packed_tokens(positions + 1) // GROUP - 1).clamp(min=0)
    slots = (group[:, None] * GROUP + torch.arange(GROUP, device=q.device)) % RECENT
    due = ((positions + 1) % GROUP == 0) & (positions + 1 >= RECENT)
    heads = torch.arange(k.shape[1], device=q.device)
    at = rows[:, None].expand(-1, len(heads)), heads.expand(len(rows), -1), group[:, None].expand(-1, len(heads))
    held = [part[at].clone() for part in layer[:6]]
    known = (part[rows[:, None], :, slots].transpose(1, 2).flatten(0, 1) for part in (layer.recent_k, layer.recent_v))
    pack_groups(layer, tuple(part.flatten() for part in at), *known)
    for part, old in zip(layer[:6], held, strict=True):
        part[at] = torch.where(due.view(-1, *[1] * (old.dim() - 1)), part[at], old)
    return q


def attend_quantised(
    layer: Fp8Layer | Int4Layer, q: Tensor, lengths: Tensor, kv_tokens_read: Tensor | None = None
) -> Tensor:
    """Return attention ``[B, Hq, 1, D]`` over the first ``lengths`` ``[B]`` tokens, as ``decode_attention`` has it.

    Exactly that of the numbers that the codes stand for, in float32 (float64 for float64). Moves ``2 D`` bytes a token
    and KV head in eight bits; ``D`` and ``D / 8`` of scales and least numbers in four, and up to 127 tokens in the
    queries' dtype.
    """
    k, v = from_fp8(layer) if isinstance(layer, Fp8Layer) else from_int4(layer, lengths)
    return decode_attention(q, k, v, lengths, kv_tokens_read=kv_tokens_read)[0]
