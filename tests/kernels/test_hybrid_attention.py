"""Lists that read everything beside lists that do not, and the scores the former leave, against float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_inputs import DEVICE, Cache, check_sparse, ragged
from longdecode.kernels.sparse_decode_attention import EVERYTHING, launch, naive, sparse_decode_attention
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu
from longdecode.kernels.sparse_decode_attention.launch import SparseLaunch


def check(
    cache: Cache, counts: Tensor, rows: list[int], block: int, score_block: int, how: SparseLaunch | str | None = None,
    bias: Tensor | None = None,
) -> None:  # fmt: skip
    """Outputs, tokens read, scores and what is left untouched of one call; ``how`` is ``"naive"`` or a launch."""
    blocks = -(-cache[1].shape[2] // block)
    order = torch.Generator().manual_seed(int(cache[3].sum()))
    indices = torch.rand(*counts.shape, blocks, generator=order).argsort(-1)
    op: Any = naive.sparse_decode_attention if how == "naive" else partial(sparse_decode_attention_gpu, launch=how)
    scored: dict[str, Any] = {"score_rows": rows, "score_block": score_block}
    check_sparse(op, cache, indices, counts, block, bias=bias, scale=0.3, **scored)


def mixed(rng: torch.Generator, batch: int, lists: int, blocks: int) -> Tensor:
    """Counts of everything, of nothing and between, at least one of each kind where there are three lists."""
    counts = torch.randint(0, blocks + 1, (batch, lists), generator=rng)
    return torch.where(torch.rand(batch, lists, generator=rng) < 0.5, EVERYTHING, counts)


# batch, KV heads, group, head dimension, capacity, block read, block scored, one list a query head
SHAPES = [
    (1, 1, 1, 32, 1, 16, 16, False),
    (2, 3, 4, 64, 193, 64, 64, False),
    (3, 2, 7, 80, 150, 16, 1, False),
    (2, 2, 2, 32, 130, 1, 32, True),
    (2, 2, 16, 16, 200, 32, 128, False),
]
PATHS = [
    ("naive", torch.float32), ("naive", torch.bfloat16), ("even", torch.float16), ("uneven", torch.float32),
    ("uneven", torch.bfloat16),
]  # fmt: skip


@pytest.mark.parametrize(("path", "dtype"), PATHS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores_and_outputs(rng: torch.Generator, shape: tuple, path: str, dtype: torch.dtype) -> None:
    """Half of the lists read everything; of all, every other has a row of scores, in reverse order."""
    batch, kv, group, dim, size, block, score_block, own = shape
    lists = kv * group if own else kv
    rows = [(lists - h) // 2 if h % 2 == 0 else -1 for h in range(lists)]
    cache = ragged(rng, batch, kv, group, dim, size, dtype=dtype)
    counts = mixed(rng, batch, lists, -(-size // block))
    how: SparseLaunch | str | None = "naive"
    if path != "naive":
        how = launch.choose_launch(
            batch * lists, group if not own else 1, dim, size, size, dtype, DEVICE,
            uneven=path == "uneven", score_block=score_block,
        )  # fmt: skip
        assert isinstance(how, SparseLaunch) and (how.balanced or (path == "even" and how.tokens >= score_block))
    check(cache, counts, rows, block, score_block, how)


# Tiles larger than a scored block, as large, and smaller, which only shares of whole blocks allow.
LAUNCHES = [
    SparseLaunch(16, 64, 4, 2, 3),
    SparseLaunch(16, 32, 4, 2, 5, fused_merge=False),
    SparseLaunch(16, 16, 4, 2, 1, balanced=True),
    SparseLaunch(16, 16, 4, 3, 17, balanced=True),
    SparseLaunch(16, 32, 4, 2, 7, balanced=True),
    SparseLaunch(16, 128, 4, 2, 33, balanced=True),
]


@pytest.mark.parametrize("score_block", [1, 32, 128])
@pytest.mark.parametrize("how", LAUNCHES, ids=str)
def test_every_launch_leaves_the_same_scores(rng: torch.Generator, how: SparseLaunch, score_block: int) -> None:
    cache = ragged(rng, 2, 3, 2, 16, 120, fewest=57)
    counts = torch.tensor([[EVERYTHING, 3, EVERYTHING], [2, EVERYTHING, EVERYTHING]])
    if score_block > how.tokens and not how.balanced:
        with pytest.raises(ValueError, match="only a balanced launch"):
            check(cache, counts, [1, 0, 2], 16, score_block, how)
    else:
        check(cache, counts, [1, 0, 2], 16, score_block, how)


@pytest.mark.parametrize("path", ["naive", "gpu"])
def test_a_bias_takes_no_part_in_scores(rng: torch.Generator, path: str) -> None:
    cache = ragged(rng, 2, 2, 2, 16, 90)
    bias = torch.randn(2, 2, 90, generator=rng)
    how = "naive" if path == "naive" else None
    check(cache, torch.full((2, 2), EVERYTHING), [0, 1], 16, 16, how, bias)


def test_float64_scores_and_the_entrance(rng: torch.Generator) -> None:
    """The op on a CPU in float64 fills float64 scores."""
    q, k, v, lengths = ragged(rng, 3, 2, 3, 8, 50)
    scores = torch.zeros(3, 1, 13, dtype=torch.float64)
    counts = torch.tensor([[0, EVERYTHING]]).expand(3, 2)
    sparse_decode_attention(
        q.double(), k.double(), v.double(), torch.zeros(3, 2, 1, dtype=torch.int64), counts, block_size=4,
        kv_lengths=lengths, scores=scores, score_rows=torch.tensor([-1, 0]), score_block=4,
    )  # fmt: skip
    for b, length in enumerate(lengths.tolist()):
        logits = [float(key.double() @ q[b, 3:, 0].double().mean(0)) * 8**-0.5 for key in k[b, 1, :length]]
        want = [max(logits[i : i + 4]) for i in range(0, length, 4)]
        assert scores[b, 0, : len(want)].tolist() == pytest.approx(want, abs=1e-12)
        assert scores[b, 0, len(want) :].eq(0).all()


def test_refuses_scores_that_do_not_fit(rng: torch.Generator) -> None:
    q, k, v, kv_lengths = ragged(rng, 1, 2, 2, 16, 40)
    lists = torch.zeros(1, 2, 1, dtype=torch.int64), torch.full((1, 2), EVERYTHING)
    rows, scores, gpu = torch.tensor([0, 1]), torch.zeros(1, 2, 40), sparse_decode_attention_gpu
    for message, ops, scored in (
        ("together", (naive.sparse_decode_attention, gpu), {"scores": scores}),
        ("together", (naive.sparse_decode_attention, gpu), {"score_rows": rows}),
        ("need", (naive.sparse_decode_attention, gpu), {"scores": scores, "score_rows": rows, "score_block": 16}),
        ("need", (naive.sparse_decode_attention, gpu), {"scores": scores, "score_rows": rows[:1]}),
        ("block = 0", (naive.sparse_decode_attention, gpu), {"scores": scores, "score_rows": rows, "score_block": 0}),
        ("power of two", (gpu,), {"scores": scores[..., :14], "score_rows": rows, "score_block": 3}),
        ("float32", (gpu,), {"scores": scores.double(), "score_rows": rows}),
    ):
        for op in ops:
            with pytest.raises(ValueError, match=message):
                op(q, k, v, *lists, block_size=16, kv_lengths=kv_lengths, **scored)
    given = {"block_size": 16, "kv_lengths": kv_lengths, "scores": scores, "score_rows": rows}
    with pytest.raises(ValueError, match="32 query heads"):
        gpu(torch.randn(1, 64, 1, 16), k, v, *lists, **given, launch=SparseLaunch(16, 16, 4, 2, 1))
