"""Public rivals of our kernels, set up on the same inputs: torch's SDPA (cuDNN, flash), cuBLAS, topk, FlashInfer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.throughput import flashinfer_peers
from longdecode.evals.throughput.attention_cases import PAGE, rows_of, whole_mask
from longdecode.evals.throughput.hybrid_cases import attend
from longdecode.evals.throughput.kernel_case import Case, Inputs
from longdecode.evals.throughput.spec import ROWS_OP
from longdecode.evals.throughput.step_cases import EPS
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.dispatch import naive_kernels
from longdecode.kernels.layout import fold_group
from longdecode.kernels.page_score import page_score
from longdecode.kernels.rope_append import rope_append
from longdecode.kernels.token_score import token_logits

Calls = list[Callable[[], Any]]
Setup = Callable[[Case, Sequence[Inputs]], Calls]
"""Makes one call a set; a call returns what ``Case.same`` compares with ours."""


class PeerUnavailableError(LongDecodeError):
    """A peer cannot run here; its row says why."""


def peers_of(subject: str) -> dict[str, Setup]:
    """Return the peers of an op by label; the first is the one that our own row is compared with."""
    return _PEERS[ROWS_OP if rows_of(subject) else subject]


def _flash(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Set up flash SDPA and nothing else: torch raises where its flash kernel does not take the inputs.

    The query heads of a group are the rows of their KV head, which reads each key once whatever torch does with groups.
    """

    def attend(x: Inputs) -> Tensor:
        rows = fold_group(x["q"], x["k"].shape[1])
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(rows, x["k"], x["v"]).view(x["q"].shape)

    return [partial(attend, x) for x in sets]


def _cudnn(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Set up SDPA through cuDNN and nothing else, which takes groups of query heads and masks as they are."""
    if sets[0]["q"].device.type != "cuda":
        raise PeerUnavailableError("torch_cudnn needs a CUDA device")

    visible = whole_mask(sets[0]) if "mask" in sets[0] else None

    def attend(x: Inputs) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(x["q"], x["k"], x["v"], attn_mask=visible, enable_gqa=True)

    return [partial(attend, x) for x in sets]


def _one_row(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Set up our own kernel for a single row, the last: what several rows cost more."""
    last = [x | {"q": x["q"][:, :, -1:].contiguous()} for x in sets]
    return _ours_dense(case, last)


def _flash_rows(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Set up flash SDPA of several rows, which takes no mask but the causal one."""
    if sets[0]["mask"] is not None:
        raise PeerUnavailableError("torch's flash attention takes no tree mask")

    def attend(x: Inputs) -> Tensor:
        causal = causal_lower_right(x["q"].shape[2], x["k"].shape[2])
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(x["q"], x["k"], x["v"], attn_mask=causal, enable_gqa=True)

    return [partial(attend, x) for x in sets]


def _flashinfer_rows(case: Case, sets: Sequence[Inputs]) -> Calls:
    return flashinfer_peers.rows(_flashinfer(), case.size, sets, PAGE)


def _flash_contiguous(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Set up flash SDPA over the selected tokens laid out one after the other: what gathering for free would give."""
    gathered = []
    for x in sets:
        block, indices = x["block"], x["indices"]
        offsets = torch.arange(block, device=indices.device)
        tokens = (indices[..., None] * block + offsets).flatten(2)[..., None].expand(-1, -1, -1, x["k"].shape[-1])
        gathered.append({"q": x["q"], "k": x["k"].gather(2, tokens), "v": x["v"].gather(2, tokens)})
    return _flash(case, gathered)


def _matmul_logits(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Multiply the mean query of a group with all keys, by cuBLAS in the keys' dtype."""
    scale = case.size.config.head_dim**-0.5

    def logits(x: Inputs) -> Tensor:
        grouped = fold_group(x["q"], x["k"].shape[1]).mean(dim=2, keepdim=True)
        return (grouped @ x["k"].transpose(-1, -2))[:, :, 0].float() * scale

    return [partial(logits, x) for x in sets]


def _matmul_pages(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Compute page bounds by two products of cuBLAS in the bounds' dtype, then the largest of each group."""

    def scores(x: Inputs) -> Tensor:
        bounds = x["bounds"]
        grouped = fold_group(x["q"], bounds.minimum.shape[1])
        found = grouped.clamp(min=0) @ bounds.maximum.transpose(-1, -2)
        found = found + grouped.clamp(max=0) @ bounds.minimum.transpose(-1, -2)
        return found.amax(dim=2).float()

    return [partial(scores, x) for x in sets]


def _topk_indices(x: Inputs) -> Tensor:
    return torch.topk(x["scores"], x["k"], dim=-1, sorted=False).indices


def _torch_topk(case: Case, sets: Sequence[Inputs]) -> Calls:
    return [partial(_topk_indices, x) for x in sets]


def _flashinfer_topk(case: Case, sets: Sequence[Inputs]) -> Calls:
    return flashinfer_peers.top_k(_flashinfer(), sets)


def _torch_selection(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Set up our page scores, then ``torch.topk``: what selection costs without a kernel of its own."""

    def select(x: Inputs) -> Tensor:
        scores = page_score(x["q"], x["bounds"], x["pages"], group="max")
        return torch.topk(scores, x["k"], dim=-1, sorted=False).indices

    return [partial(select, x) for x in sets]


def _torch_norm(case: Case, sets: Sequence[Inputs]) -> Calls:
    def norm(x: Inputs) -> tuple[Tensor, Tensor]:
        total = x["residual"] + x["delta"]
        return F.rms_norm(total, total.shape[-1:], x["weight"], EPS), total

    return [partial(norm, x) for x in sets]


def _torch_rope(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Set up the op's definition in plain torch."""

    def rotate(x: Inputs) -> Tensor:
        with naive_kernels():
            return rope_append(x["q"], x["k"], x["v"], x["cos"], x["sin"], x["keys"], x["values"], x["slots"])

    return [partial(rotate, x) for x in sets]


def _cublas(case: Case, sets: Sequence[Inputs]) -> Calls:
    return [partial(F.linear, x["x"], x["weight"]) for x in sets]


def _cublas_gated(case: Case, sets: Sequence[Inputs]) -> Calls:
    def gated(x: Inputs) -> Tensor:
        gate, up = F.linear(x["x"], x["weight"]).chunk(2, dim=-1)
        return F.silu(gate) * up

    return [partial(gated, x) for x in sets]


def _flashinfer_dense(case: Case, sets: Sequence[Inputs]) -> Calls:
    return flashinfer_peers.dense(_flashinfer(), case.size, sets, PAGE)


def _flashinfer_sparse(case: Case, sets: Sequence[Inputs]) -> Calls:
    return flashinfer_peers.sparse(_flashinfer(), case.size, sets)


def _ours_dense(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Set up our own dense attention of all heads."""
    return [partial(lambda x: decode_attention(x["q"], x["k"], x["v"], x["lengths"])[0], x) for x in sets]


def _unscored(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Set up our own launch on the same lists without scores: what they cost is the difference."""
    return [partial(lambda x: attend(x, scores=False)[0], x) for x in sets]


def _two_passes(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Set up our own launch without scores, then a second pass for them over the scored heads' keys, laid out apart."""

    def calls(x: Inputs) -> Callable[[], Tensor]:
        full, group = x["full"], case.size.config.group_size
        queries = x["q"].unflatten(1, (-1, group))[:, full].flatten(1, 2).contiguous()
        keys = x["k"][:, full].contiguous()

        def run() -> Tensor:
            out = attend(x, scores=False)[0]
            token_logits(queries, keys, x["lengths"], group="mean")
            return out

        return run

    return [calls(x) for x in sets]


def _once_a_cache(setup: Setup) -> Setup:
    """Make a dense peer's calls on each cache once, where the sets of a case share caches."""

    def calls(case: Case, sets: Sequence[Inputs]) -> Calls:
        first: dict[int, Inputs] = {}
        for x in sets:
            first.setdefault(id(x["k"]), x)
        return setup(case, list(first.values()))

    return calls


def _torch_topk_into(case: Case, sets: Sequence[Inputs]) -> Calls:
    """Set up ``torch.topk`` and a scatter into the lists; nothing is kept by force and nothing sorted."""

    def select(x: Inputs) -> None:
        x["indices"].index_copy_(1, x["heads"], _topk_indices(x))

    return [partial(select, x) for x in sets]


def _flashinfer() -> Any:
    """Import the package, where it is installed and there is a device for it.

    Raises:
        PeerUnavailableError: it is not.
    """
    if not torch.cuda.is_available():
        raise PeerUnavailableError("FlashInfer needs a CUDA device")
    try:
        import flashinfer
    except Exception as error:  # an import of compiled parts can fail in many ways, each a reason to report
        raise PeerUnavailableError(f"flashinfer cannot be imported: {type(error).__name__}: {error}") from error
    return flashinfer


_PEERS: dict[str, dict[str, Setup]] = {
    "decode_attention": {"torch_cudnn": _cudnn, "torch_flash": _flash, "flashinfer": _flashinfer_dense},
    ROWS_OP: {
        "longdecode_one_row": _one_row, "torch_flash": _flash_rows, "torch_cudnn": _cudnn,
        "flashinfer": _flashinfer_rows,
    },
    "sparse_decode_attention": {"flashinfer": _flashinfer_sparse, "torch_flash_contiguous": _flash_contiguous},
    "sparse_decode_attention_tokens": {"flashinfer": _flashinfer_sparse, "torch_flash_contiguous": _flash_contiguous},
    "page_score": {"torch_matmul": _matmul_pages},
    "topk_select": {"flashinfer": _flashinfer_topk, "torch_topk": _torch_topk},
    "selection": {"torch_topk": _torch_selection},
    "token_logits": {"torch_matmul": _matmul_logits},
    "add_rms_norm": {"torch": _torch_norm},
    "rope_append": {"torch": _torch_rope},
    "linear_qkv": {"cublas": _cublas},
    "linear_o": {"cublas": _cublas},
    "linear_down": {"cublas": _cublas},
    "linear_lm_head": {"cublas": _cublas},
    "gated_linear": {"cublas": _cublas_gated},
    "hybrid_attention": {
        "torch_flash": _once_a_cache(_flash), "torch_cudnn": _once_a_cache(_cudnn),
        "flashinfer": _once_a_cache(_flashinfer_dense), "longdecode_dense": _once_a_cache(_ours_dense),
    },
    "hybrid_attention_random": {"flashinfer": _flashinfer_dense, "longdecode_dense": _ours_dense},
    "hybrid_attention_scored": {"torch_flash": _flash, "longdecode_unscored": _unscored, "two_passes": _two_passes},
    "topk_select_into": {"torch_topk": _torch_topk_into},
}  # fmt: skip
