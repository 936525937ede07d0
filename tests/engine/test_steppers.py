"""The decode step as a CUDA graph needs it: no value is ever read back, every tensor keeps its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from decoding import moved
from longdecode.engine import kv_cache
from longdecode.engine.decoder import Decoder, DecoderWeights, LayerWeights
from longdecode.engine.generation import Generator, Request, Sampling
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.steppers import make_stepper
from longdecode.engine.weights import random_decoder
from longdecode.kernels.decode_attention import naive

CONFIG = ModelConfig("qwen3", 40, 16, 24, 2, 4, 2, 8, 64, qk_norm=True)
REQUESTS = [
    Request((1, 2, 3), 4, (5, 6), frozenset({7, 8}), 1),
    Request((9,), 0, (10, 11, 12)),
    Request((4, 5, 6, 7, 8), 9, (), frozenset({3})),
]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_p=0.9, min_p=0.01)])
def test_a_step_never_waits_for_the_host(sampling: Sampling, dense: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run it on the meta device, whose tensors have no values to wait for: reading one raises.

    Decode attention takes the branch that CUDA tensors take; on other devices it may look at lengths.
    """

    monkeypatch.setattr(kv_cache, "decode_attention", naive.decode_attention)
    weights = random_decoder(CONFIG, 0, "cpu", torch.float32).weights
    assert isinstance(weights, DecoderWeights) and isinstance(weights.layers[0], LayerWeights)
    decoder = Decoder(CONFIG, moved(weights, "meta"), torch.device("meta"), torch.float32)
    prompt = Generator(decoder).prefill(REQUESTS)
    run = make_stepper(decoder, sampling, prompt, dense(CONFIG))
    with pytest.raises((RuntimeError, NotImplementedError)):
        run.sequences.tokens.tolist()
    run.step()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_p=0.9)])
def test_a_step_changes_tensors_in_place(sampling: Sampling, dense: Callable, seed: int) -> None:
    """A replayed graph writes to the addresses it was captured with, so no attribute may be bound anew."""
    decoder = random_decoder(CONFIG, seed, "cpu", torch.float32)
    prompt = Generator(decoder, sampling).prefill(REQUESTS)
    run = make_stepper(decoder, sampling, prompt, dense(CONFIG))

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
