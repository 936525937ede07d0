"""Selections that change from step to step as real ones do, given to a method in place of its own."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, Selection
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import ConfigError

_PROBE_LISTS, _PROBE_STEPS, _ROUNDS = 32, 12, 12


class ForcedSelection:
    """Gives a method its selections: what it chooses itself is computed, for its time, and then replaced.

    A step reads the lists at the cursor, which moves on before each step.

    Args:
        blocks: the selections of ``T`` steps, ``[T, L, B, Hkv, N]`` int64.
    """

    def __init__(self, method: AttentionMethod, blocks: Tensor):
        self.blocks, self.now = blocks, blocks[0]
        self.cursor = torch.full((1,), -1, dtype=torch.int64, device=blocks.device)
        self.counts = torch.full(blocks.shape[2:4], blocks.shape[-1], dtype=torch.int64, device=blocks.device)
        self._choose, self._before = method.select, method.before_step
        vars(method).update(select=self.select, before_step=self.before_step)

    def rewind(self) -> None:
        """Go back to before the first step."""
        self.cursor.fill_(-1)

    def before_step(self, state: DecodeState) -> None:
        """Move on to the next lists, those of all layers at once; after the last ones, stay."""
        self._before(state)
        self.cursor.add_(1).clamp_(max=len(self.blocks) - 1)
        self.now = self.blocks.index_select(0, self.cursor)[0]

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Choose, and return the given list instead."""
        chosen = self._choose(layer, q, state)
        return None if chosen is None else replace(chosen, indices=self.now[layer], counts=self.counts)


def draw_selections(
    shape: tuple[int, int, int, int, int], block_tokens: int, first: int, hit: float, device: torch.device, seed: int
) -> Tensor:
    """Draw the selections of consecutive tokens from position ``first`` on.

    Each block has a score that forgets at a constant rate (an autoregressive process of order 1); a list is the first
    block, the newest quarter, and those of the others with the highest scores. One block enters whenever a block is
    full. Blocks near the cut leave and come back: at a hit rate near 0.95 of 64 blocks, 17 spare slots leave 34 % of
    the misses, as of NOSA-8B on PG-19 (1.20 of 3.58, crafticat/NOSA on an A100). The rate is found by bisection for
    the wanted share of blocks that stay, boundaries included.

    Args:
        shape: ``[T, L, B, Hkv, N]``: steps, layers, rows, KV heads, blocks a list.
        hit: the wanted share of a list that was listed in the step before.

    Raises:
        ConfigError: the context has no more blocks than a list, or the wanted share cannot be had.
    """
    steps, *lists, listed = shape
    if first // block_tokens + 1 <= listed:
        raise ConfigError(f"{first} tokens are no more than the {listed} blocks of a list")
    blocks = (first + steps - 1) // block_tokens + 1
    boundary = 1 / listed / block_tokens
    factor = 1.0
    if hit < 1 - boundary:
        probed = min(_PROBE_STEPS, block_tokens)
        low, high = 0.0, 12.0  # of -log10(1 - factor)
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            sizes = (probed, _PROBE_LISTS, listed, block_tokens)
            # So that no block boundary lies within.
            chosen = _walk(sizes, blocks * block_tokens - probed, blocks, 1 - 10**-middle, device, seed)
            low, high = (middle, high) if share_kept(chosen) - boundary < hit else (low, middle)
        if low == 0.0:
            raise ConfigError(f"a hit rate of {hit} is below that of independent lists of {listed} blocks")
        factor = 1 - 10**-low
    layers, rows, heads = lists
    drawn = [
        _walk((steps, rows * heads, listed, block_tokens), first, blocks, factor, device, seed + layer)
        for layer in range(layers)
    ]
    return torch.stack(drawn, dim=1).view(shape)


def share_kept(chosen: Tensor) -> float:
    """Return the mean share of the lists ``[T, ..., N]`` that the step before holds too."""
    return float((chosen[1:, ..., :, None] == chosen[:-1, ..., None, :]).any(dim=-1).double().mean())


def _walk(
    sizes: tuple[int, int, int, int], first: int, blocks: int, keep: float, device: torch.device, seed: int
) -> Tensor:
    """Return one layer's selections ``[T, lists, N]`` int64, the newest block first."""
    steps, lists, listed, block_tokens = sizes
    generator = torch.Generator(device).manual_seed(seed)
    scores = torch.randn(lists, blocks, generator=generator, device=device)
    place, out = torch.arange(blocks, device=device), []
    for token in range(first, first + steps):
        newest = token // block_tokens
        forced = ((place > newest - max(1, listed // 4)) & (place <= newest)) | (place == 0)
        ranked = scores.masked_fill(place > newest, float("-inf")).masked_fill(forced, float("inf"))
        out.append(ranked.topk(listed, dim=1).indices.sort(dim=1, descending=True).values)
        noise = torch.randn(scores.shape, generator=generator, device=device)
        scores.mul_(keep).add_(noise, alpha=(1 - keep * keep) ** 0.5)
    return torch.stack(out)
