"""Selections that change from step to step as real ones do, made for a wanted share of blocks that stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longdecode.engine.errors import ConfigError

_PROBE_LISTS, _PROBE_STEPS, _ROUNDS = 32, 12, 12


@dataclass(frozen=True, slots=True)
class Turnover:
    """Sizes of a selection: ``listed`` blocks of ``block_tokens``, the newest ``window`` and the first always.

    A window of 0 is for lists of a prompt's blocks: none is forced, and none comes while tokens are generated.
    """

    listed: int
    window: int
    block_tokens: int

    def __post_init__(self) -> None:
        if self.window and not 1 <= self.window < self.listed - 1:
            raise ConfigError(f"a window of {self.window} blocks and the first do not fit a list of {self.listed}")


@dataclass(frozen=True, slots=True)
class Wander:
    """Selections of ``T`` steps, ``blocks`` ``[T, L, B, Hkv, N]`` int64; ``guesses`` are those made in advance.

    ``counts`` ``[T, L, B, Hkv]`` int64 says how many leading entries are valid.
    """

    blocks: Tensor
    guesses: Tensor
    counts: Tensor


def wander(
    turnover: Turnover,
    first_token: int,
    steps: int,
    hits: Sequence[float],
    lists: tuple[int, int],
    device: torch.device,
    seed: int,
    recall: float = 1.0,
) -> Wander:
    """Draw the selections of ``steps`` tokens from position ``first_token`` on.

    Each block has a score that forgets at a constant rate (an autoregressive process of order 1); a list is the first
    block, the newest ones, and those of the others with the highest scores. One block enters the window whenever a
    block is full. Blocks near the cut leave and come back: at a hit rate near 0.95 of 64 blocks, 17 spare slots leave
    34 % of the misses, as of NOSA-8B on PG-19 (1.20 of 3.58, crafticat/NOSA on an A100). The rate is found by bisection
    for the wanted share of blocks that stay, boundaries included.

    Args:
        turnover: sizes of a list.
        first_token: position of the first token; its block is the newest. It must leave something to choose. Without a
            window, the last token of the last block.
        hits: by layer, the wanted share of a list that was listed in the step before.
        lists: rows of the batch and KV heads.
        seed: of the draw.
        recall: share of a step's new blocks that a guess made in advance names; it names wrong ones for the others.

    Raises:
        ConfigError: the context has no more blocks than a list, or a wanted share cannot be had.
    """
    blocks = (first_token + (steps - 1 if turnover.window else 0)) // turnover.block_tokens + 1
    if first_token // turnover.block_tokens + 1 <= turnover.listed:
        raise ConfigError(f"{first_token} tokens are no more than the {turnover.listed} blocks of a list")
    generator = torch.Generator(device).manual_seed(seed)
    keep = {hit: _forgetting(turnover, hit, blocks, device, seed) for hit in sorted(set(hits))}
    batch, heads = lists
    found = [
        _walk(turnover, first_token, steps, blocks, batch * heads, keep[hit], generator).view(steps, batch, heads, -1)
        for hit in hits
    ]
    chosen = torch.stack(found, dim=1)
    counts = torch.full(chosen.shape[:-1], turnover.listed, dtype=torch.int64, device=device)
    return Wander(chosen, guessed(chosen, first_token // turnover.block_tokens, recall, generator), counts)


def share_kept(chosen: Tensor) -> float:
    """Return the mean share of the lists ``[T, ..., N]`` that the step before holds too."""
    return float((chosen[1:, ..., :, None] == chosen[:-1, ..., None, :]).any(dim=-1).double().mean())


def _walk(
    turnover: Turnover, first: int, steps: int, blocks: int, lists: int, keep: float, generator: torch.Generator
) -> Tensor:
    """Return one layer's selections ``[T, lists, N]`` int64, the newest block first."""
    device = generator.device
    scores = torch.randn(lists, blocks, generator=generator, device=device)
    place = torch.arange(blocks, device=device)
    out = []
    for token in range(first, first + steps):
        newest = (token if turnover.window else first) // turnover.block_tokens
        forced = (place > newest - turnover.window) & (place <= newest)
        if turnover.window:
            forced |= place == 0
        ranked = scores.masked_fill(place > newest, float("-inf")).masked_fill(forced, float("inf"))
        out.append(ranked.topk(turnover.listed, dim=1).indices.sort(dim=1, descending=True).values)
        noise = torch.randn(scores.shape, generator=generator, device=device)
        scores.mul_(keep).add_(noise, alpha=(1 - keep * keep) ** 0.5)
    return torch.stack(out)


def _forgetting(turnover: Turnover, hit: float, blocks: int, device: torch.device, seed: int) -> float:
    """Find the factor of the process for a wanted share, boundaries counted at their mean rate."""
    boundary = 1 / turnover.listed / turnover.block_tokens if turnover.window else 0.0
    if hit >= 1 - boundary:
        return 1.0
    low, high = 0.0, 12.0  # of -log10(1 - factor)
    steps = min(_PROBE_STEPS, turnover.block_tokens)
    first = blocks * turnover.block_tokens - steps  # no boundary within
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        generator = torch.Generator(device).manual_seed(seed)
        factor = 1 - 10**-middle
        chosen = _walk(turnover, first, steps, blocks, _PROBE_LISTS, factor, generator)
        low, high = (middle, high) if share_kept(chosen) - boundary < hit else (low, middle)
    if low == 0.0:
        raise ConfigError(f"a hit rate of {hit} is below that of independent lists of {turnover.listed} blocks")
    return 1 - 10**-low


def guessed(chosen: Tensor, newest: int, recall: float, generator: torch.Generator) -> Tensor:
    """Return lists in which the new blocks of a step are named with probability ``recall``, else any older one."""
    if recall >= 1:
        return chosen
    before = torch.cat((chosen[:1], chosen[:-1]))
    fresh = torch.stack(
        [~(now[..., :, None] == old[..., None, :]).any(-1) for now, old in zip(chosen, before, strict=True)]
    )
    missed = fresh & (torch.rand(chosen.shape, generator=generator, device=chosen.device) >= recall)
    other = torch.randint(0, newest, chosen.shape, generator=generator, device=chosen.device)
    return torch.where(missed, other, chosen)
