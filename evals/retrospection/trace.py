"""Decode given tokens with a method and keep what every layer made of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, Selection
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError
from longdecode.engine.kv_cache import DenseCache
from longdecode.engine.request import Prompt
from longdecode.kernels.page_score import page_score
from longdecode.methods.paged import PagedMethod


@dataclass(frozen=True, slots=True)
class Trace:
    """A decode of ``T`` given tokens of ``B`` samples.

    ``first`` and ``last`` ``[T, L, B, Hq * D]`` are each token's attention output as made in its own step, and as it
    stood when its window had passed. ``keys`` and ``values`` ``[L, B, Hkv, T, D]`` are what the cache held in the end.
    ``losses`` ``[T, B]``: negative log-probability of the next token, in nats.
    """

    first: Tensor
    last: Tensor
    keys: Tensor
    values: Tensor
    losses: Tensor


@dataclass(slots=True)
class PageChoices:
    """Pages chosen and nearly chosen by ``T`` steps in ``L`` sparse layers.

    ``top`` and ``following`` ``[T, L, B, Hkv, P]`` bool; ``following`` are the ranks ``k + 1 .. 2 k`` of a list of
    ``k``. ``used`` ``[T, B]`` int64 counts the pages in use.
    """

    top: Tensor
    following: Tensor
    used: Tensor


@torch.no_grad()
def record(decoder: Decoder, prompt: Prompt, method: AttentionMethod, tokens: Tensor) -> Trace:
    """Decode ``tokens`` ``[B, T + 1]`` after a prompt, in a copy of it; the last is predicted only.

    Raises:
        ConfigError: the method's cache does not keep every token.
    """
    state = method.start(prompt)
    if not isinstance(state.cache, DenseCache):
        raise ConfigError(f"{method.name}: what a dropped token became cannot be compared; keep every token")
    batch, steps = tokens.shape[0], tokens.shape[1] - 1
    config = decoder.config
    size = (steps, config.num_layers, batch, config.num_heads * config.head_dim)
    first, last = (torch.zeros(size, device=decoder.device) for _ in range(2))
    starts, losses = state.cache.positions.clone(), []
    for step in range(steps):
        with _outputs(method) as outputs:
            logits = decoder.step(tokens[:, step], state, method)
        losses.append(-logits.log_softmax(dim=-1).gather(1, tokens[:, step + 1 :][:, :1])[:, 0])
        for layer, out in enumerate(outputs):
            rows = out.transpose(1, 2).flatten(2).float()
            first[step, layer] = rows[:, -1]
            for back in range(min(rows.shape[1], step + 1)):
                last[step - back, layer] = rows[:, -1 - back]
    cache = state.dense
    slots = (starts[:, None] + torch.arange(steps, device=decoder.device))[None, :, None, :, None]
    keys, values = (
        part.gather(3, slots.expand(*part.shape[:3], steps, part.shape[4])).float() for part in (cache.k, cache.v)
    )
    return Trace(first, last, keys, values, torch.stack(losses))


@torch.no_grad()
def record_pages(decoder: Decoder, prompt: Prompt, method: PagedMethod, tokens: Tensor) -> PageChoices:
    """Decode ``tokens`` ``[B, T]`` and keep which pages every step chose, and which it would have chosen next."""
    state, steps, used = method.start(prompt), [], []
    for step in range(tokens.shape[1]):
        with _selections(method) as layers:
            decoder.step(tokens[:, step], state, method)
        steps.append([torch.stack(part) for part in zip(*layers, strict=True)])
        used.append(method.pages_of(state).used.clone())
    top, following = (torch.stack(part) for part in zip(*steps, strict=True))
    return PageChoices(top, following, torch.stack(used))


@contextmanager
def _outputs(method: AttentionMethod) -> Iterator[list[Tensor]]:
    """Collect what each layer's attention returns while inside, ``[B, Hq, w, D]``."""
    seen: list[Tensor] = []
    attend = method.attend

    def recorded(layer: int, q: Tensor, state: DecodeState) -> Tensor:
        out = attend(layer, q, state)
        seen.append(out.clone())  # a method may keep its outputs in place
        return out

    vars(method)["attend"] = recorded
    try:
        yield seen
    finally:
        del vars(method)["attend"]


@contextmanager
def _selections(method: PagedMethod) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Collect the pages that each sparse layer chooses, and would have chosen next, while inside."""
    choose, found = method.select, list[tuple[Tensor, Tensor]]()

    def recorded(layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        chosen = choose(layer, q, state)
        if chosen is not None:
            pages = method.pages_of(state)
            scores = page_score(q, pages.bounds[layer], pages.used, group=method.params.group_score)
            found.append(chosen_and_next(chosen, scores))
        return chosen

    vars(method)["select"] = recorded
    try:
        yield found
    finally:
        del vars(method)["select"]


def chosen_and_next(chosen: Selection, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pages of the lists and as many with the next best scores, ``[B, Hkv, P]`` bool each.

    Args:
        chosen: one list per KV head.
        scores: ``[B, Hkv, P]``, minus infinity for pages not in use.
    """
    listed = torch.arange(chosen.indices.shape[2], device=scores.device) < chosen.counts[..., None]
    top = torch.zeros_like(scores, dtype=torch.int8)
    top.scatter_reduce_(2, torch.where(listed, chosen.indices, 0), listed.to(torch.int8), "amax")
    rivals = scores.masked_fill(top.bool(), float("-inf"))
    rank = rivals.argsort(dim=2, descending=True, stable=True).argsort(dim=2)
    return top.bool(), (rank < chosen.counts[..., None]) & (rivals > float("-inf"))
