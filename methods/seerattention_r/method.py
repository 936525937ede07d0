"""SeerAttention-R: read the blocks that a learned gate ranks first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.kv_cache import DenseCache, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.token_block import BlockHeads
from longdecode.kernels.layout import accumulator
from longdecode.kernels.page_minmax.naive import touched_pages
from longdecode.kernels.rope import rotate
from longdecode.kernels.topk_select import topk_select
from longdecode.methods.budgeted import BudgetedMethod
from longdecode.methods.seerattention_r.gates import Rotation, find_gates


@dataclass(frozen=True, slots=True)
class SeerAttentionRParams:
    """Knobs of SeerAttention-R."""

    gates: str = ""
    block_size: Annotated[int, Field(ge=1)] = 64
    dense_layers: Annotated[int, Field(ge=0)] = 0
    block_position: Literal["first", "released"] = "first"


@dataclass(slots=True)
class BlockKeys:
    """State of a generation beside its cache.

    ``layers`` ``[B, Hkv, N, D]`` by sparse layer: the gate's key of every whole block, zero for the others. ``prompt``
    ``[B]`` int64, tokens of each prompt. ``used`` ``[B]`` int64, blocks in use. ``turn`` and ``turn_back``: cosines and
    sines ``[B, 1, D]`` of the newest position.
    """

    layers: dict[int, Tensor]
    prompt: Tensor
    used: Tensor
    turn: tuple[Tensor, Tensor]
    turn_back: tuple[Tensor, Tensor]


class SeerAttentionR(BudgetedMethod):
    """The current block and the best others by ``(W_q q) . (W_k [max k, min k, mean k])``, one list per KV head.

    A gate sees queries and keys before their rotation and rotates what it makes of them: a query by its position, a
    block by that of its first token. The cache holds rotated keys, which are turned back.

    Source: Gao et al. 2025 (arXiv 2506.08889), sections 2.2 and 3, and the released code; deviations in card.yaml.
    """

    name: ClassVar[str] = "seerattention_r"
    Params: ClassVar[type] = SeerAttentionRParams
    params: SeerAttentionRParams

    def __init__(self, params: SeerAttentionRParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        self.gates = find_gates(params.gates, params.block_size, config)
        self.rotation = Rotation(config)
        self.size = params.block_size

    @classmethod
    def minimum_budget(cls, params: SeerAttentionRParams) -> tuple[int, str]:
        """Two blocks: the current one and one that is chosen."""
        return 2 * params.block_size, f"2 blocks of {params.block_size}"

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Chosen blocks, of which the current one is part full; a key a block, and the keys of the current one."""
        blocks, listed = -(-context_tokens // self.size), self.budget_tokens // self.size
        read = context_tokens - max(0, blocks - listed) * self.size
        keys = (blocks + self.size) * self.token_bytes(bytes_per_element) // 2
        sparse = self.config.num_layers - len(self.dense_layers())
        return self.layered_traffic(context_tokens, read, sparse * keys, bytes_per_element)

    def make_method_state(self, cache: KVCache) -> BlockKeys:
        """Work out the gate's key of every whole block of the prompt."""
        cache = cast(DenseCache, cache)
        blocks = -(-cache.capacity // self.size)
        slots = torch.arange(cache.capacity // self.size * self.size, device=cache.device)[None]
        whole = (torch.arange(blocks, device=cache.device) + 1) * self.size <= cache.lengths[:, None]
        layers = {}
        for layer in sorted(set(range(self.config.num_layers)) - self.dense_layers()):
            keys = cache.keys(layer)[:, :, : slots.shape[1]]
            made = keys.new_zeros(*keys.shape[:2], blocks, keys.shape[3])
            for row in range(cache.batch):  # one at a time: what is turned back is as large as the keys
                found = self._block_keys(layer, keys[row : row + 1], slots, slots[:, :: self.size])
                made[row, :, : found.shape[2]] = found[0]
            layers[layer] = torch.where(whole[:, None, :, None], made, 0)
        return BlockKeys(layers, cache.lengths.clone(), *self._place(cache.lengths))

    def before_step(self, state: DecodeState) -> None:
        """Count the blocks in use, the current token's among them, and look up how its position turns."""
        kept: BlockKeys = state.method_state
        kept.used, kept.turn, kept.turn_back = self._place(state.kv_lengths)

    def append(self, layer: int, heads: BlockHeads, state: DecodeState) -> Tensor:
        """Store the tokens, and the gate's key of a block that they complete."""
        q = state.cache.append(layer, heads)
        if layer in state.method_state.layers:
            width = state.block.width
            self._renew(layer, state, state.kv_lengths, state.kv_lengths - width, width)
        return q

    def after_rewrite(self, state: DecodeState, starts: Tensor, width: int) -> None:
        """Work out the gate's keys of the touched blocks anew."""
        for layer in state.method_state.layers:
            self._renew(layer, state, state.dense.lengths, starts, width)

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Choose the blocks of a step; everything in dense layers."""
        kept: BlockKeys = state.method_state
        if layer not in kept.layers:
            return None
        query = rotate(self.gates.layer(layer, q).of_queries(rotate(q, *kept.turn_back)), *kept.turn)
        scores = (query @ kept.layers[layer].transpose(2, 3)).squeeze(2).to(accumulator(q.dtype))
        indices, counts = topk_select(scores, self.budget_tokens // self.size, kept.used, keep_last=1)
        return Selection(indices, counts, block_size=self.size)

    def _place(self, lengths: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return blocks in use, and how the last position of ``lengths`` ``[B]`` turns, forth and back."""
        newest, used = lengths[:, None] - 1, -torch.div(-lengths, self.size, rounding_mode="floor")
        return used, self.rotation.forth(newest), self.rotation.back(newest)

    def _block_keys(self, layer: int, keys: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """Return the gate's keys ``[B, Hkv, N, D]`` of whole blocks.

        Args:
            layer: from 0.
            keys: ``[B, Hkv, N * size, D]``, rotated by ``slots``.
            slots: ``[B, N * size]`` int64.
            positions: ``[B, N]`` int64, by which a block's key is rotated.
        """
        plain = rotate(keys, *self.rotation.back(slots)).unflatten(2, (-1, self.size))
        return rotate(self.gates.layer(layer, keys).of_blocks(plain), *self.rotation.forth(positions))

    def _renew(self, layer: int, state: DecodeState, lengths: Tensor, starts: Tensor, width: int) -> None:
        """Work out the gate's keys of the blocks that ``width`` slots from ``starts`` ``[B]`` on touch.

        A block that is not whole at ``lengths`` ``[B]`` gets zero. Fixed shapes; never waits for the host.
        """
        index: BlockKeys = state.method_state
        kept, stored = index.layers[layer], state.dense.keys(layer)
        heads, capacity, dim = stored.shape[1:]
        for place in range(touched_pages(width, self.size)):
            block = starts.clamp(min=0) // self.size + place
            first = block[:, None] * self.size
            slots = first + torch.arange(self.size, device=block.device)
            at = slots.clamp(max=capacity - 1)[:, None, :, None].expand(-1, heads, -1, dim)
            whole = first + self.size <= lengths[:, None]
            if self.params.block_position == "released":
                first = torch.where(first + self.size <= index.prompt[:, None], first, first + self.size - 1)
            fresh = self._block_keys(layer, stored.gather(2, at), slots, first)
            target = block.clamp(max=kept.shape[2] - 1)[:, None, None, None].expand(-1, heads, 1, dim)
            # A row that is full begins past the last block, which stays as it is.
            old = torch.where((block < kept.shape[2])[:, None, None, None], 0, kept.gather(2, target))
            kept.scatter_(2, target, torch.where(whole[:, None, :, None], fresh, old))


METHOD = SeerAttentionR
