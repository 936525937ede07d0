"""TriForce with another checkpoint as its small model: any shape drafts, and the text is plain decoding's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decoding import THREE_LAYERS as CONFIG
from decoding import sharp_decoder, writes_as_full
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.generation import Generator, Request, Sampling
from longdecode.engine.weights import load_decoder, random_decoder
from longdecode.methods.registry import get_method


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return sharp_decoder(CONFIG)


def test_another_checkpoint_drafts_for_the_retrieval_cache(tiny_checkpoint: Callable[..., Path]) -> None:
    """One with the same weights is always right; one with another vocabulary or too short a context is refused."""
    path = tiny_checkpoint("llama3")
    made = load_decoder(path, device="cpu", dtype=torch.float32)
    method = get_method("triforce").from_budget(200, made.config, drafter=str(path), rounds=2)
    requests = [Request((3,) * n, 26, seed=n) for n in (40, 23)]
    for sampling in (Sampling(), Sampling(1.0)):
        got = writes_as_full(Generator(made, sampling), requests, method)
        assert [c.tokens_per_step for c in got] == [5.0, 5.0]
        assert got[0].draft_counts == {"inner_rounds": 10, "inner_accepted": 10}
    with pytest.raises(UnsupportedCellError, match="a context of 256 tokens, up to 264 are needed"):
        method = get_method("triforce").from_budget(200, made.config, drafter=str(path), rounds=4)
        Generator(made).run([Request((3,) * 40, 216)], method)
    other = random_decoder(CONFIG, 0, "cpu", torch.float32)
    with pytest.raises(UnsupportedCellError, match="a vocabulary of 97, the verifier 64"):
        Generator(other).run(requests, get_method("triforce").from_budget(200, CONFIG, drafter=str(path)))


@pytest.mark.parametrize(
    ("layers", "heads", "kv_heads", "width"), [(2, 4, 2, 16), (5, 4, 4, 16), (2, 3, 1, 8), (5, 8, 2, 32)]
)
def test_a_checkpoint_of_any_shape_drafts(
    decoder: Decoder, random_ids: Callable, monkeypatch: pytest.MonkeyPatch,
    layers: int, heads: int, kv_heads: int, width: int,
) -> None:  # fmt: skip
    """Other depth, heads and width; over a partial cache and over one that holds everything."""
    shape = replace(
        CONFIG, num_layers=layers, num_heads=heads, num_kv_heads=kv_heads, head_dim=width, hidden_size=heads * width
    )
    drafter = random_decoder(shape, 4, "cpu", torch.float32)
    monkeypatch.setattr("longdecode.methods.triforce.small.load_decoder", lambda path, **where: drafter)
    requests = [Request(random_ids(97, 64), 24, random_ids(3, 64)), Request(random_ids(9, 64), 11), Request((5, 6), 0)]
    for budget, inner in ((40, "keyed"), (40, "residual"), (500, "released")):
        method = get_method("triforce").from_budget(budget, CONFIG, drafter="small", rounds=2, inner=inner)
        assert writes_as_full(Generator(decoder), requests, method)[0].draft_counts["inner_rounds"] > 0


def test_smaller_reads_count_by_bytes(decoder: Decoder, random_ids: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a third of the layers adds a third of what it reads: steps are made one by one to count them."""
    drafter = random_decoder(replace(CONFIG, num_layers=1), 4, "cpu", torch.float32)
    monkeypatch.setattr("longdecode.methods.triforce.small.load_decoder", lambda path, **where: drafter)
    method = get_method("triforce").from_budget(500, CONFIG, drafter="small", rounds=1)
    (done,) = Generator(decoder).run([Request(random_ids(30, 64), 2)], method)
    # Verified: 30 + 3 tokens. The retrieval cache, which holds everything: 30 + 2. Small: 31, 32, and 33 or 32 at last.
    assert done.decode_steps == 1
    small = 3 * done.read_tokens_mean - 3 * (33 + 32)
    assert small == pytest.approx(31 + 32 + (33 if done.draft_counts["inner_accepted"] else 32))
