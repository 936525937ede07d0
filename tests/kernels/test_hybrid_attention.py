"""Lists that read everything beside lists that do not, and the scores the former leave, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from longdecode.kernels.sparse_decode_attention import EVERYTHING, launch, naive, sparse_decode_attention
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu
from longdecode.kernels.sparse_decode_attention.launch import SparseLaunch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
NAN = float("nan")
UNTOUCHED = 1e6


def heads(
    rng: torch.Generator, batch: int, kv: int, group: int, dim: int, size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sharp queries, a cache with NaN past ragged lengths: the first row full, the last one empty if there are more."""
    q = (3 * torch.randn(batch, kv * group, 1, dim, generator=rng)).to(dtype)
    k, v = (torch.randn(batch, kv, size, dim, generator=rng).to(dtype) for _ in range(2))
    lengths = torch.randint(1, size + 1, (batch,), generator=rng)
    lengths[-1] = 0
    lengths[0] = size
    for row, length in enumerate(lengths.tolist()):
        k[row, :, length:], v[row, :, length:] = NAN, NAN
    return q, k, v, lengths


def expected(q: Tensor, k: Tensor, v: Tensor, tokens: list[int], scale: float) -> Tensor:
    """Attention of one query ``[D]`` over the given tokens, in float64."""
    if not tokens:
        return torch.zeros(len(q), dtype=torch.float64)
    weights = (scale * k[tokens].double() @ q.double()).softmax(0)
    return weights @ v[tokens].double()


def check(
    data: tuple[Tensor, Tensor, Tensor, Tensor],
    counts: Tensor,
    rows: list[int],
    block: int,
    score_block: int,
    how: SparseLaunch | str | None = None,
    bias: Tensor | None = None,
) -> None:
    """Outputs, scores, untouched entries and kv_tokens_read of one call; ``how`` is ``"naive"`` or a launch."""
    q, k, v, lengths = data
    (batch, kv, size, _), lists = k.shape, counts.shape[1]
    blocks = -(-size // block)
    order = torch.Generator().manual_seed(int(lengths.sum()))
    indices = torch.rand(batch, lists, blocks, generator=order).argsort(-1)
    scores = torch.full((batch, -(-size // score_block), max(rows) + 2), UNTOUCHED).transpose(1, 2)
    kv_tokens_read = torch.arange(batch)
    moved = [x.to(DEVICE) for x in (q, k, v, indices, counts)]
    rest = {
        "block_size": block, "kv_lengths": lengths.to(DEVICE), "scale": 0.3,
        "kv_tokens_read": kv_tokens_read.to(DEVICE),
        "scores": scores.to(DEVICE), "score_rows": torch.tensor(rows, device=DEVICE), "score_block": score_block,
        "bias": None if bias is None else bias.to(DEVICE),
    }  # fmt: skip
    if how == "naive":
        out, _ = naive.sparse_decode_attention(*moved, **rest)
    else:
        out, _ = sparse_decode_attention_gpu(*moved, **rest, launch=how)
    got, kv_tokens_read = rest["scores"].cpu(), rest["kv_tokens_read"].cpu()
    served, group = q.shape[1] // lists, q.shape[1] // kv
    for b, length in enumerate(lengths.tolist()):
        read, filled = b, set()
        for h in range(lists):
            number, head = int(counts[b, h]), h * served // group
            chosen = range(blocks) if number < 0 else indices[b, h, :number].tolist()
            tokens = [t for j in chosen for t in range(j * block, (j + 1) * block) if t < length]
            read += len(tokens)
            for g in range(h * served, (h + 1) * served):
                if bias is None:
                    want = expected(q[b, g, 0], k[b, head], v[b, head], tokens, 0.3)
                    torch.testing.assert_close(
                        out[b, g, 0].cpu().double(), want, atol=TOLERANCE[q.dtype], rtol=TOLERANCE[q.dtype]
                    )
            if number >= 0 or rows[h] < 0:
                continue
            filled.add(rows[h])
            mean = q[b, h * served : (h + 1) * served, 0].double().mean(0)
            logits = 0.3 * k[b, head, :length].double() @ mean
            want = torch.tensor([part.max() for part in logits.split(score_block)] if length else [])
            torch.testing.assert_close(
                got[b, rows[h], : len(want)].double(), want.double(), atol=1e-4, rtol=TOLERANCE[q.dtype]
            )
            assert got[b, rows[h], len(want) :].eq(UNTOUCHED).all()
        others = [r for r in range(got.shape[1]) if r not in filled]
        assert got[b, others].eq(UNTOUCHED).all()
        assert int(kv_tokens_read[b]) == read


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
    data = heads(rng, batch, kv, group, dim, size, dtype)
    counts = mixed(rng, batch, lists, -(-size // block))
    how: SparseLaunch | str | None = "naive"
    if path != "naive":
        how = launch.choose_launch(
            batch * lists, group if not own else 1, dim, size, size, dtype, DEVICE,
            uneven=path == "uneven", score_block=score_block,
        )  # fmt: skip
        assert isinstance(how, SparseLaunch) and (how.balanced or (path == "even" and how.tokens >= score_block))
    check(data, counts, rows, block, score_block, how)


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
    data = heads(rng, 2, 3, 2, 16, 120, torch.float32)
    data[3][-1] = int(torch.randint(1, 120, (), generator=rng))
    data[1][-1].nan_to_num_(0.5), data[2][-1].nan_to_num_(0.5)
    counts = torch.tensor([[EVERYTHING, 3, EVERYTHING], [2, EVERYTHING, EVERYTHING]])
    if score_block > how.tokens and not how.balanced:
        with pytest.raises(ValueError, match="only a balanced launch"):
            check(data, counts, [1, 0, 2], 16, score_block, how)
    else:
        check(data, counts, [1, 0, 2], 16, score_block, how)


@pytest.mark.parametrize("path", ["naive", "gpu"])
def test_a_bias_takes_no_part_in_scores(rng: torch.Generator, path: str) -> None:
    data = heads(rng, 2, 2, 2, 16, 90, torch.float32)
    bias = torch.randn(2, 2, 90, generator=rng)
    how = "naive" if path == "naive" else None
    check(data, torch.full((2, 2), EVERYTHING), [0, 1], 16, 16, how, bias)


def test_float64_scores_and_the_entrance(rng: torch.Generator) -> None:
    """The op on a CPU in float64 fills float64 scores."""
    q, k, v, lengths = heads(rng, 3, 2, 3, 8, 50, torch.float32)
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
    q, k, v, lengths = heads(rng, 1, 2, 2, 16, 40, torch.float32)
    lists = torch.zeros(1, 2, 1, dtype=torch.int64), torch.full((1, 2), EVERYTHING)
    rows = torch.tensor([0, 1])

    def both(message: str, **scored: object) -> None:
        for run in (naive.sparse_decode_attention, sparse_decode_attention_gpu):
            with pytest.raises(ValueError, match=message):
                run(q, k, v, *lists, block_size=16, kv_lengths=lengths, **scored)

    both("together", scores=torch.zeros(1, 2, 40))
    both("together", score_rows=rows)
    both("need", scores=torch.zeros(1, 2, 40), score_rows=rows, score_block=16)
    both("need", scores=torch.zeros(1, 2, 40), score_rows=rows[:1])
    both("score_block = 0", scores=torch.zeros(1, 2, 40), score_rows=rows, score_block=0)

    def kernel(message: str, how: SparseLaunch | None = None, **scored: object) -> None:
        with pytest.raises(ValueError, match=message):
            sparse_decode_attention_gpu(q, k, v, *lists, block_size=16, kv_lengths=lengths, launch=how, **scored)

    kernel("power of two", scores=torch.zeros(1, 2, 14), score_rows=rows, score_block=3)
    kernel("float32", scores=torch.zeros(1, 2, 40).double(), score_rows=rows)
    wide = torch.randn(1, 64, 1, 16)
    with pytest.raises(ValueError, match="32 query heads"):
        sparse_decode_attention_gpu(
            wide, k, v, *lists, block_size=16, kv_lengths=lengths, scores=torch.zeros(1, 2, 40), score_rows=rows,
            launch=SparseLaunch(16, 16, 4, 2, 1),
        )  # fmt: skip
