"""Steps as a CUDA graph needs them, and Cache Correction against a loop that corrects row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from decoding import WINDOW, Window, WindowParams, assert_same, moved, results
from longdecode.engine import kv_cache
from longdecode.engine.correction import Correction
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.generation import Generator, Request, Sampling
from longdecode.engine.kv_cache import CacheShape, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.steppers import CorrectedStepper, Stepper, make_stepper
from longdecode.engine.weights import load_decoder, random_decoder
from longdecode.kernels.decode_attention import naive
from longdecode.methods.ring_cache import RingCache

VOCAB = 97


@pytest.fixture
def window(decoder: Decoder) -> Callable[..., Window]:
    """Maker of the window method."""
    config, of = decoder.config, WindowParams
    return lambda mode=None, period=4, sparse=True: Window(of(mode and Correction(mode, period), sparse), config)


@pytest.fixture
def requests(random_ids: Callable) -> list[Request]:
    """Rows that end before the first correction, between two, at one, and after several; forced and generated."""
    shapes = [(21, 6, 12), (2, 0, 3), (40, 9, 0), (1, 0, 22), (8, 3, 6), (5, 0, 0), (13, 0, 5)]
    return [
        Request(random_ids(prompt, VOCAB), new, random_ids(forced, VOCAB) if forced else (), seed=row)
        for row, (prompt, forced, new) in enumerate(shapes)
    ]


def corrected_row_by_row(stepper: Stepper, steps: int, period: int) -> Iterator[int]:
    """Step without correction and rewrite by a dense prefill of one row's text at a time; yield at each rewrite.

    The prefill runs in a copy of the row, whose slots before the rewritten ones are put back: only they may change.
    """
    cache, decoder = stepper.state.dense, stepper.decoder
    for done in range(1, steps + 1):
        stepper.step()
        if done % period or done == steps:
            continue
        for row in stepper.state.active.nonzero()[:, 0].tolist():
            end = int(cache.lengths[row])
            rewritten = dense_over(decoder, cache, row, stepper.sequences.chosen[row, done - period : done], end)
            for name in ("k", "v"):
                getattr(cache, name)[:, row, :, end - period : end] = rewritten[name]
        yield done


def dense_over(decoder: Decoder, cache: Any, row: int, fed: torch.Tensor, end: int) -> dict[str, torch.Tensor]:
    """Keys and values ``[L, Hkv, T, D]`` of tokens fed densely on top of a row's cache, by plain torch.

    Each layer's queries attend to the stored keys before the tokens and, causally, to the tokens' own new keys.
    """
    config, weights, start = decoder.config, decoder.weights, end - len(fed)
    hidden, kept = weights.embedding[fed], {"k": [], "v": []}
    cos, sin = decoder.rope.cos[start:end], decoder.rope.sin[start:end]

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config.rms_norm_eps))

    def rotate(x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, dim=-1)
        c, s = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
        return torch.cat((low * c - high * s, high * c + low * s), dim=-1)

    for index, layer in enumerate(weights.layers):
        fused = norm(hidden, layer.input_norm) @ layer.qkv.T
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        q, k, v = fused.view(len(fed), -1, config.head_dim).split(heads, dim=1)
        q, k = rotate(q), rotate(k)
        kept["k"].append(k.transpose(0, 1))
        kept["v"].append(v.transpose(0, 1))
        keys = torch.cat((cache.k[index, row, :, :start], k.transpose(0, 1)), dim=1)
        values = torch.cat((cache.v[index, row, :, :start], v.transpose(0, 1)), dim=1)
        group = config.group_size
        keys, values = keys.repeat_interleave(group, dim=0), values.repeat_interleave(group, dim=0)
        scores = q.transpose(0, 1) @ keys.transpose(1, 2) * config.head_dim**-0.5
        future = torch.arange(end) > torch.arange(start, end)[:, None]
        attended = scores.masked_fill(future, -torch.inf).softmax(-1) @ values
        hidden = hidden + attended.transpose(0, 1).flatten(1) @ layer.o.T
        gate, up = (norm(hidden, layer.mlp_norm) @ layer.gate_up.T).chunk(2, dim=-1)
        hidden = hidden + (torch.nn.functional.silu(gate) * up) @ layer.down.T
    return {name: torch.stack(layers) for name, layers in kept.items()}


@pytest.mark.parametrize("period", [1, 4, 7])
def test_a_rewrite_equals_a_prefill(decoder: Decoder, window: Callable, requests: list[Request], period: int) -> None:
    """A rewrite stores what a dense prefill of the fed tokens stores."""
    prompt = Generator(decoder).prefill(requests)
    steps = max(request.continuation_tokens for request in requests) - 1
    reference = make_stepper(decoder, Sampling(), prompt, window())
    run = make_stepper(decoder, Sampling(), prompt, window("rewrite", period))
    advance, done = run.plan(run.works(steps), steps), 0
    uncorrected = make_stepper(decoder, Sampling(), prompt, window())
    for _ in range(period):
        uncorrected.step()
    for at in corrected_row_by_row(reference, steps, period):
        while done < at:
            advance(done)
            done += 1
        active = run.state.active
        assert active.equal(reference.state.active) and run.sequences.chosen.equal(reference.sequences.chosen)
        for row in active.nonzero()[:, 0].tolist():
            end = int(run.state.cache.lengths[row])
            for name in ("k", "v"):
                caches = (one.state.cache for one in (run, reference, uncorrected))
                ours, theirs, sparse = (getattr(cache, name)[:, row, :, :end] for cache in caches)
                torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
                if at == period and end > WINDOW:
                    assert ours[:, :, : end - period].equal(sparse[:, :, : end - period]), "the prompt stays"
                    assert not ours[-1, :, end - 1].allclose(sparse[-1, :, end - 1], atol=1e-6), "nothing was corrected"
    assert done >= steps - period


def test_correcting_full_attention_changes_nothing(decoder: Decoder, window: Callable, requests: list[Request]) -> None:
    generator = Generator(decoder)
    plain = generator.run(requests, window(sparse=False))
    for mode in ("rewrite", "dense_step"):
        corrected = generator.run(requests, window(mode, 4, sparse=False))
        for left, right in zip(corrected, plain, strict=True):
            assert left.forced_logprobs == pytest.approx(right.forced_logprobs, abs=2e-6)
            assert left.output_ids == right.output_ids


def test_correction_changes_what_a_sparse_method_says(decoder: Decoder, window: Callable, random_ids: Callable) -> None:
    request = Request(random_ids(40, VOCAB), 0, random_ids(20, VOCAB))
    generator = Generator(decoder)
    found = (generator.run([request], window(mode))[0] for mode in (None, "rewrite", "dense_step"))
    plain, rewritten, dense = (completion.forced_logprobs for completion in found)
    # A step feeds token n and scores token n + 1: the fourth step is the first dense one, the fifth reads its rewrite.
    assert rewritten[:5] == plain[:5] and dense[:4] == plain[:4]
    assert abs(rewritten[5] - plain[5]) > 1e-9 and abs(dense[4] - plain[4]) > 1e-9


@pytest.mark.parametrize("mode", ["rewrite", "dense_step"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.2, top_p=0.9)])
def test_a_ragged_batch_equals_single_runs(
    decoder: Decoder, window: Callable, requests: list[Request], sampling: Sampling, mode: str
) -> None:
    generator, method = Generator(decoder, sampling), window(mode)
    free = generator.run(requests, window(mode))
    stops = [frozenset(c.output_ids[2:3] if row % 2 else ()) for row, c in enumerate(free)]
    requests = [replace(request, stop_ids=stop) for request, stop in zip(requests, stops, strict=True)]
    together = generator.run(requests, method)
    assert_same(together, [generator.run([request], method)[0] for request in requests])
    assert any(c.finish_reason == "stop" and c.decode_steps < 4 for c in together)
    assert_same(generator.run(requests[::-1], method), together[::-1])


def test_dense_every_step_is_full(decoder: Decoder, window: Callable, requests: list[Request], dense: Callable) -> None:
    """Dense steps every step are full attention."""
    generator = Generator(decoder)
    ours = generator.run(requests, window("dense_step", 1))
    assert results(ours) == results(generator.run(requests, dense(decoder.config)))


@pytest.mark.parametrize(("mode", "steps"), [("rewrite", 9), ("rewrite", 8), ("dense_step", 9), ("dense_step", 8)])
def test_corrections_count(decoder: Decoder, window: Callable, random_ids: Callable, mode: str, steps: int) -> None:
    """Ten prompt tokens; corrections every four steps. A row that ends with a correction due is not rewritten."""
    visible = [10 + n for n in range(1, steps + 1)]
    if mode == "rewrite":
        rewrites = [10 + n for n in (4, 8) if n < steps]
        whole, sparse = sum(visible) + sum(rewrites), steps * WINDOW + sum(rewrites)
    else:
        dense = [10 + n for n in (4, 8)]
        whole, sparse = sum(visible), (steps - 2) * WINDOW + sum(dense)
    other = Request(random_ids(3, VOCAB), 30)
    completion = Generator(decoder).run([Request(random_ids(10, VOCAB), steps + 1), other], window(mode))[0]
    assert completion.read_tokens_sparse * steps == pytest.approx(sparse)
    assert completion.read_tokens_mean * steps == pytest.approx((whole + 2 * sparse) / 3)


class Dropping(Window):
    """Decodes in a cache of its own."""

    def make_cache(self, shape: CacheShape) -> KVCache:
        return RingCache(shape, 4, 1)


@pytest.mark.parametrize("mode", ["rewrite", "dense_step"])
def test_a_cache_that_drops_tokens_is_refused(decoder: Decoder, random_ids: Callable, mode: str) -> None:
    method = Dropping(WindowParams(Correction(mode)), decoder.config)
    with pytest.raises(UnsupportedCellError, match=f"window: correction = {mode} needs.* RingCache"):
        Generator(decoder).run([Request(random_ids(5, VOCAB), 3)], method)


def test_bad_corrections_are_refused() -> None:
    with pytest.raises(ConfigError, match="'often', expected one of rewrite, dense_step"):
        Correction("often")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="period of 0 tokens"):
        Correction("rewrite", 0)
    assert Correction.of("none", 32) is None and Correction.of("rewrite", 8) == Correction("rewrite", 8)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["rewrite", "dense_step"])
@pytest.mark.parametrize("period", [1, 4])
def test_graph_replay_equals_eager(mode: str, period: int, tiny_checkpoint: Callable, requests: list[Request]) -> None:
    decoder = load_decoder(tiny_checkpoint("qwen3"), device="cuda", dtype=torch.float32)
    method = Window(WindowParams(Correction(mode, period)), decoder.config)
    eager, graph = (Generator(decoder, cuda_graph=on) for on in (False, True))
    prompt = eager.prefill([replace(request, stop_ids=frozenset({3, 50})) for request in requests])
    want = eager.decode(prompt, method)
    assert_same(graph.decode(prompt, method), want)
    assert_same(graph.decode(prompt, method), want)


CONFIG = ModelConfig("qwen3", 40, 16, 24, 2, 4, 2, 8, 64, qk_norm=True)
REQUESTS = [
    Request((1, 2, 3), 4, (5, 6), frozenset({7, 8}), 1),
    Request((9,), 0, (10, 11, 12)),
    Request((4, 5, 6, 7, 8), 9, (), frozenset({3})),
]


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """A decoder on the meta device, whose tensors have no values to wait for: reading one raises.

    Decode attention takes the branch that CUDA tensors take; on other devices it may look at lengths.
    """
    monkeypatch.setattr(kv_cache, "decode_attention", naive.decode_attention)
    weights = random_decoder(CONFIG, 0, "cpu", torch.float32).weights
    return Decoder(CONFIG, moved(weights, "meta"), torch.device("meta"), torch.float32)


def test_a_rewrite_never_waits_for_the_host_and_writes_in_place(on_meta: Decoder) -> None:
    prompt = Generator(on_meta).prefill([Request((1, 2, 3), 9), Request((9,), 7)])
    run = make_stepper(on_meta, Sampling(), prompt, Window(WindowParams(Correction("rewrite", 4)), CONFIG))
    assert isinstance(run, CorrectedStepper)
    owners = (run.sequences, run.state, run.state.cache)
    before = [(owner, name, value) for owner in owners for name, value in vars(owner).items() if torch.is_tensor(value)]
    run.rewrite(4)
    assert len(before) > 16 and all(getattr(owner, name) is value for owner, name, value in before)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_p=0.9, min_p=0.01)])
def test_a_step_never_waits_for_the_host(sampling: Sampling, dense: Callable, on_meta: Decoder) -> None:
    run = make_stepper(on_meta, sampling, Generator(on_meta).prefill(REQUESTS), dense(CONFIG))
    with pytest.raises((RuntimeError, NotImplementedError)):
        run.sequences.tokens.tolist()
    run.step()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_p=0.9)])
def test_a_step_changes_tensors_in_place(sampling: Sampling, dense: Callable, seed: int) -> None:
    """A replayed graph writes to the addresses it was captured with, so no attribute may be bound anew."""
    decoder = random_decoder(CONFIG, seed, "cpu", torch.float32)
    run = make_stepper(decoder, sampling, Generator(decoder, sampling).prefill(REQUESTS), dense(CONFIG))

    def addresses() -> dict[str, int]:
        owners = {"sequences": run.sequences, "cache": run.state.cache}
        named = {f"{key}.{name}": value for key, owner in owners.items() for name, value in vars(owner).items()}
        named |= {name: getattr(run.state, name) for name in ("kv_tokens_read", "counted", "active")}
        return {name: value.data_ptr() for name, value in named.items() if isinstance(value, torch.Tensor)}

    before = addresses()
    for _ in range(4):
        run.step()
    assert len(before) >= 14
    after = addresses()
    assert {name: after[name] for name in before} == before
