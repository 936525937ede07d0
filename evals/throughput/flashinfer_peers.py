"""FlashInfer's paged attention and top-k on the inputs of our cases (read for release 0.6.13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from longdecode.evals.throughput.attention_cases import whole_mask
from longdecode.evals.throughput.kernel_case import Inputs, Size

_WORKSPACE_BYTES = 256 << 20
Calls = list[Callable[[], Any]]


def dense(flashinfer: Any, size: Size, sets: Sequence[Inputs], page: int) -> Calls:
    """Plan every page of each row up to its length, layout ``[pages, page, Hkv, D]``, on tensor cores."""
    config, pages = size.config, size.context // page
    workspace = _workspace(size)
    calls: Calls = []
    for x in sets:
        keys, values = (_paged(x[name], page) for name in ("k", "v"))
        used = (x["lengths"] + page - 1) // page
        indptr = torch.nn.functional.pad(used.cumsum(0), (1, 0)).to(torch.int32)
        numbers = torch.arange(pages, device=size.device).expand(size.batch, -1)
        first = torch.arange(size.batch, device=size.device)[:, None] * pages
        indices = (numbers + first)[numbers < used[:, None]].to(torch.int32)
        plan = _Plan(flashinfer, workspace, indptr, indices, page, (x["lengths"] - (used - 1) * page).to(torch.int32))
        plan.prepare(config.num_heads, config.num_kv_heads, config.head_dim, size.dtype)
        queries = x["q"][:, :, 0].contiguous()
        calls.append(partial(plan.run, queries, (keys, values), x["q"].shape))
    return calls


def rows(flashinfer: Any, size: Size, sets: Sequence[Inputs], page: int) -> Calls:
    """Plan prefill attention of several rows a request over all its pages, causal or under a mask of all keys."""
    config, pages = size.config, size.context // page
    workspace, batch, count = _workspace(size), size.batch, sets[0]["q"].shape[2]
    first = torch.arange(batch + 1, device=size.device, dtype=torch.int32)
    indices = torch.arange(batch * pages, device=size.device, dtype=torch.int32)
    last = torch.full((batch,), page, device=size.device, dtype=torch.int32)
    calls: Calls = []
    for x in sets:
        tree = x["mask"] is not None
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(
            first * count, first * pages, indices, last, config.num_heads, config.num_kv_heads, config.head_dim, page,
            custom_mask=whole_mask(x).flatten().repeat(batch) if tree else None, causal=not tree,
            q_data_type=size.dtype, kv_data_type=size.dtype,
        )  # fmt: skip
        queries = x["q"].transpose(1, 2).flatten(0, 1).contiguous()
        kv = (_paged(x["k"], page), _paged(x["v"], page))
        calls.append(partial(_run_rows, wrapper, queries, kv, batch))
    return calls


def _run_rows(wrapper: Any, queries: Tensor, kv: tuple[Tensor, Tensor], batch: int) -> Tensor:
    """Run a planned wrapper; the result as ours, ``[B, Hq, T, D]``."""
    out: Tensor = wrapper.run(queries, kv)
    return out.unflatten(0, (batch, -1)).transpose(1, 2)


def sparse(flashinfer: Any, size: Size, sets: Sequence[Inputs]) -> Calls:
    """Plan each KV head as a request of its own with its own pages; our cache serves as it is, one head a page."""
    config = size.config
    group = config.num_heads // config.num_kv_heads
    requests = size.batch * config.num_kv_heads
    workspace = _workspace(size)
    calls: Calls = []
    for x in sets:
        block, picked = x["block"], x["indices"].shape[-1]
        blocks = size.context // block
        first = torch.arange(requests, device=size.device)[:, None] * blocks
        indices = (x["indices"].view(requests, picked) + first).flatten().to(torch.int32)
        indptr = torch.arange(requests + 1, device=size.device, dtype=torch.int32) * picked
        plan = _Plan(flashinfer, workspace, indptr, indices, block)
        plan.prepare(group, 1, config.head_dim, size.dtype)
        keys, values = (x[name].view(requests * blocks, block, 1, config.head_dim) for name in ("k", "v"))
        queries = x["q"].view(requests, group, config.head_dim)
        calls.append(partial(plan.run, queries, (keys, values), x["q"].shape))
    return calls


def top_k(flashinfer: Any, sets: Sequence[Inputs]) -> Calls:
    """Set up radix top-k over the lists as rows, unsorted, as fast as it goes."""

    def select(x: Inputs) -> Tensor:
        indices: Tensor = flashinfer.top_k(x["scores"].flatten(0, 1), x["k"])[1]
        return indices

    return [partial(select, x) for x in sets]


class _Plan:
    """One wrapper with its page table, planned once on the host so that ``run`` can be captured."""

    def __init__(
        self, flashinfer: Any, workspace: Tensor, indptr: Tensor, indices: Tensor, page: int, last: Tensor | None = None
    ):
        requests = len(indptr) - 1
        self.page = page
        self.indptr, self.indices = indptr, indices
        filled = torch.full((requests,), page, device=indptr.device, dtype=torch.int32)
        self.last = filled if last is None else last
        self.wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_cuda_graph=True, use_tensor_cores=True,
            paged_kv_indptr_buffer=torch.empty_like(indptr), paged_kv_indices_buffer=torch.empty_like(indices),
            paged_kv_last_page_len_buffer=torch.empty_like(self.last),
        )  # fmt: skip

    def prepare(self, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
        """Make FlashInfer's host-side plan."""
        self.wrapper.plan(
            self.indptr, self.indices, self.last, heads, kv_heads, dim, self.page, q_data_type=dtype,
            kv_data_type=dtype,
        )  # fmt: skip

    def run(self, q: Tensor, kv: tuple[Tensor, Tensor], shape: torch.Size) -> Tensor:
        """Attend with ``q`` ``[requests, heads, D]`` over the planned pages, in the shape that ours has."""
        out: Tensor = self.wrapper.run(q, kv)
        return out.view(shape)


def _workspace(size: Size) -> Tensor:
    """Return scratch for the splits; wrappers that run one after the other can share it."""
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=size.device)


def _paged(cache: Tensor, page: int) -> Tensor:
    """Lay ``[B, H, S, D]`` out as pages ``[B * S / page, page, H, D]``, row by row."""
    batch, heads, size, dim = cache.shape
    paged = cache.view(batch, heads, size // page, page, dim).permute(0, 2, 3, 1, 4)
    return paged.reshape(batch * (size // page), page, heads, dim)
