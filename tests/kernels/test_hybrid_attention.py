"""Lists of any length side by side: those that read everything, the scores they leave, parts joined in groups."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from triton.runtime import interpreter

from kernel_inputs import DEVICE, Cache, check_sparse, on_device, poison_past, ragged, same
from longdecode.kernels.sparse_decode_attention import EVERYTHING, launch, naive
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu
from longdecode.kernels.sparse_decode_attention.launch import SparseLaunch
from longdecode.kernels.split_kv import COUNTERS, arrival_counters


def check(
    cache: Cache, counts: Tensor, rows: list[int], block: int, score_block: int, how: SparseLaunch | str | None = None,
    bias: Tensor | None = None,
) -> None:  # fmt: skip
    """Outputs, tokens read, scores and what is left untouched of one call; ``how`` is ``"naive"`` or a launch."""
    blocks = -(-cache[1].shape[2] // block)
    order = Generator().manual_seed(int(cache[3].sum()))
    indices = torch.rand(*counts.shape, blocks, generator=order).argsort(-1)
    op: Any = naive.sparse_decode_attention if how == "naive" else partial(sparse_decode_attention_gpu, launch=how)
    scored: dict[str, Any] = {"score_rows": rows, "score_block": score_block}
    check_sparse(op, cache, indices, counts, block, bias=bias, scale=0.3, **scored)


def mixed(rng: Generator, batch: int, lists: int, blocks: int) -> Tensor:
    """Counts of everything, of nothing and between, at least one of each kind where there are three lists."""
    counts = torch.randint(0, blocks + 1, (batch, lists), generator=rng)
    return torch.where(torch.rand(batch, lists, generator=rng) < 0.5, EVERYTHING, counts)


# batch, KV heads, group, head dimension, capacity, block read, block scored, one list a query head
SHAPES = [
    (1, 1, 1, 32, 1, 16, 16, False), (2, 3, 4, 64, 193, 64, 64, False), (3, 2, 7, 80, 150, 16, 1, False),
    (2, 2, 2, 32, 130, 1, 32, True), (2, 2, 16, 16, 200, 32, 128, False),
]  # fmt: skip
PATHS = [
    ("naive", torch.float32), ("naive", torch.bfloat16), ("even", torch.float16), ("uneven", torch.float32),
    ("uneven", torch.bfloat16),
]  # fmt: skip


@pytest.mark.parametrize(("path", "dtype"), PATHS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores_and_outputs(rng: Generator, shape: tuple, path: str, dtype: torch.dtype) -> None:
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
    SparseLaunch(16, 64, 4, 2, 3), SparseLaunch(16, 32, 4, 2, 5, fused_merge=False),
    SparseLaunch(16, 16, 4, 2, 1, balanced=True), SparseLaunch(16, 16, 4, 3, 17, balanced=True),
    SparseLaunch(16, 32, 4, 2, 7, balanced=True), SparseLaunch(16, 128, 4, 2, 33, balanced=True),
]  # fmt: skip


@pytest.mark.parametrize("score_block", [1, 32, 128])
@pytest.mark.parametrize("how", LAUNCHES, ids=str)
def test_every_launch_leaves_the_same_scores(rng: Generator, how: SparseLaunch, score_block: int) -> None:
    cache = ragged(rng, 2, 3, 2, 16, 120, fewest=57)
    counts = torch.tensor([[EVERYTHING, 3, EVERYTHING], [2, EVERYTHING, EVERYTHING]])
    if score_block > how.tokens and not how.balanced:
        with pytest.raises(ValueError, match="only a balanced launch"):
            check(cache, counts, [1, 0, 2], 16, score_block, how)
    else:
        check(cache, counts, [1, 0, 2], 16, score_block, how)


@pytest.mark.parametrize("path", ["naive", "gpu"])
def test_a_bias_takes_no_part_in_scores(rng: Generator, path: str) -> None:
    cache, bias = ragged(rng, 2, 2, 2, 16, 90), torch.randn(2, 2, 90, generator=rng)
    check(cache, torch.full((2, 2), EVERYTHING), [0, 1], 16, 16, "naive" if path == "naive" else None, bias)


def test_refuses_scores_that_do_not_fit(rng: Generator) -> None:
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


SCORED = 32
Lists = tuple[list[list[int]], list[int]]
Case = tuple[Cache, Tensor, Tensor]
"""A ragged cache, lists of blocks and their counts."""


def case(rng: Generator, counts: list[list[int]], lengths: list[int], group: int, dim: int, dtype: torch.dtype) -> Case:
    """Sharp queries over a ragged cache, with lists of 16 tokens a block in random order."""
    size, batch, lists = max(lengths), len(counts), len(counts[0])
    q, k, v, _ = ragged(rng, batch, lists, group, dim, size, dtype=dtype, fewest=size)
    held = torch.tensor(lengths)
    poison_past(held, k, v)
    indices = torch.rand(batch, lists, -(-size // 16), generator=rng).argsort(-1)
    return (q, k, v, held), indices, torch.tensor(counts)


def run(one: Case, launch: SparseLaunch, scored: bool = False) -> tuple[Tensor, ...]:
    """Outputs, log-sum-exp and, where asked for, scores; the counters must be zero afterwards."""
    extra, (q, k, v, lengths), *chosen = {}, on_device(*one[0]), *on_device(*one[1:])
    if scored:
        batch, lists, size = k.shape[:3]
        scores = torch.full((batch, lists, -(-size // SCORED)), -7.0, device=DEVICE)
        extra = {"scores": scores, "score_rows": torch.arange(lists, device=DEVICE).flip(0), "score_block": SCORED}
    found = sparse_decode_attention_gpu(q, k, v, *chosen, block_size=16, kv_lengths=lengths, launch=launch, **extra)
    assert not arrival_counters(1, DEVICE).any()
    return tuple(x.cpu() for x in (*found, *([extra["scores"]] if scored else [])))


def check_merged(one: Case, launch: SparseLaunch, scored: bool = False) -> None:
    """Compare with sums in float64; the counters must be zero afterwards."""
    rows = list(range(one[2].shape[1]))[::-1] if scored else None
    op = partial(sparse_decode_attention_gpu, launch=launch)
    check_sparse(op, *one, 16, score_rows=rows, score_block=SCORED if scored else 1)
    assert not arrival_counters(1, DEVICE).any()


# Everything, every block, a few, one, none; a row of one block of tokens, an empty row.
MANY = ([[EVERYTHING, 3], [0, 21], [1, EVERYTHING]], [600, 340, 0])
FEW = ([[EVERYTHING, 3], [0, 11], [1, EVERYTHING]], [300, 170, 0])
ALONE = ([[EVERYTHING]], [630])
PARTS = [
    # More programs than tiles and fewer, several steps of a merge; lists that cost nothing to change, and so much that
    # some shares hold nothing else.
    (SparseLaunch(16, 16, 4, 2, 100, balanced=True), True, FEW),
    (SparseLaunch(16, 16, 4, 2, 32, balanced=True, list_cost=0), False, FEW),
    (SparseLaunch(16, 16, 8, 2, 64, balanced=True, list_cost=9), True, MANY),
    (SparseLaunch(16, 16, 4, 2, 45, balanced=True, list_cost=40), True, FEW),
]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("launch", "scored", "lists"), PARTS, ids=lambda given: str(given)[:40])
def test_lists_of_many_and_few_parts(rng: Generator, launch: Any, scored: bool, lists: Lists, fused: bool) -> None:
    check_merged(case(rng, *lists, 2, 16, torch.float32), replace(launch, fused_merge=fused), scored)


@pytest.mark.parametrize("splits", [1, 31, 33])
def test_one_list_of_any_number_of_parts(rng: Generator, splits: int) -> None:
    for fused in (True, False):
        launch = SparseLaunch(16, 16, 4, 2, splits, balanced=True, fused_merge=fused)
        check_merged(case(rng, *ALONE, 3, 32, torch.float16), launch)


@pytest.mark.parametrize(("group", "dim"), [(20, 16), (33, 200)])
def test_more_rows_than_a_merge_holds(rng: Generator, group: int, dim: int) -> None:
    """Query heads of a list in several row tiles, and tiles of more rows than one step of the merge loads."""
    one = case(rng, [[EVERYTHING, 4]], [200], group, dim, torch.float32)
    launch = SparseLaunch(16, 16, 4, 2, 14, balanced=True)
    for own in (launch, replace(launch, rows=32), replace(launch, fused_merge=False)):
        check_merged(one, own)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the order of programs is chosen in the interpreter")
def test_results_do_not_hang_on_who_comes_last(rng: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that run in reverse or shuffled leave the same bits."""
    one = case(rng, *FEW, 2, 16, torch.float32)
    launch = SparseLaunch(16, 16, 4, 2, 30, balanced=True)
    check_merged(one, launch, True)
    want, builder = run(one, launch, True), interpreter.interpreter_builder
    place = type(builder).set_grid_idx
    for order in (torch.arange(30).flip(0), torch.randperm(30, generator=rng)):
        monkeypatch.setattr(builder, "set_grid_idx", lambda x, y, z, order=order: place(builder, int(order[x]), y, z))
        same(run(one, launch, True), want)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="programs arrive in any order on a GPU alone")
def test_two_runs_give_the_same_bits(rng: Generator) -> None:
    one = case(rng, *MANY, 4, 128, torch.bfloat16)
    launch = SparseLaunch(16, 16, 4, 2, 200, balanced=True)
    want = run(one, launch, True)
    for _ in range(50):
        same(run(one, launch, True), want)


def test_lists_need_counters_and_no_negative_cost() -> None:
    with pytest.raises(ValueError, match=f"{COUNTERS} arrival counters, {COUNTERS + 1} are needed"):
        arrival_counters(COUNTERS + 1, DEVICE)
    with pytest.raises(ValueError, match="list_cost = -1"):
        SparseLaunch(16, 16, 4, 2, 4, balanced=True, list_cost=-1)
