"""Decode steps whose selections are given, and the transfers of such a step alone, as blocks to time."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, Selection
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import KVCache
from longdecode.evals.records import Stage
from longdecode.evals.throughput.step_block import captured, new_stepper, resetter
from longdecode.evals.throughput.timing import Block
from longdecode.evals.throughput.wandering import Wander
from longdecode.kernels.block_residency import BlockQueue
from longdecode.kernels.host_fetch import copy_blocks
from longdecode.methods.offloaded_cache import OffloadedCache
from longdecode.methods.shadowkv.cache import ShadowCache


class Driven:
    """Gives a method its selections: what it chooses itself is computed, for its time, and then replaced.

    A step reads the lists of ``wander`` at the cursor, which moves on before each step; a choice made a layer early
    reads the guesses.
    """

    def __init__(self, method: AttentionMethod, wander: Wander):
        self.wander, self.early = wander, False
        self.steps = len(wander.blocks)
        self.cursor = torch.full((1,), -1, dtype=torch.int64, device=wander.blocks.device)
        self.blocks, self.guesses, self.counts = wander.blocks[0], wander.guesses[0], wander.counts[0]
        self._choose, self._before, self._ahead = method.select, method.before_step, method.look_ahead
        vars(method).update(select=self.select, before_step=self.before_step, look_ahead=self.look_ahead)

    def rewind(self) -> None:
        """Go back to before the first step."""
        self.cursor.fill_(-1)

    def before_step(self, state: DecodeState) -> None:
        """Move on to the next lists, those of all layers at once; after the last ones, stay."""
        self._before(state)
        self.cursor.add_(1).clamp_(max=self.steps - 1)
        parts = (self.wander.blocks, self.wander.guesses, self.wander.counts)
        self.blocks, self.guesses, self.counts = (part.index_select(0, self.cursor)[0] for part in parts)

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Choose, and return the given list instead."""
        chosen = self._choose(layer, q, state)
        lists = self.guesses if self.early else self.blocks
        return None if chosen is None else replace(chosen, indices=lists[layer], counts=self.counts[layer])

    def look_ahead(self, layer: int, q: Tensor, state: DecodeState) -> None:
        """Let the method look ahead with the guesses."""
        self.early = True
        try:
            self._ahead(layer, q, state)
        finally:
            self.early = False


def decode_block(
    decoder: Decoder, cache: KVCache, method: AttentionMethod, label: str, context: int, steps: int,
    driven: Driven | None, stage: Stage,
) -> Block:  # fmt: skip
    """Make a block of ``steps`` decode steps that ends with a query over ``context`` tokens; a call is a token.

    One step more runs before, untimed, so that the first timed one finds the blocks of the step before it.

    Args:
        cache: filled; the block goes back to where it stands.
        driven: gives the selections, if any.
        stage: ``step``; ``eager`` for steps that are no CUDA graph; ``resident`` where the selections are expected to
            need nothing new; ``refetch`` to forget before each step which blocks are on the device.

    Raises:
        UnsupportedCellError: blocks are to be forgotten in a cache that has none.
    """
    if stage == "refetch" and not isinstance(cache, OffloadedCache | ShadowCache):
        raise UnsupportedCellError(f"{label} fetches nothing: its cache is on the device")
    stepper = new_stepper(decoder, cache, method, context - steps - 1)
    back = resetter(stepper)

    def rewind() -> None:
        back()
        if driven is not None:
            driven.rewind()

    @torch.no_grad()
    def step() -> None:
        if stage == "refetch" and isinstance(cache, OffloadedCache | ShadowCache):
            cache.forget()
        stepper.step()

    advance = step if stage == "eager" else captured(step, decoder.device, rewind)

    def reset() -> None:
        rewind()
        advance()

    def block() -> None:
        for _ in range(steps):
            advance()

    return Block(label, block, calls=steps * cache.batch, reset=reset, keep=(stepper, advance, driven))


def transfer_blocks(cache: OffloadedCache, missing: int, seed: int) -> tuple[Block, Block, int]:
    """Make a block that fetches ``missing`` scattered blocks in every layer, and one that copies as many bytes at once.

    Returns:
        Both, a call being one token of one sequence, and the bytes of a call.
    """
    device, layers = cache.device, list(cache.at)
    generator = torch.Generator(device).manual_seed(seed)
    (far_keys, _), (near_keys, _) = cache.layer_blocks(layers[0])
    missing = min(missing, near_keys.shape[0] - 1)
    queues = []
    for _ in layers:
        sources, targets = (
            torch.randperm(len(side), generator=generator, device=device)[: missing + 1]
            for side in (far_keys, near_keys)
        )
        queues.append(BlockQueue(sources, targets, torch.full((1,), missing, dtype=torch.int64, device=device)))

    def fetch() -> None:
        for layer, queue in zip(layers, queues, strict=True):
            copy_blocks(*cache.layer_blocks(layer), queue)

    moved = 2 * missing * len(layers) * near_keys[0].nbytes
    flat = cache.buffer.bytes[:moved]
    into = torch.empty(moved, dtype=torch.uint8, device=device)
    calls = cache.batch

    def copy() -> None:
        into.copy_(flat, non_blocking=True)

    both = Block("fetch", captured(fetch, device), calls, keep=(queues, cache)), Block("copy", copy, calls, keep=cache)
    return *both, moved // calls
