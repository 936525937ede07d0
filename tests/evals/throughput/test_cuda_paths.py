"""CUDA paths, with torch.cuda and FlashInfer replaced by stand-ins that keep their contracts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from longdecode.evals.throughput import flashinfer_peers, step_block, timing
from longdecode.evals.throughput.kernel_case import Size, is_close
from longdecode.evals.throughput.kernels import make_case
from longdecode.evals.throughput.launches import Launches
from longdecode.evals.throughput.models import shape_config

CUDA = torch.device("cuda", 0)


class PagedWrapper:
    """FlashInfer's decode wrapper in plain torch: NHD pages, planned before it runs, buffers of fixed size."""

    def __init__(self, workspace: Tensor, layout: str, **options: Any):
        assert layout == "NHD" and options["use_cuda_graph"] and options["use_tensor_cores"]
        assert not bool(workspace.any()), "the workspace must start at zero"
        self.buffers = options
        self.planned: dict[str, Any] | None = None

    def plan(
        self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int,
        head_dim: int, page_size: int, *, q_data_type: torch.dtype, kv_data_type: torch.dtype,
    ) -> None:  # fmt: skip
        assert indptr.dtype == indices.dtype == last_page_len.dtype == torch.int32
        assert len(self.buffers["paged_kv_indptr_buffer"]) == len(indptr) == len(last_page_len) + 1
        assert len(self.buffers["paged_kv_indices_buffer"]) >= len(indices)
        self.planned = {
            "indptr": indptr.tolist(), "indices": indices.long(), "last": last_page_len.tolist(), "page": page_size,
            "heads": (num_qo_heads, num_kv_heads), "dim": head_dim,
        }  # fmt: skip

    def run(self, q: Tensor, kv: tuple[Tensor, Tensor]) -> Tensor:
        assert self.planned is not None
        plan, out = self.planned, torch.empty_like(q)
        heads, kv_heads = plan["heads"]
        assert q.shape[1:] == (heads, plan["dim"]) and q.is_contiguous()
        assert all(x.shape[1:] == (plan["page"], kv_heads, plan["dim"]) for x in kv)
        for request in range(len(q)):
            first, stop = plan["indptr"][request : request + 2]
            pages = plan["indices"][first:stop]
            tokens = (len(pages) - 1) * plan["page"] + plan["last"][request]
            keys, values = (x[pages].flatten(0, 1)[:tokens].repeat_interleave(heads // kv_heads, dim=1) for x in kv)
            weights = torch.einsum("hd,thd->ht", q[request], keys).mul(plan["dim"] ** -0.5).softmax(dim=-1)
            out[request] = torch.einsum("ht,thd->hd", weights, values)
        return out


@pytest.mark.parametrize("op", ["decode_attention", "sparse_decode_attention", "sparse_decode_attention_tokens"])
def test_flashinfer_gets_the_same_attention_to_do(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    monkeypatch.setattr(flashinfer_peers, "_WORKSPACE_BYTES", 64)
    library = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=PagedWrapper)
    size = Size(shape_config("miniature-shape"), 128, 3, 48, torch.device("cpu"), torch.float32)
    case = make_case(op, size)
    sets = case.make_sets(2)
    if op == "decode_attention":
        calls = flashinfer_peers.dense(library, size, sets, 16)
    else:
        calls = flashinfer_peers.sparse(library, size, sets)
    for call, inputs in zip(calls, sets, strict=True):
        assert is_close(call(), case.ours(inputs), torch.float32)


class PrefillWrapper:
    """FlashInfer's paged prefill wrapper in plain torch; causal aligns the last row with the last key."""

    def __init__(self, workspace: Tensor, layout: str):
        assert layout == "NHD"

    def plan(
        self, qo_indptr: Tensor, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int,
        num_kv_heads: int, head_dim: int, page_size: int, *, custom_mask: Tensor | None, causal: bool,
        q_data_type: torch.dtype, kv_data_type: torch.dtype,
    ) -> None:  # fmt: skip
        assert qo_indptr.dtype == indptr.dtype == indices.dtype == last_page_len.dtype == torch.int32
        assert causal == (custom_mask is None) and (last_page_len == page_size).all()
        self.planned = qo_indptr.tolist(), indptr.tolist(), indices.long(), custom_mask, num_qo_heads // num_kv_heads

    def run(self, q: Tensor, kv: tuple[Tensor, Tensor]) -> Tensor:
        starts, pages, indices, mask, group = self.planned
        out, used = torch.empty_like(q), 0
        for request in range(len(starts) - 1):
            rows = slice(*starts[request : request + 2])
            found = [x[indices[slice(*pages[request : request + 2])]].flatten(0, 1) for x in kv]
            keys, values = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in found)
            count, tokens = rows.stop - rows.start, keys.shape[1]
            visible = torch.ones(count, tokens, dtype=torch.bool).tril(tokens - count)
            if mask is not None:
                visible = mask[used : used + count * tokens].view(count, tokens)
                used += count * tokens
            attended = torch.nn.functional.scaled_dot_product_attention(
                q[rows].transpose(0, 1), keys, values, attn_mask=visible
            )
            out[rows] = attended.transpose(0, 1)
        assert mask is None or used == len(mask)
        return out


@pytest.mark.parametrize("op", ["decode_attention_rows8", "decode_attention_rows41_tree"])
def test_flashinfer_gets_the_same_rows_and_mask(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    monkeypatch.setattr(flashinfer_peers, "_WORKSPACE_BYTES", 64)
    library = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=PrefillWrapper)
    size = Size(shape_config("miniature-shape"), 128, 3, None, torch.device("cpu"), torch.float32)
    case = make_case(op, size)
    sets = case.make_sets(2)
    for call, inputs in zip(flashinfer_peers.rows(library, size, sets, 16), sets, strict=True):
        assert is_close(call(), case.ours(inputs), torch.float32)


def test_flashinfer_ranks_the_same_lists() -> None:
    library = SimpleNamespace(top_k=lambda scores, k: torch.topk(scores, k, dim=-1, sorted=False))
    size = Size(shape_config("miniature-shape"), 512, 2, 64, torch.device("cpu"), torch.float32)
    case = make_case("topk_select", size)
    (inputs,) = case.make_sets(1)
    (call,) = flashinfer_peers.top_k(library, [inputs])
    assert case.same is not None and case.same(call(), case.ours(inputs))


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A log of what the timing core asks of torch.cuda."""
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool):
            assert enable_timing

        def record(self, stream: object) -> None:
            log.append("event")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, other: Event) -> float:
            return 1.5

    class Context:
        def __init__(self, *args: object):
            pass

        def __enter__(self) -> Context:
            return self

        def __exit__(self, *args: object) -> None: ...

        def wait_stream(self, other: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Context)
    monkeypatch.setattr(torch.cuda, "stream", Context)
    monkeypatch.setattr(torch.cuda, "device", Context)
    monkeypatch.setattr(torch.cuda, "current_stream", Context)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append("spin"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: log.append("replay")))

    class Graph(Context):
        def __enter__(self) -> Context:
            log.append("capture")
            return self

        def __exit__(self, *args: object) -> None:
            log.append("captured")

    monkeypatch.setattr(torch.cuda, "graph", Graph)
    return log


def test_the_device_is_looked_at_while_it_works(fake_cuda: list[str]) -> None:
    clock = timing.clock_for(CUDA)
    us = clock.time_us(lambda: fake_cuda.append("work"), lambda: fake_cuda.append("look"))
    assert us == 1500.0
    assert fake_cuda == ["synchronize", "spin", "event", "work", "event", "look", "wait"]


def test_work_is_warmed_up_and_captured_once(fake_cuda: list[str]) -> None:
    replay = step_block.captured(lambda: fake_cuda.append("work"), CUDA)
    assert fake_cuda == ["work", "work", "synchronize", "capture", "work", "captured"]
    replay()
    assert fake_cuda[-1] == "replay"


def test_launches_keep_every_different_choice() -> None:
    from longdecode.kernels.topk_select.gpu import choose_launch

    launches = Launches()
    for _ in range(2):
        launches.add("topk_select", choose_launch(8192, 256))
    launches.add("linear", None)
    launches.add("other", object())
    record = launches.as_record()
    assert set(record) == {"topk_select", "linear"}
    assert isinstance(record["topk_select"], dict) and record["linear"] == {"path": "torch"}


def test_launches_are_noted_where_the_kernels_look_them_up() -> None:
    from longdecode.evals.throughput.launches import recorded
    from longdecode.kernels.topk_select import gpu

    original = gpu.choose_launch
    with recorded(CUDA) as launches:
        assert gpu.choose_launch is not original
        gpu.choose_launch(8192, 256)
    assert gpu.choose_launch is original
    assert set(launches.as_record()) == {"topk_select"}
    with recorded(torch.device("cpu")) as launches:
        assert gpu.choose_launch is original
