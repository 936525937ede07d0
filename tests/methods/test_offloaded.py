"""A cache in host memory against the same cache on the device: the same selections give the same bits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from decoding import THREE_LAYERS, random_prompt, results, run_step
from longdecode.engine import host_memory
from longdecode.engine.attention import AttentionMethod, Selection
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import ConfigError, HostMemoryError, UnsupportedCellError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.kv_cache import CacheShape
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.weights import random_decoder
from longdecode.evals.gate import status_of
from longdecode.kernels.block_residency import Arrivals, BlockQueue
from longdecode.kernels.host_fetch import copy_blocks
from longdecode.kernels.resident_attention.launch import ResidentLaunch
from longdecode.methods import offloaded_cache
from longdecode.methods.offloaded import Offloadable
from longdecode.methods.offloaded_cache import OffloadedCache
from longdecode.methods.registry import get_method

CPU = torch.device("cpu")
BLOCK, LISTED = 8, 5
CONFIG = replace(
    THREE_LAYERS, vocab_size=40, hidden_size=16, intermediate_size=16, head_dim=8, rope={"rope_theta": 100.0}
)
LENGTHS = [61, 24, 7]
"""In a block, at the end of one, in the first."""


@dataclass(frozen=True)
class Knobs:
    offload: bool
    spare_slots: int = 0
    prefetch: str = ""
    overlap: bool = False


class Scripted(Offloadable):
    """Lists blocks that change a little from step to step, the newest among them; layer 0 reads everything."""

    name: ClassVar[str] = "scripted"
    Params: ClassVar[type] = Knobs
    listed_blocks, block_tokens = LISTED, BLOCK

    def __init__(self, params: Knobs, seed: int):
        super().__init__(params, CONFIG)
        self.seed = seed
        self.draw = [torch.Generator().manual_seed(seed + layer) for layer in range(CONFIG.num_layers)]
        self.guess = torch.Generator().manual_seed(seed + 1)
        self.lists: dict[int, Tensor] = {}
        self.want: dict[int, set[tuple[int, int, int]]] = {}
        self.misses = 0

    @classmethod
    def from_budget(cls, budget_tokens: int | None, config: ModelConfig, **overrides: Any) -> AttentionMethod:
        raise NotImplementedError

    def dense_layers(self) -> frozenset[int]:
        return frozenset({0})

    def twin(self) -> Scripted:
        """A copy that goes on as this one does."""
        other = Scripted(self.params, self.seed)
        other.lists = {layer: lists.clone() for layer, lists in self.lists.items()}
        for mine, theirs in zip(self.draw, other.draw, strict=True):
            theirs.set_state(mine.get_state())
        return other

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        if layer == 0:
            return None
        newest = (state.kv_lengths - 1) // BLOCK
        chosen, counts = self._next(layer, newest)
        self._count(layer, chosen, counts, newest)
        return Selection(chosen, counts, BLOCK)

    def foresee(self, layer: int, state: DecodeState) -> None:
        """Prefetch as a predictor might: the right lists, or junk of any kind."""
        if layer == 0 or not self.params.prefetch or not self.params.offload:
            return
        newest = (state.kv_lengths - 1) // BLOCK
        shape = (len(newest), CONFIG.num_kv_heads, LISTED)
        if self.params.prefetch == "right":
            chosen, counts = self.twin()._next(layer, newest)
        else:
            chosen = torch.randint(-2, 200, shape, generator=self.guess) % (newest.max() + 3)
            counts = torch.randint(0, LISTED + 1, shape[:2], generator=self.guess)
        state.cache.prefetch(layer, chosen, counts)

    def _next(self, layer: int, newest: Tensor) -> tuple[Tensor, Tensor]:
        """Replace about one of the older blocks in each list; the newest and the first are always there."""
        old = self.lists.get(layer)
        before, heads = None if old is None else old.tolist(), CONFIG.num_kv_heads
        lists: list[list[int]] = []
        for row, last in enumerate(newest.tolist()):
            for head in range(heads):
                kept = [] if before is None else [b for b in before[row][head] if 0 < b < last]
                pool = torch.randperm(last + 1, generator=self.draw[layer]).tolist()
                picked = list(dict.fromkeys([0, last, *kept[: LISTED - 3], *pool]))[:LISTED]
                lists.append(sorted(picked))
        counts = torch.tensor([len(picked) for picked in lists]).view(len(newest), heads)
        chosen = torch.tensor([picked + [0] * (LISTED - len(picked)) for picked in lists]).view(-1, heads, LISTED)
        self.lists[layer] = chosen
        return chosen, counts

    def _count(self, layer: int, chosen: Tensor, counts: Tensor, newest: Tensor) -> None:
        """Count what is listed now and was not listed in the step before, nor was the newest block."""
        last, listed, lengths = newest.tolist(), chosen.tolist(), counts.tolist()
        places = itertools.product(range(len(last)), range(CONFIG.num_kv_heads))
        named = {(row, head, block) for row, head in places for block in listed[row][head][: lengths[row][head]]}
        now = {(row, head, block) for row, head, block in named if block < last[row]}
        self.misses += len(now - self.want.get(layer, set()))
        self.want[layer] = now


def random_heads(rng: torch.Generator) -> list[tuple[Tensor, Tensor, Tensor]]:
    sizes = (CONFIG.num_heads, CONFIG.num_kv_heads, CONFIG.num_kv_heads)
    return [
        tuple(torch.randn(len(LENGTHS), size, 1, CONFIG.head_dim, generator=rng) for size in sizes)  # type: ignore[misc]
        for _ in range(CONFIG.num_layers)
    ]


@pytest.mark.parametrize(
    ("spare", "prefetch", "overlap", "steps"),
    [
        (3, "", False, 60), (0, "right", False, 60), (1, "wrong", False, 100), (0, "", True, 60),
        (1, "wrong", True, 100), (0, "", False, 400), (2, "wrong", True, 400),
    ],
)  # fmt: skip
def test_equals_the_device_bit_for_bit(
    rng: torch.Generator, seed: int, spare: int, prefetch: str, overlap: bool, steps: int
) -> None:
    prompt = random_prompt(rng, CONFIG, LENGTHS, max(LENGTHS) + steps)
    near, far = Scripted(Knobs(False), seed), Scripted(Knobs(True, spare, prefetch, overlap), seed)
    near_state, far_state = near.start(prompt), far.start(prompt)
    cache = far_state.cache
    assert isinstance(cache, OffloadedCache) and cache.slots == LISTED + spare
    assert cache.host_nbytes() == 2 * 2 * len(LENGTHS) * 2 * cache.blocks * BLOCK * CONFIG.head_dim * 4
    for _ in range(steps):
        heads = random_heads(rng)
        for mine, theirs in zip(run_step(far, far_state, heads), run_step(near, near_state, heads), strict=True):
            assert mine.equal(theirs)
    assert far_state.counted.equal(near_state.counted)
    fetched, early = int(cache.fetched.sum()), int(cache.prefetched.sum())
    assert far.misses > steps
    if prefetch == "right":
        assert fetched == 0 and early == far.misses
    elif prefetch:
        assert early > 0
    elif spare:
        assert fetched < far.misses
    else:
        assert fetched == far.misses
    for layer in range(CONFIG.num_layers):
        for row in range(len(LENGTHS)):
            pairs = zip(cache.stored_kv(layer, row, 1), near_state.cache.stored_kv(layer, row, 1), strict=True)
            assert all(got.equal(want) for got, want in pairs)
        assert cache.keys(layer)[1, :, :30].equal(near_state.whole.keys(layer)[1, :, :30])


def test_late_blocks_leave_no_trace(rng: torch.Generator, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernels: the same bits as on the device, and attention is told of every block that was fetched."""
    monkeypatch.setattr("longdecode.kernels.dispatch.kernel_path", lambda *given: "triton")
    rule = functools.partial(ResidentLaunch, 16, 16, 16, 2, 4, 2)
    monkeypatch.setattr("longdecode.kernels.resident_attention.gpu.choose_launch", lambda *args: rule())
    told, steps = 0, 6

    def copy(source: Any, target: Any, queue: BlockQueue, arrivals: Arrivals | None = None) -> None:
        nonlocal told
        if arrivals is not None:
            told += int(arrivals.state.sum())
            for near in target:
                near[queue.targets[: int(queue.count)]] = float("nan")
        copy_blocks(source, target, queue, arrivals)
        assert arrivals is None or not (arrivals.state == 1).any()

    monkeypatch.setattr(offloaded_cache, "copy_blocks", copy)
    prompt = random_prompt(rng, CONFIG, LENGTHS, max(LENGTHS) + steps)
    near, far = Scripted(Knobs(False, overlap=True), seed), Scripted(Knobs(True, 1, overlap=True), seed)
    near_state, far_state = near.start(prompt), far.start(prompt)
    cache = far_state.cache
    assert isinstance(cache, OffloadedCache)
    for _ in range(steps):
        heads = random_heads(rng)
        for mine, theirs in zip(run_step(far, far_state, heads), run_step(near, near_state, heads), strict=True):
            assert mine.equal(theirs)
    assert told == int(cache.fetched.sum()) > 0 and far_state.counted.equal(near_state.counted)


@pytest.mark.parametrize("overlap", [False, True], ids=["before", "during"])
def test_steps_taken_back_leave_no_trace(rng: torch.Generator, seed: int, overlap: bool) -> None:
    """Drafts of four steps, most of them across a block's end, of which each row keeps another number; a clone too."""
    prompt = random_prompt(rng, CONFIG, LENGTHS, 200)
    near, far = Scripted(Knobs(False), seed), Scripted(Knobs(True, 1, overlap=overlap), seed)
    near_state, far_state = near.start(prompt), far.start(prompt)
    for _ in range(12):
        saved = []
        for _ in range(4):
            heads = random_heads(rng)
            saved.append((far_state.cache.before_step(), near_state.cache.before_step()))
            run_step(far, far_state, heads)
            run_step(near, near_state, heads)
        kept = torch.randint(0, 4, (len(LENGTHS),), generator=rng)
        for number, (mine, theirs) in reversed(list(enumerate(saved))):
            far_state.cache.undo(mine, kept <= number)
            near_state.cache.undo(theirs, kept <= number)
        heads = random_heads(rng)
        twin, other = far.twin(), DecodeState(far_state.cache.clone())
        want = run_step(near, near_state, heads)
        for got in (run_step(far, far_state, heads), run_step(twin, other, heads)):
            assert all(mine.equal(theirs) for mine, theirs in zip(got, want, strict=True))


@pytest.mark.parametrize(("name", "lengths"), [("infllm2", (97, 50, 33)), ("nosa", (64,))])
def test_a_generation_is_the_same(random_ids: Callable, name: str, lengths: tuple[int, ...]) -> None:
    """Through prefill, early choice and sampling: the same tokens and the same log-probabilities."""
    decoder = random_decoder(CONFIG, 1, CPU, torch.float32)
    requests = [Request(random_ids(length, 40), 30, random_ids(9, 40)) for length in lengths]
    plain = {"heads": "random:3"} if name == "nosa" else {}
    build = get_method(name).from_budget
    want = Generator(decoder).run(requests, build(32, CONFIG, **plain))
    both = {"prefetch": True, "spare_slots": 2}
    for knobs in ({}, {"prefetch": True}, both, {"overlap": True}, {"overlap": True, **both}):
        method = build(32, CONFIG, **plain, offload=True, **knobs)
        assert results(Generator(decoder).run(requests, method)) == results(want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["infllm2", "nosa"])
@pytest.mark.parametrize(
    ("overlap", "budget", "steps"), [(False, 128, 2000), (True, 128, 2000), (True, 512, 60), (False, 128, 60)], ids=str
)
def test_equals_the_device_from_graphs(
    random_ids: Callable, name: str, overlap: bool, budget: int, steps: int, dtype: torch.dtype
) -> None:
    """By the kernels (bfloat16) and by torch through unified addresses (float64), through ends of blocks.

    A list of 512 tokens has several programs, so that with overlap some of them wait. Graphs alone go 2,000 steps.
    """
    if steps > 60 and dtype is not torch.bfloat16:
        pytest.skip("2,000 steps are the kernels' check")
    cuda, config = torch.device("cuda"), replace(CONFIG, hidden_size=128, head_dim=32)
    decoder = random_decoder(config, 1, cuda, dtype)
    requests = [Request(random_ids(length, 40), steps, random_ids(9, 40)) for length in (2 * budget + 45, 170, 96)]
    plain: dict[str, Any] = {"heads": "random:3"} if name == "nosa" else {}
    plain |= {"block_size": 16, "overlap": overlap}
    build = get_method(name).from_budget
    want = Generator(decoder, cuda_graph=True).run(requests, build(budget, config, **plain))
    for knobs in ({}, {"spare_slots": 3}, {"prefetch": True}, {"prefetch": True, "spare_slots": 3}):
        method = build(budget, config, **plain, offload=True, **knobs)
        for graph in (False, True) if steps <= 60 else (True,):
            assert results(Generator(decoder, cuda_graph=graph).run(requests, method)) == results(want)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = CacheShape(CONFIG, 2, 64, CPU, torch.float32, 64)
    cache, q = OffloadedCache(shape, BLOCK, 3), torch.zeros(2, 4, 1, 8)
    lists = torch.zeros(2, 2, 2, dtype=torch.int64)
    read = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(UnsupportedCellError, match="layer 0 lies in host memory"):
        cache.attend(0, q, None, read)
    with pytest.raises(UnsupportedCellError, match="blocks of 8 tokens; 2 lists of blocks of 16"):
        cache.attend_listed(0, q, lists, lists[..., 0], block_size=16, kv_tokens_read=read)
    with pytest.raises(UnsupportedCellError, match="stores one token a step"):
        cache.begin_block(2, None, torch.ones(2, dtype=torch.bool))
    with pytest.raises(ConfigError, match="infllm2: spare_slots"):
        get_method("infllm2").from_budget(64, CONFIG, spare_slots=-1)
    monkeypatch.setattr(host_memory, "free_host_bytes", lambda: (1 << 30) + 1000)
    with pytest.raises(HostMemoryError, match=r"need 49,152 bytes of host memory; 1,000 are free") as caught:
        OffloadedCache(shape, BLOCK, 3)
    assert status_of(caught.value) == "oom"
