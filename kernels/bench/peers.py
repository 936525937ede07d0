"""Public rivals of our kernels on the same inputs: torch's SDPA (flash, cuDNN), cuBLAS, topk, FlashInfer 0.6.13.

FlexAttention is none of them: compiled, it is 10 to 40 times slower than flash on decode shapes. A peer sets itself up
on the inputs of ours and returns a call that computes what ours does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from longdecode.kernels.bench.ops import PAGE, Inputs, Size, whole_mask
from longdecode.kernels.layout import fold_group

Call = Callable[[], Tensor]
Peer = Callable[[Size, Inputs], Call]


def flash(size: Size, x: Inputs) -> Call:
    """Set up flash SDPA and nothing else: torch raises where its flash kernel does not take the inputs.

    The query heads of a group are the rows of their KV head, which reads each key once whatever torch does with groups.
    """
    if size.mask is not None or size.mixed:
        raise NotImplementedError("torch's flash attention takes no tree mask and no lengths")
    if size.rows == 1:
        return _sdpa(SDPBackend.FLASH_ATTENTION, x | {"q": fold_group(x["q"], x["k"].shape[1])})
    from torch.nn.attention.bias import causal_lower_right  # imports torch._dynamo: 1.3 s

    return _sdpa(SDPBackend.FLASH_ATTENTION, x, attn_mask=causal_lower_right(size.rows, size.context), enable_gqa=True)


def flash_contiguous(size: Size, x: Inputs) -> Call:
    """Set up flash SDPA over the selected tokens laid out one after the other: what gathering for free would give."""
    offsets = torch.arange(x["block"], device=size.device)
    tokens = (x["indices"][..., None] * x["block"] + offsets).flatten(2)[..., None].expand(-1, -1, -1, x["k"].shape[-1])
    return flash(size, {"q": x["q"], "k": x["k"].gather(2, tokens), "v": x["v"].gather(2, tokens)})


def cudnn(size: Size, x: Inputs) -> Call:
    """Set up SDPA through cuDNN and nothing else, which takes groups of query heads and masks as they are."""
    if size.device.type != "cuda" or size.mixed:
        raise NotImplementedError("cuDNN needs a CUDA device, and rows of one length in torch's call")
    mask = whole_mask(size) if size.rows > 1 else None
    return _sdpa(SDPBackend.CUDNN_ATTENTION, x, attn_mask=mask, enable_gqa=True)


def _sdpa(backend: SDPBackend, x: Inputs, **options: Any) -> Call:
    return sdpa_kernel(backend)(partial(F.scaled_dot_product_attention, x["q"], x["k"], x["v"], **options))


def matmul_pages(size: Size, x: Inputs) -> Call:
    """Compute page bounds by two products of cuBLAS in the bounds' dtype, then the largest of each group."""
    bounds = x["bounds"]

    def scores() -> Tensor:
        grouped = fold_group(x["q"], bounds.minimum.shape[1])
        above = grouped.clamp(min=0) @ bounds.maximum.transpose(-1, -2)
        return (above + grouped.clamp(max=0) @ bounds.minimum.transpose(-1, -2)).amax(dim=2).float()

    return scores


def torch_topk(size: Size, x: Inputs) -> Call:
    """Set up ``torch.topk``, unsorted."""
    return lambda: torch.topk(x["scores"], x["k"], dim=-1, sorted=False).indices


def cublas(size: Size, x: Inputs) -> Call:
    """Set up a projection by cuBLAS."""
    return partial(F.linear, x["x"], x["weight"])


def cublas_gated(size: Size, x: Inputs) -> Call:
    """Set up gate and up projection as one product, then SiLU and the product of both."""

    def gated() -> Tensor:
        gate, up = F.linear(x["x"], x["weight"]).chunk(2, dim=-1)
        return F.silu(gate) * up

    return gated


def flashinfer() -> Any:
    """Import FlashInfer; an import that fails is the reason that its row gives.

    Raises:
        NotImplementedError: there is no device for it.
    """
    if not torch.cuda.is_available():
        raise NotImplementedError("FlashInfer needs a CUDA device")
    return importlib.import_module("flashinfer")


def flashinfer_topk(size: Size, x: Inputs) -> Call:
    """Set up radix top-k over the lists as rows, unsorted, as fast as it goes."""
    library = flashinfer()
    return lambda: library.top_k(x["scores"].flatten(0, 1), x["k"])[1]


def flashinfer_dense(size: Size, x: Inputs) -> Call:
    """Set up paged decoding over every page of each row, layout ``[pages, page, Hkv, D]``, on tensor cores."""
    filled = torch.tensor(size.lengths, device=size.device) // PAGE
    pages = torch.arange(size.context // PAGE, device=size.device) < filled[:, None]
    indices = pages.flatten().nonzero().flatten().to(torch.int32)
    wrapper = _decoder(size, filled, indices, PAGE, size.heads, size.kv_heads)
    return partial(wrapper.run, x["q"][:, :, 0].contiguous(), (_paged(x["k"]), _paged(x["v"])))


def flashinfer_sparse(size: Size, x: Inputs) -> Call:
    """Set up each KV head as a request of its own with its own pages; our cache serves as it is, one head a page."""
    block, picked, group = x["block"], x["indices"].shape[-1], size.heads // size.kv_heads
    requests, blocks = size.batch * size.kv_heads, size.context // block
    first = torch.arange(requests, device=size.device)[:, None] * blocks
    indices = (x["indices"].view(requests, picked) + first).flatten().to(torch.int32)
    wrapper = _decoder(size, size.whole(requests, value=picked), indices, block, group, 1)
    kv = tuple(x[name].view(requests * blocks, block, 1, size.head_dim) for name in ("k", "v"))
    return partial(wrapper.run, x["q"].view(requests, group, size.head_dim), kv)


def flashinfer_rows(size: Size, x: Inputs) -> Call:
    """Set up prefill attention of several rows a request over all its pages, causal or under a mask of all keys."""
    pages, batch, tree = size.context // PAGE, size.batch, size.mask is not None
    first = torch.arange(batch + 1, device=size.device, dtype=torch.int32)
    indices = torch.arange(batch * pages, device=size.device, dtype=torch.int32)
    last = torch.full((batch,), PAGE, device=size.device, dtype=torch.int32)
    wrapper = flashinfer().BatchPrefillWithPagedKVCacheWrapper(_workspace(size.device), "NHD")
    wrapper.plan(
        first * size.rows, first * pages, indices, last, size.heads, size.kv_heads,
        size.head_dim, PAGE, custom_mask=whole_mask(size).flatten().repeat(batch) if tree else None,
        causal=not tree, q_data_type=size.dtype, kv_data_type=size.dtype,
    )  # fmt: skip
    kv, queries = (_paged(x["k"]), _paged(x["v"])), x["q"].transpose(1, 2).flatten(0, 1).contiguous()
    return lambda: wrapper.run(queries, kv).unflatten(0, (batch, -1)).transpose(1, 2).contiguous()


def _decoder(size: Size, pages: Tensor, indices: Tensor, page: int, heads: int, kv_heads: int) -> Any:
    """Return a wrapper with its page table, planned once on the host so that its run can be captured."""
    indptr = F.pad(pages.cumsum(0), (1, 0)).to(torch.int32)
    last = torch.full_like(indptr[1:], page)
    wrapper = flashinfer().BatchDecodeWithPagedKVCacheWrapper(
        _workspace(size.device), "NHD", use_cuda_graph=True, use_tensor_cores=True,
        paged_kv_indptr_buffer=torch.empty_like(indptr), paged_kv_indices_buffer=torch.empty_like(indices),
        paged_kv_last_page_len_buffer=torch.empty_like(last),
    )  # fmt: skip
    wrapper.plan(
        indptr, indices, last, heads, kv_heads, size.head_dim, page, q_data_type=size.dtype,
        kv_data_type=size.dtype,
    )  # fmt: skip
    return wrapper


@cache
def _workspace(device: torch.device) -> Tensor:
    """Return scratch for the splits, 256 MiB; wrappers that run one after the other can share it."""
    return torch.zeros(256 << 20, dtype=torch.uint8, device=device)


def _paged(cache: Tensor) -> Tensor:
    """Lay ``[B, H, S, D]`` out as pages ``[B * S / page, page, H, D]``, row by row."""
    return cache.transpose(1, 2).unflatten(1, (-1, PAGE)).flatten(0, 1).contiguous()


_SPARSE: Mapping[str, Peer] = {"flashinfer": flashinfer_sparse, "torch_flash_contiguous": flash_contiguous}
_DENSE: Mapping[str, Peer] = {"torch_flash": flash, "torch_cudnn": cudnn, "flashinfer": flashinfer_dense}
PEERS: Mapping[str, Mapping[str, Peer]] = {
    "decode_attention": {"torch_cudnn": cudnn, **_DENSE},
    "decode_attention_rows": {**_DENSE, "flashinfer": flashinfer_rows},
    "sparse_decode_attention": _SPARSE,
    "sparse_decode_attention_tokens": _SPARSE,
    "hybrid_attention": _DENSE,
    "page_score": {"torch_matmul": matmul_pages},
    "topk_select": {"flashinfer": flashinfer_topk, "torch_topk": torch_topk},
    "gated_linear": {"cublas": cublas_gated},
    **{op: {"cublas": cublas} for op in ("linear_qkv", "linear_o", "linear_down", "linear_lm_head")},
}
"""The rivals of each op by variant; the first that runs is the one that our own row is compared with."""
