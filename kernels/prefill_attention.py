"""Prefill attention through torch's fused kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from longdecode.kernels.layout import fold_group, on_host


def prefill_attention(q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
    """Return causal attention of the chunk at positions ``start .. start + T``: row ``t`` sees keys ``<= start + t``.

    ``out_t = sum_{i <= start + t} softmax(q_t k_i / sqrt(D)) v_i``. Slots at or past ``start + T`` are never read.
    Moves ``2 * B * Hkv * (start + T) * D`` elements of cache.

    Args:
        q: ``[B, Hq, T, D]``, any float dtype.
        k: ``[B, Hkv, S, D]``, ``S >= start + T``, the chunk's own keys included.
        v: ``[B, Hkv, S, D]``.
        start: position of the chunk's first row.

    Returns:
        ``[B, Hq, T, D]`` in ``q``'s dtype.

    Raises:
        ValueError: the chunk does not fit the cache.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), equation 1, with a causal mask.
    """
    rows, stop = q.shape[2], start + q.shape[2]
    if start < 0 or stop > k.shape[2]:
        raise ValueError(f"chunk {start}..{stop} does not fit a cache of {k.shape[2]} slots")
    keys, values = k[:, :, :stop], v[:, :, :stop]
    narrow = q.dtype in (torch.float16, torch.bfloat16)
    if start == 0 and (narrow or on_host(q)):
        return scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)
    if narrow and not on_host(q):
        from torch.nn.attention.bias import causal_lower_right  # brings in torch's compiler: over a second

        bias = causal_lower_right(rows, stop)
        return scaled_dot_product_attention(q, keys, values, attn_mask=bias, enable_gqa=True)
    seen = torch.arange(stop, device=q.device) <= torch.arange(start, stop, device=q.device)[:, None]
    if on_host(q):
        return scaled_dot_product_attention(q, keys, values, attn_mask=seen, enable_gqa=True)
    # No fused CUDA kernel takes grouped heads in wider dtypes: fold each group into rows of its KV head instead.
    folded = fold_group(q, k.shape[1])
    mask = seen.repeat(folded.shape[2] // rows, 1)
    return scaled_dot_product_attention(folded, keys, values, attn_mask=mask).reshape(q.shape)
