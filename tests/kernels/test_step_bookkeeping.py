"""Recording of tokens and moves between caches: plain torch and Triton against loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor

from kernel_inputs import DEVICE
from longdecode.kernels.draw.naive import Progress, record_tokens
from longdecode.kernels.draw.record_gpu import record_tokens_gpu
from longdecode.kernels.token_move import PartialSlots
from longdecode.kernels.token_move import gpu as moves
from longdecode.kernels.token_move import naive as plain


@pytest.mark.parametrize("record", [record_tokens, record_tokens_gpu])
@pytest.mark.parametrize(("width", "stops"), [(1, 0), (1, 2), (5, 0), (5, 3)])
def test_tokens_are_recorded_up_to_a_stop_or_total(record: Callable, width: int, stops: int, rng: Generator) -> None:
    """Sequences that are done, begin, end within the step, and stop on a token that is forced or not."""
    rows, longest = 60, 9

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=rng)

    totals = integers(1, longest + 1, rows)
    counts = integers(0, longest, rows).minimum(totals - 1)
    active, forced, newest = integers(0, 4, rows) > 0, integers(0, 6, rows), integers(0, 7, rows)
    text = torch.full((rows, 3 + longest + 1), -1)
    stop_ids = integers(0, 7, rows, stops) if stops else None
    tokens, limits = integers(0, 7, width, rows).T, integers(1, width + 1, rows) if width > 1 else None
    steps = integers(0, 9, rows)
    moved = [tensor.clone().to(DEVICE) for tensor in (text, counts, steps, newest, active)]
    fixed = [None if tensor is None else tensor.to(DEVICE) for tensor in (totals, forced, stop_ids)]
    progress = Progress(moved[0][:, 3:], *moved[1:], *fixed)  # type: ignore[arg-type]
    recorded, taken = record(progress, tokens.to(DEVICE), None if limits is None else limits.to(DEVICE))
    for row in range(rows):
        want, done = list[int](), not active[row]
        for token in tokens[row, : width if limits is None else int(limits[row])].tolist():
            if done:
                break
            want.append(token)
            at = int(counts[row]) + len(want)
            stopped = stop_ids is not None and token in stop_ids[row].tolist() and at > int(forced[row])
            done = stopped or at == int(totals[row])
        end = int(counts[row]) + len(want)
        assert int(recorded[row]) == len(want) == int(moved[1][row]) - int(counts[row])
        assert taken[row].tolist() == [place < len(want) for place in range(width)]
        assert moved[0][row, 3 + int(counts[row]) : 3 + end].tolist() == want
        assert (moved[0][row, : 3 + int(counts[row])] == -1).all() and (moved[0][row, 3 + end : -1] == -1).all()
        assert int(moved[2][row]) == int(steps[row]) + bool(active[row])
        assert int(moved[3][row]) == (want[-1] if want else int(newest[row])) and bool(moved[4][row]) == (not done)


def caches(*sizes: int, rng: Generator) -> list[Tensor]:
    """Keys and values of two layers, three sequences and two heads of 20 channels."""
    return [torch.randn(2, 3, 2, size, 20, generator=rng).to(DEVICE) for size in sizes for _ in range(2)]


@pytest.mark.parametrize("compact", [plain.compact_tokens, moves.compact_tokens_gpu])
def test_accepted_rows_move_to_the_front_of_their_block(compact: Callable, rng: Generator) -> None:
    k, v = caches(40, rng=rng)
    starts, rows = torch.tensor([0, 17, 33]), torch.tensor([[0, 2, 5, 6], [0, 1, 2, 3], [0, 1, 4, 6]])
    want = [tensor.clone() for tensor in (k, v)]
    for new, old in zip(want, (k, v), strict=True):
        for row in range(3):
            for place, taken in enumerate(rows[row].tolist()):
                new[:, row, :, int(starts[row]) + place] = old[:, row, :, int(starts[row]) + taken]
    compact(k, v, starts.to(DEVICE), rows.to(DEVICE))
    torch.testing.assert_close([k, v], want, rtol=0, atol=0)


@pytest.mark.parametrize("fill", [plain.fill_tokens, moves.fill_tokens_gpu])
def test_verified_tokens_take_the_places_of_the_least_important(fill: Callable, rng: Generator) -> None:
    """Room left, room that runs out, none; a sequence that keeps nothing; a block at the end of the cache."""
    k, v, k_to, v_to = caches(40, 14, rng=rng)
    budget, width = 11, 5
    held, newer = torch.tensor([4, 10, 11]), torch.tensor([2, 0, 3])
    starts, kept = torch.tensor([3, 35, 36]), torch.tensor([5, 4, 0])
    want = [tensor.clone() for tensor in (k_to, v_to)]
    for new, old in zip(want, (k, v), strict=True):
        for row in range(3):
            for place in range(int(kept[row])):
                since = int(newer[row]) + place
                slot = int(held[row]) + since
                slot = slot if slot < budget else budget - 1 - since
                new[:, row, :, slot] = old[:, row, :, int(starts[row]) + place]
    into = PartialSlots(k_to, v_to, held.to(DEVICE), newer.to(DEVICE), budget)
    fill(k, v, starts.to(DEVICE), kept.to(DEVICE), width, into)
    torch.testing.assert_close([k_to, v_to], want, rtol=0, atol=0)
