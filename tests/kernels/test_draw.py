"""The argmax, draws of tokens and walks of draft trees: plain torch against loops, Triton against plain torch."""

from __future__ import annotations

import math

import pytest
import torch

from kernel_inputs import DEVICE
from longdecode.engine.speculation import DraftTree, PlacedTree
from longdecode.kernels.draw import DrawRule, Noise
from longdecode.kernels.draw.argmax_gpu import argmax_gpu
from longdecode.kernels.draw.gpu import draw_gpu
from longdecode.kernels.draw.naive import argmax, draw
from longdecode.kernels.tree_walk.gpu import tree_walk_gpu
from longdecode.kernels.tree_walk.naive import tree_walk

BOTH = pytest.mark.parametrize("op", [draw, draw_gpu])
WALKS = pytest.mark.parametrize("walk", [tree_walk, tree_walk_gpu])


def splitmix(z: int) -> int:
    """The finalizer on unsigned Python integers."""
    full = (1 << 64) - 1
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & full
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & full
    return z ^ (z >> 31)


def ranked(row: list[float], rule: DrawRule, seed: int, position: int, history: list[int], noisy: bool) -> list[int]:
    """Tokens of one row by descending score, those that min-p leaves out dropped."""
    full, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15
    moved = list(row)
    for token in {token for token in history if token >= 0}:
        moved[token] = row[token] / rule.penalty if row[token] > 0 else row[token] * rule.penalty
    if rule.temperature:
        moved = [x / rule.temperature for x in moved]
        floor = max(moved) + math.log(rule.min_p) if rule.min_p else -math.inf
        moved = [x if x >= floor else -math.inf for x in moved]
    if noisy:
        key = splitmix((splitmix((seed * golden + 1) & full) + position * golden) & full)
        for token in range(len(moved)):
            bits = splitmix((key + (token + 1) * golden) & full) >> 11
            moved[token] -= math.log(-math.log((bits + 0.5) * 2.0**-53))
    kept = [token for token, x in enumerate(moved) if x > -math.inf]
    return sorted(kept, key=lambda token: (-moved[token], token))


@BOTH
@pytest.mark.parametrize(
    ("width", "count", "rule", "noisy", "dtype"),
    [
        (1, 1, DrawRule(0.7), True, torch.float32),
        (63, 3, DrawRule(1.3, 0.05, 1.4), True, torch.float32),
        (2048, 2, DrawRule(0.9, penalty=1.2), True, torch.float32),
        (4099, 2, DrawRule(penalty=1.7), False, torch.bfloat16),
        (4099, 1, DrawRule(1.0, 1e-4, 1.1), True, torch.float32),
    ],
)
def test_the_largest_scores_are_drawn(
    op, width: int, count: int, rule: DrawRule, noisy: bool, dtype: torch.dtype, rng: torch.Generator
) -> None:
    """Against Python's own integers and floats: signs of logits, repeated and missing history, strides, ties."""
    logits = (3 * torch.randn(width, 3, generator=rng)).to(dtype).T
    logits[0, width // 2 :] = -math.inf
    history = torch.randint(-1, width, (3, 40), generator=rng)
    history[:, 7] = history[:, 3]
    seeds, positions = torch.tensor([0, -5, 2**62 + 11]), torch.tensor([0, 3, 131_071])
    noise = Noise(seeds.to(DEVICE), positions.to(DEVICE)) if noisy else None
    got = op(logits.to(DEVICE), count, rule, noise, history.to(DEVICE)).tolist()
    for row in range(3):
        args = (rule, int(seeds[row]), int(positions[row]), history[row].tolist(), noisy)
        want = ranked(logits[row].float().tolist(), *args)[:count]
        assert got[row][: len(want)] == want and all(0 <= token < width for token in got[row])


@BOTH
def test_rows_of_one_request_share_a_seed_in_memory(op, rng: torch.Generator) -> None:
    """Keys without a stride, or with one of their own, as a batch of one makes them."""
    logits, seed = torch.randn(4, 70, generator=rng).to(DEVICE), torch.tensor([77, 1, 2, 3], device=DEVICE)
    places = torch.arange(8, device=DEVICE)
    got = op(logits, 1, DrawRule(0.8), Noise(seed[:1].expand(4), places[::2]))
    alone = [op(logits[n : n + 1], 1, DrawRule(0.8), Noise(seed[:1], places[2 * n : 2 * n + 1])) for n in range(4)]
    assert torch.equal(got, torch.cat(alone)) and len(set(got.flatten().tolist())) > 1


@BOTH
def test_a_row_of_no_number_still_names_tokens(op) -> None:
    """A finished row may read anything; its neighbour does not suffer."""
    logits = torch.zeros(2, 3000, device=DEVICE)
    logits[0], logits[1, 2900] = math.nan, 50.0
    zeros = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    got = op(logits, 2, DrawRule(1.0, 0.1), Noise(zeros, zeros), None)
    assert got[1, 0] == 2900 and bool(((got >= 0) & (got < 3000)).all())


@WALKS
@pytest.mark.parametrize("children", [(1, 2, 2, 1), (3, 3), (1, 1, 1)], ids=str)
def test_the_path_that_carries_the_chosen_tokens_is_walked(
    walk, children: tuple[int, ...], rng: torch.Generator
) -> None:
    """Few tokens, so that prefixes recur in several branches; rows without a draft; sequences that differ."""
    tree = DraftTree.branching(children).with_chains(1, 2, 2)
    placed = PlacedTree(tree, DEVICE)
    chosen = torch.randint(0, 3, (40, tree.rows), generator=rng)
    nodes = torch.randint(-1, 3, (40, tree.rows - 1), generator=rng)
    rows, tokens, counts = walk(chosen.to(DEVICE), nodes.to(DEVICE), placed.ancestors, placed.depths)
    lengths = set()
    for one in range(40):
        want, prefix = [0], list[int]()
        while True:
            prefix.append(int(chosen[one, want[-1]]))
            same = [row for row in range(tree.rows) if [int(nodes[one, at - 1]) for at in tree.path(row)[1:]] == prefix]
            if not same:
                break
            want.append(same[0])
        assert int(counts[one]) == len(want)
        assert rows[one, : len(want)].tolist() == want and tokens[one, : len(want)].tolist() == prefix
        assert rows[one, len(want) :].tolist() == want[-1:] * (tree.depth + 1 - len(want))
        lengths.add(len(want))
    assert len(lengths) > 2


ARGMAX = pytest.mark.parametrize("op", [argmax, argmax_gpu])


@ARGMAX
@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 4096), (1, 4097), (2, 9001)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_value_is_found(rng: torch.Generator, op, shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=rng).to(dtype)
    got = op(x.to(DEVICE)).cpu()
    assert got.dtype == torch.int64
    for row, index in enumerate(got.tolist()):
        assert x[row, index] == x[row].max() and not (x[row, :index] == x[row].max()).any()


@ARGMAX
def test_of_equal_values_the_first_wins(op) -> None:
    x = torch.full((2, 5000), -2.0)
    x[0, [4321, 4322]] = 0.0
    x[0, 4321] = -0.0
    assert op(x.to(DEVICE)).tolist() == [4321, 0]


@ARGMAX
def test_infinities_and_any_strides(rng: torch.Generator, op) -> None:
    x = torch.randn(100, 2, generator=rng)
    x[7, 0], x[:, 1] = math.inf, -math.inf
    assert op(x.to(DEVICE).T).tolist() == [7, 0]
