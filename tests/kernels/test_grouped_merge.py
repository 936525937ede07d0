"""Lists of many parts are joined in groups: against float64, in any order of arrival, leaving nothing behind."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

from kernel_inputs import DEVICE, check_sparse, poison_past, ragged
from longdecode.kernels.sparse_decode_attention import EVERYTHING
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu
from longdecode.kernels.sparse_decode_attention.launch import SparseLaunch
from longdecode.kernels.split_kv import COUNTERS, arrival_counters

SCORED = 32
Lists = tuple[list[list[int]], list[int]]


class Case(NamedTuple):
    """Arguments of the kernel; ``k`` and ``v`` hold NaN past the lengths."""

    q: Tensor
    k: Tensor
    v: Tensor
    indices: Tensor
    counts: Tensor
    lengths: Tensor


def case(
    rng: torch.Generator, counts: list[list[int]], lengths: list[int], group: int, dim: int, dtype: torch.dtype
) -> Case:
    """Sharp queries over a ragged cache, with lists of 16 tokens a block in random order."""
    size, batch, lists = max(lengths), len(counts), len(counts[0])
    q, k, v, _ = ragged(rng, batch, lists, group, dim, size, dtype=dtype, fewest=size)
    held = torch.tensor(lengths)
    poison_past(held, k, v)
    indices = torch.rand(batch, lists, -(-size // 16), generator=rng).argsort(-1)
    return Case(q, k, v, indices, torch.tensor(counts), held)


def run(one: Case, launch: SparseLaunch, scored: bool = False) -> tuple[Tensor, ...]:
    """Outputs, log-sum-exp and, where asked for, scores; the counters must be zero afterwards."""
    extra, moved = {}, Case(*(x.to(DEVICE) for x in one))
    if scored:
        batch, lists, size = one.k.shape[:3]
        scores = torch.full((batch, lists, -(-size // SCORED)), -7.0, device=DEVICE)
        extra = {"scores": scores, "score_rows": torch.arange(lists, device=DEVICE).flip(0), "score_block": SCORED}
    found = sparse_decode_attention_gpu(*moved[:5], block_size=16, kv_lengths=moved.lengths, launch=launch, **extra)
    assert not arrival_counters(1, DEVICE).any()
    return tuple(x.cpu() for x in (*found, *([extra["scores"]] if scored else [])))


def check(one: Case, launch: SparseLaunch, scored: bool = False) -> None:
    """Compare with sums in float64; the counters must be zero afterwards."""
    rows = list(range(one.counts.shape[1]))[::-1] if scored else None
    op = partial(sparse_decode_attention_gpu, launch=launch)
    cache = (*one[:3], one.lengths)
    check_sparse(op, cache, one.indices, one.counts, 16, score_rows=rows, score_block=SCORED if scored else 1)
    assert not arrival_counters(1, DEVICE).any()


# Everything, every block, a few, one, none; a row of one block of tokens, an empty row.
MANY = ([[EVERYTHING, 3], [0, 21], [1, EVERYTHING]], [600, 340, 0])
FEW = ([[EVERYTHING, 3], [0, 11], [1, EVERYTHING]], [300, 170, 0])
ALONE = ([[EVERYTHING]], [630])
LAUNCHES = [
    # Groups of 16 in more programs than tiles and in fewer, of 4 with several steps of the last merge, of 32; lists
    # that cost nothing to change, and so much that some shares hold nothing else.
    (SparseLaunch(16, 16, 4, 2, 100, balanced=True, merge_group=16), True, FEW),
    (SparseLaunch(16, 16, 4, 2, 32, balanced=True, merge_group=16, list_cost=0), False, FEW),
    (SparseLaunch(16, 16, 4, 2, 24, balanced=True, merge_group=4), True, FEW),
    (SparseLaunch(16, 16, 8, 2, 64, balanced=True, merge_group=32, list_cost=9), True, MANY),
    (SparseLaunch(16, 16, 4, 2, 45, balanced=True, merge_group=8, list_cost=40), True, FEW),
]


@pytest.mark.parametrize(("launch", "scored", "lists"), LAUNCHES, ids=lambda given: str(given)[:40])
def test_lists_of_many_and_of_few_parts(rng: torch.Generator, launch: SparseLaunch, scored: bool, lists: Lists) -> None:
    check(case(rng, *lists, 2, 16, torch.float32), launch, scored)


@pytest.mark.parametrize("splits", [16, 17, 18, 32, 33])
def test_one_list_of_any_number_of_parts(rng: torch.Generator, splits: int) -> None:
    """Around whole groups: the last group holds all, one or two parts."""
    launch = SparseLaunch(16, 16, 4, 2, splits, balanced=True, merge_group=16)
    check(case(rng, *ALONE, 3, 32, torch.float16), launch)


@pytest.mark.parametrize(("group", "dim"), [(20, 16), (33, 200)])
def test_more_rows_than_a_merge_holds(rng: torch.Generator, group: int, dim: int) -> None:
    """Query heads of a list in several row tiles, and tiles of more rows than one step of the merge loads."""
    one = case(rng, [[EVERYTHING, 4]], [200], group, dim, torch.float32)
    launch = SparseLaunch(16, 16, 4, 2, 14, balanced=True, merge_group=8)
    check(one, launch)
    check(one, replace(launch, rows=32, merge_group=3))


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the order of programs is chosen in the interpreter")
def test_results_do_not_hang_on_who_comes_last(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that run in reverse or shuffled leave the same bits."""
    one = case(rng, *FEW, 2, 16, torch.float32)
    launch = SparseLaunch(16, 16, 4, 2, 30, balanced=True, merge_group=5)
    check(one, launch, True)
    want = run(one, launch, True)
    builder = interpreter.interpreter_builder
    place = type(builder).set_grid_idx
    for order in (torch.arange(30).flip(0), torch.randperm(30, generator=rng)):
        monkeypatch.setattr(builder, "set_grid_idx", lambda x, y, z, order=order: place(builder, int(order[x]), y, z))
        for got, first in zip(run(one, launch, True), want, strict=True):
            assert got.equal(first)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="programs arrive in any order on a GPU alone")
def test_two_runs_give_the_same_bits(rng: torch.Generator) -> None:
    one = case(rng, *MANY, 4, 128, torch.bfloat16)
    launch = SparseLaunch(16, 16, 4, 2, 200, balanced=True, merge_group=16)
    want = run(one, launch, True)
    for _ in range(50):
        for got, first in zip(run(one, launch, True), want, strict=True):
            assert got.equal(first)


def test_groups_need_counters_and_two_parts(rng: torch.Generator) -> None:
    one = case(rng, *ALONE, 1, 16, torch.float32)
    with pytest.raises(ValueError, match=f"{COUNTERS} arrival counters, {COUNTERS + 1} are needed"):
        run(one, SparseLaunch(16, 16, 4, 2, COUNTERS - 1, balanced=True))
    with pytest.raises(ValueError, match="merge_group = 1"):
        SparseLaunch(16, 16, 4, 2, 4, balanced=True, merge_group=1)
    with pytest.raises(ValueError, match="list_cost = -1"):
        SparseLaunch(16, 16, 4, 2, 4, balanced=True, list_cost=-1)
