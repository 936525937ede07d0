"""Eviction: one read leaves the logits, from which the weights and the victims follow, in torch and in Triton."""

from __future__ import annotations

import pytest
import torch

from kernel_inputs import DEVICE, ragged
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.decode_attention.gpu import decode_attention_gpu
from longdecode.kernels.eviction import choose_victims
from longdecode.kernels.eviction.gpu import choose_victims_gpu
from longdecode.kernels.split_kv import arrival_counters

SHAPES = (2, 2, 3, 20, 37), (1, 1, 8, 32, 600), (2, 3, 1, 64, 130), (3, 2, 2, 16, 1100)
PATHS = {"naive": (decode_attention, choose_victims), "triton": (decode_attention_gpu, choose_victims_gpu)}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", ["accumulate", "latest"])
def test_the_lowest_free_score_is_the_victim(
    rng: torch.Generator, path: str, shape: tuple[int, ...], rule: str
) -> None:
    """Against float64 row by row: scores, recorded positions, victims, and what a read leaves."""
    attend, choose = PATHS[path]
    latest = rule == "latest"
    batch, kv, group, dim, size = shape
    q, k, v, lengths = ragged(rng, *shape, per_head=not latest, fewest=2)
    lengths = lengths.view(batch, -1).expand(batch, kv).contiguous()
    own = 1 if latest else kv  # lists of positions
    drawn = torch.stack([torch.randperm(max(900, size), generator=rng)[:size] for _ in range(batch * own)])
    positions = drawn.view(batch, own, size).expand(batch, kv, size)
    newest = (torch.rand(batch, own, generator=rng) * lengths[:, :own]).long()
    newest = newest.expand(batch, kv).contiguous()
    position, protected = torch.full((batch,), 2000), torch.full((batch,), 700)
    scores = torch.rand(batch, kv, size, generator=rng)
    held = [x.clone().to(DEVICE) for x in (positions.int(), scores, torch.zeros(batch, kv, dtype=torch.int64))]
    logits = torch.empty(batch, kv * group, size, device=DEVICE)
    out, lse = attend(*(x.to(DEVICE) for x in (q, k, v, lengths)), logits=logits)
    inputs = (x.to(DEVICE) for x in (lengths, newest, position, protected))
    choose(logits, lse[..., 0], *inputs, *held, rule=rule)
    assert not arrival_counters(1, DEVICE).any()
    told, left, victims = (x.cpu() for x in held)
    for b in range(batch):
        weights = []
        for h in range(kv * group):
            n = int(lengths[b, h // group])
            row = k[b, h // group, :n].double() @ q[b, h, 0].double() * dim**-0.5
            torch.testing.assert_close(logits[b, h, :n].cpu().double(), row, atol=1e-4, rtol=1e-4)
            weights.append(row.softmax(0))
            want = weights[-1] @ v[b, h // group, :n].double()
            torch.testing.assert_close(out[b, h, 0].cpu().double(), want, atol=1e-4, rtol=1e-4)
        for head in range(kv):
            n, slot = int(lengths[b, head]), int(newest[b, head])
            if latest:
                score = torch.stack(weights).mean(dim=0)
            else:
                old = scores[b, head, :n].double()
                old[slot] = 0
                score = old + torch.stack(weights[head * group : (head + 1) * group]).sum(dim=0)
            torch.testing.assert_close(left[b, head, :n].double(), score, atol=1e-4, rtol=1e-4)
            at = positions[b, head].clone()
            at[slot] = 2000
            assert told[b, head].long().equal(at)
            free = [place for place in range(n) if at[place] < 700]
            assert int(victims[b, head]) == min(free, key=lambda place: float(score[place]), default=0)


@pytest.mark.parametrize("path", PATHS)
def test_of_equal_scores_the_first_slot_goes_and_where_all_are_protected_slot_0(path: str) -> None:
    lse, lengths = torch.zeros(2, 1, device=DEVICE), torch.tensor([[5], [5]], device=DEVICE)
    held = [torch.arange(5, device=DEVICE).int().repeat(2, 1, 1), torch.zeros(2, 1, 5, device=DEVICE)]
    victims = torch.full((2, 1), 9, device=DEVICE)
    newest, position = torch.tensor([[4], [4]], device=DEVICE), torch.tensor([4, 4], device=DEVICE)
    protected = torch.tensor([4, 0], device=DEVICE)
    logits = torch.tensor([0.0, -2.0, -1.0, -2.0, -9.0], device=DEVICE).repeat(2, 1, 1)
    PATHS[path][1](logits, lse, lengths, newest, position, protected, *held, victims, rule="latest")
    assert victims.tolist() == [[1], [0]]


def test_an_unknown_rule_and_a_buffer_that_does_not_fit_are_refused() -> None:
    q = torch.zeros(1, 2, 1, 16)
    with pytest.raises(ValueError, match="logits"):
        decode_attention(q, q, q, torch.tensor([1]), logits=torch.zeros(1, 2, 2))
    with pytest.raises(ValueError, match="eviction rule 'oldest'"):
        choose_victims(*[torch.zeros(1, 1, 1)] * 9, rule="oldest")
