"""RetroAttention: pages loaded now correct what the last tokens made of the context before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import ConfigError
from longdecode.engine.kv_cache import DenseCache, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.token_block import BlockHeads, TokenBlock
from longdecode.kernels.layout import accumulator
from longdecode.kernels.merge_attention import merge_attention
from longdecode.kernels.sparse_decode_attention import sparse_decode_attention
from longdecode.kernels.window_correction import append_window, attend_window, unseen_pages
from longdecode.methods.paged import PagedMethod, PageParams, Pages

LARGEST_WINDOW = 32
_LSE_BYTES = 4


@dataclass(frozen=True, slots=True)
class RetroParams(PageParams):
    """Knobs of RetroAttention."""

    window: Annotated[int, Field(ge=1, le=LARGEST_WINDOW)] = 2
    supplement: bool = True
    overwrite: Literal["both", "keys", "values", "none"] = "both"
    retro_query: Literal["new", "old"] = "new"
    exact_page: bool = False
    layers_per_list: Annotated[int, Field(ge=1)] = 1


@dataclass(slots=True)
class Window:
    """Pages, and what the last ``w - 1`` tokens keep until the window has passed them.

    ``tokens`` ``[B, w - 1]`` int64, oldest first, as in all of these. ``outputs`` ``[L, B, Hq, w - 1, D]`` and ``lse``
    ``[L, B, Hq, w - 1]``: attention output before its projection, and its normaliser (float32). ``queries`` like
    ``outputs`` where old queries serve the supplement. ``loaded`` ``[L, B, Hkv, P]`` int32: the position whose step
    last loaded each page, -1 for none. ``first`` ``[B]`` int64: where decoding began. Of the block at hand,
    ``positions`` and ``limits`` ``[B, w]`` int64: each row's position, and the tokens before which it may read.
    ``offsets`` ``[w]`` int64 are ``1 - w .. 0``, the rows' places before the newest. ``listed`` is the list of the last
    layer that chose.
    """

    pages: Pages
    tokens: Tensor
    outputs: Tensor
    lse: Tensor
    queries: Tensor | None
    loaded: Tensor
    first: Tensor
    positions: Tensor
    limits: Tensor
    offsets: Tensor
    listed: Selection | None = None


class Retro(PagedMethod):
    """Quest's pages for the newest token; each of the ``w - 1`` tokens before it also reads those it has not seen.

    A past token's new part is merged into the output it kept, by their log-sum-exps; the corrected rows pass through
    every layer again, and their keys and values replace the stale ones before the newest query reads. One pass: a page
    is loaded once for all rows. A row reads nothing past its own position.

    Source: RetroAttention (arXiv 2508.09001), no code of which was released; what is inferred is in card.yaml.
    """

    name: ClassVar[str] = "retro"
    Params: ClassVar[type] = RetroParams
    params: RetroParams

    def __init__(self, params: RetroParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        if params.exact_page and not params.supplement:
            raise ConfigError("retro: exact_page = true reads the current page anew, which supplement = false forbids")
        self.window = params.window

    def sparse_layers(self) -> tuple[int, ...]:
        """Return the layers that choose: of ``layers_per_list`` sparse layers the first."""
        return super().sparse_layers()[:: self.params.layers_per_list]

    def pages_of(self, state: DecodeState) -> Pages:
        """Return the pages beside the window."""
        return cast(Pages, state.method_state.pages)

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return Quest's keys and values; what the window keeps is read besides, once a step."""
        quest = super().traffic(context_tokens, bytes_per_element)
        return Traffic(quest.kv_bytes, quest.metadata_bytes + self.window_bytes(bytes_per_element))

    def window_bytes(self, bytes_per_element: int) -> int:
        """Return the bytes that the window keeps a sequence: outputs, normalisers, and queries where they are kept."""
        copies = 1 + (self.params.retro_query == "old")
        one = copies * self.config.head_dim * bytes_per_element + _LSE_BYTES
        return (self.window - 1) * self.config.num_layers * self.config.num_heads * one

    def make_method_state(self, cache: KVCache) -> Window:
        """Compute the page bounds; nothing is decoded yet, so the window is empty."""
        cache, past = cast(DenseCache, cache), self.window - 1
        config, device, dtype = self.config, cache.device, cache.shape.dtype
        rows = (config.num_layers, cache.batch, config.num_heads, past)
        outputs = torch.zeros(*rows, config.head_dim, device=device, dtype=dtype)
        pages = -(-cache.capacity // self.params.page_size)
        return Window(
            pages=self.make_pages(cache),
            tokens=torch.zeros(cache.batch, past, device=device, dtype=torch.int64),
            outputs=outputs,
            lse=torch.full(rows, float("-inf"), device=device, dtype=accumulator(dtype)),
            queries=torch.zeros_like(outputs) if self.params.retro_query == "old" else None,
            loaded=torch.full((config.num_layers, cache.batch, config.num_kv_heads, pages), -1, device=device,
                              dtype=torch.int32),
            first=cache.lengths.clone(),
            positions=cache.lengths[:, None],
            limits=cache.lengths[:, None],
            offsets=torch.arange(-past, 1, device=device),
        )  # fmt: skip

    def step_block(self, tokens: Tensor, state: DecodeState) -> TokenBlock:
        """Return the window's tokens and the newest, at their own positions."""
        if self.window == 1:
            return super().step_block(tokens, state)
        window: Window = state.method_state
        past = self.window - 1
        window.positions = state.cache.positions[:, None] + window.offsets
        fed = torch.cat((window.tokens, tokens[:, None]), dim=1)
        return TokenBlock(fed, window.positions.clamp(min=0), starts=window.positions[:, 0], repeats=past)

    def before_step(self, state: DecodeState) -> None:
        """Work out which rows hold a decoded token: the others store and read nothing."""
        super().before_step(state)
        if self.window == 1:
            return
        window: Window = state.method_state
        cache = state.dense
        decoded = window.positions >= window.first[:, None]
        stored = decoded if self.params.overwrite != "none" else window.offsets == 0
        cache.slot_mapping = torch.where(stored, cache.slot_mapping, -1)
        corrected = decoded if self.params.supplement else window.offsets == 0
        window.limits = torch.where(corrected, window.positions + 1, 0)

    def append(self, layer: int, heads: BlockHeads, state: DecodeState) -> Tensor:
        """Store the newest token and write over the window's, then compute the touched pages' bounds anew."""
        if self.window == 1:
            return super().append(layer, heads, state)
        cache, bounds = state.dense, self.pages_of(state).bounds.get(layer)
        spared = {"keys": cache.values(layer), "values": cache.keys(layer)}.get(self.params.overwrite)
        if spared is None:
            if bounds is None:
                return cache.append(layer, heads)
            return append_window(
                heads.q, heads.k, heads.v, heads.cos, heads.sin, cache.keys(layer), cache.values(layer),
                cache.slot_mapping, bounds, self.params.page_size, state.kv_lengths,
                q_norm=heads.q_norm, k_norm=heads.k_norm, eps=heads.eps,
            )  # fmt: skip
        # Rows without a token of their own name slots that the block does not write: they put back what is there.
        past = state.method_state.positions[:, :-1].clamp(0, cache.capacity - 1)
        at = past[:, None, :, None].expand(-1, spared.shape[1], -1, spared.shape[3])
        stale = spared.gather(2, at)
        q = cache.append(layer, heads)
        spared.scatter_(2, at, stale)
        if bounds is not None:
            self.rebuild_bounds(layer, state, state.kv_lengths, state.method_state.positions[:, 0], self.window)
        return q

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Read the newest row's pages once, for all rows of the window."""
        if self.window == 1:
            return super().attend(layer, q, state)
        window: Window = state.method_state
        selection = self.select(layer, q[:, :, -1:], state)
        if selection is None:
            # Exact at the first time and unchanged since: below the first sparse layer nothing is corrected.
            newest = self.attend_all(layer, q[:, :, -1:], state)
            # Rows before heads in memory, as the output projection reads them.
            rows = torch.cat((window.outputs[layer].transpose(1, 2), newest.transpose(1, 2)), dim=1)
            window.outputs[layer].copy_(rows[:, 1:].transpose(1, 2))
            return rows.transpose(1, 2)
        if window.queries is not None:
            q = torch.cat((window.queries[layer], q[:, :, -1:]), dim=2)
            window.queries[layer].copy_(q[:, :, 1:])
        if self.params.exact_page:
            return self._attend_exactly(layer, q, selection, state)
        cache = state.dense
        return attend_window(
            q, cache.keys(layer), cache.values(layer), selection.indices, selection.counts, window.loaded[layer],
            window.positions, window.limits, window.outputs[layer], window.lse[layer],
            block_size=self.params.page_size, kv_tokens_read=state.kv_tokens_read[layer],
        )  # fmt: skip

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Return Quest's pages of the newest row, those of the last layer that chose; dense in the first layers."""
        window: Window = state.method_state
        if layer in window.pages.bounds:
            window.listed = self.choose(layer, q, state)
        return None if layer in self.dense_layers() else window.listed

    def settle(self, state: DecodeState) -> None:
        """Let the window be full."""
        state.method_state.first.sub_(self.window).clamp_(min=0)

    def after_step(self, state: DecodeState) -> None:
        """Move the window on by one token."""
        if self.window > 1:
            state.method_state.tokens.copy_(state.block.tokens[:, 1:])

    def _read(
        self, layer: int, q: Tensor, indices: Tensor, counts: Tensor, mask: Tensor | None, state: DecodeState
    ) -> tuple[Tensor, Tensor]:
        """Attend to the listed pages, each row up to its own position."""
        cache = state.dense
        return sparse_decode_attention(
            q, cache.keys(layer), cache.values(layer), indices, counts, block_size=self.params.page_size,
            kv_lengths=state.method_state.limits, row_mask=mask, kv_tokens_read=state.kv_tokens_read[layer],
        )  # fmt: skip

    def _attend_exactly(self, layer: int, q: Tensor, selection: Selection, state: DecodeState) -> Tensor:
        """Keep outputs without the current page, which every row reads anew, until the page is full."""
        window: Window = state.method_state
        kept, kept_lse, others = window.outputs[layer], window.lse[layer], selection.counts - 1
        current = selection.indices.gather(2, others[..., None])
        unseen = unseen_pages(window.loaded[layer], selection.indices, selection.counts, window.positions)
        supplement = self._read(layer, q, selection.indices, others, unseen, state)
        part, part_lse = merge_attention(
            torch.cat((kept, torch.zeros_like(q[:, :, -1:])), dim=2),
            torch.nn.functional.pad(kept_lse, (0, 1), value=float("-inf")),
            *supplement,
        )
        page = self._read(layer, q, current, torch.ones_like(others), None, state)
        out, lse = merge_attention(part, part_lse, *page)
        full = (state.kv_lengths % self.params.page_size == 0)[:, None, None]
        kept.copy_(torch.where(full[..., None], out, part)[:, :, 1:])
        kept_lse.copy_(torch.where(full, lse, part_lse)[:, :, 1:])
        return out


METHOD = Retro
