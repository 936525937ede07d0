"""Hold the launches of a run to their definitions: its dtype, heads, lengths and batch; a lost token shows.

The conformance suite proper runs a tiny model in float64 and float32. Here no model runs: each layer of a few decode
steps gets heads made for it, once through the kernels in force and once through their plain torch definitions.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, Selection
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import GateError, UnsupportedCellError
from longdecode.engine.kv_cache import CacheShape, DenseCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.request import Prompt, Request
from longdecode.engine.rope import RopeTable
from longdecode.engine.speculation import PlacedTree
from longdecode.engine.token_block import WHOLE, BlockHeads, TokenBlock
from longdecode.kernels import dispatch
from longdecode.kernels.attention_weights import attention_weights
from longdecode.kernels.eviction import choose_victims
from longdecode.kernels.layout import before
from longdecode.kernels.rope import rotate
from longdecode.methods.kept_cache import KeptCache
from longdecode.methods.paged import PagedMethod
from longdecode.methods.registry import get_method, load_card

CACHE_BYTES = 6_000_000_000
"""Most that a check's cache takes on a GPU; its definitions take as much again in float32, twice."""
CPU_CONTEXT, CPU_BATCH = 1024, 2
LAYERS = 7
STEPS = 4
TOLERANCES = {torch.float32: 1e-3, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Largest difference allowed between outputs that weigh values of a standard normal law: so much, and so much of it."""
SCORE_TOLERANCE = TOLERANCES[torch.float32]
"""The same of scores that a choice is made from; they are float32 whatever the cache holds."""
WEIGHT_TOLERANCES = {torch.float32: 1e-3, torch.float16: 8e-3, torch.bfloat16: 6e-2}
"""Largest difference allowed between attention weights, as a share of each: the least of them decide what is dropped.

They are float32, of queries and keys in the cache's dtype, rotated by each path. A number that is rounded the other way
there in one of the dimensions moves a weight by up to 1.5 % in bfloat16; this leaves room for four of them.
"""
TIES = 0.01
"""Share of a list (two entries at least) that rounding may decide otherwise."""
LANDMARKS = 12
_UNUSED_KEY, _UNUSED_VALUE = 50.0, 1000.0


@dataclass(frozen=True, slots=True)
class LaunchSize:
    """Context in tokens and rows at which launches are checked."""

    context: int
    batch: int

    def cache_bytes(self, config: ModelConfig, dtype: torch.dtype) -> int:
        """Return the bytes of the dense cache that a check fills."""
        return self.context * self.batch * replace(config, num_layers=LAYERS).kv_bytes_per_token(dtype.itemsize)


def launch_sizes(
    context: int, batch: int, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> list[LaunchSize]:
    """Return where launches up to a size are checked: the longest context, and all rows, as far as memory allows.

    Raises:
        UnsupportedCellError: the device has no room for one row of ``CPU_CONTEXT`` tokens.
    """
    if device.type == "cpu":
        return [LaunchSize(min(context, CPU_CONTEXT), min(batch, CPU_BATCH))]
    room = min(CACHE_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
    token = LaunchSize(1, 1).cache_bytes(config, dtype)
    longest = LaunchSize(min(context, room // token), max(1, min(batch, room // (context * token))))
    widest = LaunchSize(min(context, room // (batch * token)), batch)
    least = min(context, CPU_CONTEXT)
    found = [place for place in dict.fromkeys((longest, widest)) if place.context >= least]
    if not found:
        raise UnsupportedCellError(f"{least} tokens take {least * token:,} bytes, {room:,} may be used on {device}")
    return found


@dataclass(frozen=True, slots=True)
class _Run:
    """Hold one way of running: outputs ``[B, Hq, T, D]`` by step and layer, and what was chosen on the way, from what.

    ``scores`` ``[B, R, P]`` are those that a read leaves for a choice, zero past a row's end; ``weights``
    ``[B, Hkv, S]`` those that a method that drops tokens chooses by, ``logits`` what they follow from and
    the log-sum-exps. ``kept`` ``[B, Hkv, C]``, by step and layer, are
    the positions that such a method reads, -1 in empty slots.
    """

    outputs: list[Tensor] = field(default_factory=list)
    lists: list[Selection | None] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    logits: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)


def check_launches(
    name: str, config: ModelConfig, params: Mapping[str, Any], budget: int | None, place: LaunchSize,
    device: torch.device, dtype: torch.dtype, *, seed: int = 0,
) -> None:  # fmt: skip
    """Compare a method's kernels with their definitions where a run launches them.

    Args:
        name: a registered method.
        config: of the run's model, whose heads count; layers are ``LAYERS``.
        params: those that mean the same on every model.
        budget: tokens, ``None`` for a method that takes none.

    Raises:
        GateError: outputs, lists or tokens kept differ by more than rounding explains.
        UnsupportedCellError: the method does not run there.
        DeviceMemoryError: a cache does not fit.
    """
    card = load_card(name)
    files = {knob.name for knob in card.knobs if knob.file}
    stand_in = {key: value for key, value in card.conformance.params.items() if key in files}
    given = {**stand_in, **card.conformance.launches, **card.portable(params)}
    positions = max(config.max_positions, place.context)
    config = replace(config, num_layers=LAYERS, max_positions=positions, importance_file="")
    method = get_method(name).from_budget(budget, config, **given)
    parts = [method, method.draft.method] if method.draft and method.draft.method else [method]
    for part in parts:
        shape = CacheShape(config, place.batch, place.context, device, dtype, place.context)
        got = _run(part, shape, seed)
        with dispatch.naive_kernels():
            want = _run(part, shape, seed, got)
        words = f"{part.name} in {str(dtype).removeprefix('torch.')}, {place.context} tokens, {place.batch} rows"
        _compare(got, want, dtype, words)


@torch.no_grad()
def _run(method: AttentionMethod, shape: CacheShape, seed: int, replayed: _Run | None = None) -> _Run:
    """Start a method on a filled cache and run its blocks, every layer on heads of its own.

    Args:
        replayed: whose lists are taken in the place of those chosen, so that a near-tie decides no output. A method of
            pages goes on from its choice: how long a union of choices is, for one, hangs on how a tie was broken. One
            that chooses by scores of a read goes on from those: a list that ends where its entries hold a share of the
            mass is an entry longer or shorter where rounding decides whether they do. One that drops
            tokens goes on from the attention weights or logits that it chose by, so that both drop the same ones.
    """
    generator = torch.Generator(shape.device).manual_seed(seed)
    config, device = shape.config, shape.device
    width = method.draft.tree.rows if method.draft else STEPS
    starts = (shape.capacity - width - 37 * torch.arange(shape.batch)).clamp(min=(shape.capacity - width + 1) // 2)
    lengths = starts.tolist()
    aims = torch.randn(LANDMARKS + 1, config.num_kv_heads, config.head_dim, generator=generator, device=device)
    aims /= aims.norm(dim=-1, keepdim=True)
    run, rope = _Run(), RopeTable(config, device)
    with _recorded(method, run, replayed):
        state = _start(method, shape, lengths, aims, generator)
        for step, block in enumerate(_blocks(method, state)):
            state.begin(block, method)
            for layer in range(LAYERS):
                heads = _heads(block, rope, aims, shape, max(lengths), layer + step, generator)
                out = state.attend(layer, heads, method, WHOLE)
                run.outputs.append((out if method.draft else out[:, :, -1:]).clone())
                if isinstance(state.cache, KeptCache):
                    run.kept.append(_kept(state.cache, layer))
                state.end_layer(layer, method)
            state.end(method)
            state.accept(torch.zeros_like(state.cache.positions) if method.draft else None)
    return run


@contextmanager
def _recorded(method: AttentionMethod, run: _Run, replayed: _Run | None) -> Iterator[None]:
    """Record what a method chooses and from what, while inside; have it go on from what another run recorded."""

    def listed(hook: Callable[[int, Tensor, DecodeState], Selection | None]) -> Callable[..., Selection | None]:
        def choose(layer: int, q: Tensor, state: DecodeState) -> Selection | None:
            chosen = hook(layer, q, state)
            copy = chosen and Selection(chosen.indices.clone(), chosen.counts.clone(), chosen.block_size, chosen.uneven)
            run.lists.append(copy)
            return replayed.lists[len(run.lists) - 1] if chosen and replayed else chosen

        return choose

    read = method.attend_selected

    def scored(layer: int, q: Tensor, selection: Selection, state: DecodeState, **scoring: Any) -> Tensor:
        out = read(layer, q, selection, state, **scoring)
        if (left := scoring.get("scores")) is not None:
            entries = -(-state.kv_lengths // scoring["score_block"])
            run.scores.append(left.where(before(entries, left.shape[-1])[:, None], 0))
            if replayed:
                left.copy_(replayed.scores[len(run.scores) - 1])
        return out

    def weighed(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def weigh(*given: Any, **options: Any) -> Tensor:
            run.weights.append(op(*given, **options))
            return (replayed or run).weights[len(run.weights) - 1].clone()

        return weigh

    hooks = ("choose", "select") if isinstance(method, PagedMethod) else ("select",)
    modules = {kind.__module__: vars(sys.modules[kind.__module__]) for kind in type(method).__mro__}

    def evicted(op: Callable[..., None]) -> Callable[..., None]:
        def choose(logits: Tensor, lse: Tensor, lengths: Tensor, *given: Any, **options: Any) -> None:
            stored = before(lengths, logits.shape[2]).repeat_interleave(logits.shape[1] // lengths.shape[1], dim=1)
            run.weights.append(torch.where(stored, torch.exp(logits - lse[..., None]), 0.0))
            run.logits.append((logits.clone(), lse.clone()))
            op(*(replayed or run).logits[len(run.logits) - 1], lengths, *given, **options)

        return choose

    wrapped: dict[str, Callable[[Any], Any]] = {
        attention_weights.__name__: weighed, choose_victims.__name__: evicted,
    }  # fmt: skip
    ops = [(names, name, names[name]) for names in modules.values() for name in wrapped if name in names]
    vars(method).update({name: listed(getattr(method, name)) for name in hooks}, attend_selected=scored)
    for names, name, op in ops:
        names[name] = wrapped[name](op)
    try:
        yield
    finally:
        for name in (*hooks, "attend_selected"):
            del vars(method)[name]
        for names, name, op in ops:
            names[name] = op


def _kept(cache: KeptCache, layer: int) -> Tensor:
    """Return the positions that each head of a layer holds, ``[B, Hkv, C]``, -1 in empty slots."""
    positions = cache.slot_positions[layer]
    stored = torch.arange(positions.shape[2], device=positions.device) < cache.kv_lengths[layer][..., None]
    return positions.where(stored, -1)


def _start(
    method: AttentionMethod, shape: CacheShape, lengths: Sequence[int], aims: Tensor, generator: torch.Generator
) -> DecodeState:
    """Start on a prompt of random keys and values in which some tokens stand out, each for one of the aims.

    What lies past a row's end would show in every output if it were read.
    """
    cache = DenseCache(shape)
    for tensor in cache.tensors():
        for layer in tensor:
            layer.normal_(generator=generator)
    for row, length in enumerate(lengths):
        for at, place in enumerate(landmarks(length)):
            cache.k[:, row, :, place] += (_height(length) * aims[at]).to(cache.k.dtype)
        cache.k[:, row, :, length:] = _UNUSED_KEY
        cache.v[:, row, :, length:] = _UNUSED_VALUE
    cache.stand_at(torch.tensor(lengths, device=shape.device))
    observed = {}
    for observer in method.observers():
        observer.begin(shape, lengths)
        observed[observer.key] = [observer.layer(n).normal_(generator=generator) for n in range(LAYERS)]
    requests = tuple(Request((0,) * length, shape.capacity - length) for length in lengths)
    logits = torch.zeros(shape.batch, shape.config.vocab_size, device=shape.device)
    return method.start(Prompt(requests, cache, logits, 0.0, observed), keep_prompt=False)


def landmarks(length: int) -> list[int]:
    """Return the tokens of a row that stand out: its ends, its middle, and both sides of edges that tiles may have."""
    power = 1 << max(0, (length - 1).bit_length() - 1)
    edges = [power, length // 128 * 128, length // 2 // 64 * 64, length * 3 // 4 // 16 * 16]
    places = [0, length - 1, length - 2, length // 3, *(side for edge in edges for side in (edge - 1, edge))]
    return [min(max(place, 0), length - 1) for place in places]


def _height(length: int) -> float:
    """Return how far a landmark's key goes along its aim, so that a query at it weighs it as much as all the rest.

    A query is ``2 sqrt(D)`` long, so logits of other tokens have a standard deviation of 2 and sum to ``e^2 n``.
    """
    return (math.log(length) + 3) / 2


def _blocks(method: AttentionMethod, state: DecodeState) -> Iterator[TokenBlock]:
    """Yield the blocks of a few steps; of a method that verifies drafts the block of each tree that it verifies."""
    rows, device = state.cache.batch, state.cache.device
    if method.draft is None:
        for _ in range(STEPS):
            yield method.step_block(torch.zeros(rows, dtype=torch.int64, device=device), state)
        return
    starts = state.dense.lengths.clone()
    for tree in (PlacedTree(shape, device) for shape in (method.draft.tree, method.draft.narrow) if shape is not None):
        tokens = torch.zeros(rows, len(tree.depths), dtype=torch.int64, device=device)
        yield TokenBlock(tokens, starts[:, None] + tree.depths, tree.mask, starts, reads="dense")


def _heads(
    block: TokenBlock, rope: RopeTable, aims: Tensor, shape: CacheShape, longest: int, turn: int,
    generator: torch.Generator,
) -> BlockHeads:  # fmt: skip
    """Make heads of a block as a projection leaves them; each query looks for a landmark or for the newest key."""
    config, batch, width, device = shape.config, shape.batch, block.width, shape.device
    cos, sin = rope.at(block.positions.clamp(min=0).expand(batch, -1))

    def unrotated(x: Tensor) -> Tensor:
        with dispatch.naive_kernels():
            return rotate(x, cos, -sin).to(shape.dtype)

    k, v = torch.randn(
        2, batch, config.num_kv_heads, width, config.head_dim, generator=generator, device=device
    ).unbind()
    k = k + _height(longest) * aims[-1][None, :, None]
    row, head, column = (torch.arange(size, device=device) for size in (batch, config.num_heads, width))
    sought = (row[:, None, None] + head[None, :, None] + column + 5 * turn) % len(aims)
    q = 2 * math.sqrt(config.head_dim) * aims[sought, (head // config.group_size)[None, :, None]]
    return BlockHeads(unrotated(q), unrotated(k), v.to(shape.dtype), cos, sin)


def _compare(got: _Run, want: _Run, dtype: torch.dtype, words: str) -> None:
    tolerance, share = TOLERANCES[dtype], WEIGHT_TOLERANCES[dtype]
    for at, (mine, truth) in enumerate(zip(got.kept, want.kept, strict=True)):
        if not mine.equal(truth):
            raise GateError(
                f"{words}, step {at // LAYERS}, layer {at % LAYERS}: {int((mine != truth).sum())} slots hold other "
                "tokens than their definition's, chosen by the same weights"
            )
    for mine, truth in zip(got.weights, want.weights, strict=True):
        tiny = torch.finfo(truth.dtype).tiny  # what lies under it one path may round to zero
        if not bool(((mine - truth).abs() <= share * truth + tiny).all()):
            differ = float(((mine - truth).abs() / truth.clamp(min=tiny)).max())
            raise GateError(f"{words}: attention weights differ by up to {differ:.2%}, allowed {share:.2%}")
    for at, (mine, truth) in enumerate(zip(got.outputs, want.outputs, strict=True)):
        where = f"{words}, step {at // LAYERS}, layer {at % LAYERS}"
        mine, truth = mine.float(), truth.float()
        if not bool(((mine - truth).abs() <= tolerance * (1 + truth.abs())).all()):
            differ = float((mine - truth).abs().max())
            raise GateError(
                f"{where}: outputs differ by up to {differ:.3g} from their definition's, allowed {tolerance}"
            )
    for mine, truth in zip(got.scores, want.scores, strict=True):
        if not bool(((mine - truth).abs() <= SCORE_TOLERANCE * (1 + truth.abs())).all()):
            differ = float((mine - truth).abs().max())
            raise GateError(f"{words}: scores differ by up to {differ:.3g}, allowed {SCORE_TOLERANCE}")
    for mine_list, true_list in zip(got.lists, want.lists, strict=True):
        if (mine_list is None) != (true_list is None):
            raise GateError(f"{words}: a layer reads a list one way and everything the other")
        if mine_list is not None and true_list is not None:
            _compare_lists(mine_list, true_list, words)


def _compare_lists(mine: Selection, truth: Selection, words: str) -> None:
    if not mine.counts.equal(truth.counts):
        raise GateError(f"{words}: lists have other lengths than their definition's")
    sizes = mine.counts.clamp(min=0)
    place = torch.arange(mine.indices.shape[-1], device=sizes.device) < sizes[..., None]
    entries = int(max(x.indices.where(place, 0).max() for x in (mine, truth))) + 1
    held = [
        torch.zeros(*sizes.shape, entries + 1, dtype=torch.bool, device=sizes.device).scatter_(
            2, x.indices.where(place, entries), True
        )[..., :entries]
        for x in (mine, truth)
    ]
    differ = (held[0] & ~held[1]).sum(dim=2)
    if bool((differ > (TIES * sizes).clamp(min=2)).any()):
        raise GateError(
            f"{words}: {int(differ.max())} entries of a list are not in its definition's, more than ties explain"
        )
