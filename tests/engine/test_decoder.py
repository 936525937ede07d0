"""Rotary tables, and logits against transformers' own models, in float32: prefill and decode, alone and in batches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from longdecode.engine.config_reader import read_config
from longdecode.engine.rope import RopeTable
from longdecode.engine.weights import load_decoder

MODELS = (
    "llama2", "llama3", "qwen2", "qwen2_yarn", "qwen3", "mistral", "minicpm", "minicpm_tied", "phi3", "qwen3_moe",
    "qwen3_moe_every_second",
)  # fmt: skip
# Of the logits' own spread; over a hundred random models the largest difference seen was 6e-6.
RELATIVE_TOLERANCE = 5e-5
DECODE_STEPS = 8


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert torch.isfinite(ours).all()
    tolerance = RELATIVE_TOLERANCE * theirs.std().item()
    assert (ours - theirs).abs().max().item() <= tolerance


def reference_logits(model: Any, ids: list[int]) -> Tensor:
    """Logits ``[T, V]`` after every token, in one pass without a cache."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].float()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("lengths", "chunk_tokens"), [((41,), 1), ((50,), 7), ((41, 1, 100), 48), ((50, 3), 100_000)])
def test_prefill_and_decode_equal_transformers(
    name: str, lengths: tuple[int, ...], chunk_tokens: int, tiny_checkpoint: Callable, reference_model: Callable,
    random_ids: Callable, dense: Callable,
) -> None:  # fmt: skip
    folder = tiny_checkpoint(name)
    decoder = load_decoder(folder, device="cpu", dtype=torch.float32)
    model, method = reference_model(folder), dense(decoder.config)
    rows = [random_ids(length + DECODE_STEPS, decoder.config.vocab_size) for length in lengths]
    expected = [reference_logits(model, list(row)) for row in rows]
    cache = decoder.new_cache(len(rows), max(lengths) + DECODE_STEPS)
    prompts = [torch.tensor(row[:length]) for row, length in zip(rows, lengths, strict=True)]
    logits, _ = decoder.prefill(prompts, cache, chunk_tokens)
    state = method.decode_in(cache.clone())
    for step in range(DECODE_STEPS + 1):
        for index, length in enumerate(lengths):
            assert_close(logits[index], expected[index][length - 1 + step])
        if step < DECODE_STEPS:
            tokens = torch.tensor([row[length + step] for row, length in zip(rows, lengths, strict=True)])
            logits = decoder.step(tokens, state, method)
    assert cache.lengths.tolist() == list(lengths), "the prompt's cache must not move"


def test_positions_are_read_from_the_cache_not_from_its_length(
    tiny_checkpoint: Callable, reference_model: Callable, random_ids: Callable, dense: Callable
) -> None:
    """A cache whose first tokens were dropped still rotates by original positions: scores depend on distances alone,
    so with every stored key shifted by the same amount nothing may change."""
    decoder = load_decoder(tiny_checkpoint("llama2"), device="cpu", dtype=torch.float32)
    method, ids = dense(decoder.config), random_ids(21, decoder.config.vocab_size)
    shifted, base = decoder.new_cache(1, 32), decoder.new_cache(1, 32)
    expected, _ = decoder.prefill([torch.tensor(ids)], base, 64)
    shift = 100
    cos, sin = decoder.rope.cos, decoder.rope.sin
    decoder.rope.cos, decoder.rope.sin = cos[shift:], sin[shift:]
    decoder.prefill([torch.tensor(ids[:-1])], shifted, 64)
    decoder.rope.cos, decoder.rope.sin = cos, sin
    shifted.positions += shift
    logits = decoder.step(torch.tensor([ids[-1]]), method.decode_in(shifted), method)
    assert_close(logits, expected)


def test_inactive_rows_stand_still(tiny_checkpoint: Callable, random_ids: Callable, dense: Callable) -> None:
    decoder = load_decoder(tiny_checkpoint("qwen3"), device="cpu", dtype=torch.float32)
    method, cache = dense(decoder.config), decoder.new_cache(2, 16)
    decoder.prefill([torch.tensor(random_ids(n, 97)) for n in (5, 9)], cache, 64)
    state = method.decode_in(cache.clone())
    state.active.copy_(torch.tensor([True, False]))
    stored = state.cache.k[:, 1, :, :9].clone()
    decoder.step(torch.tensor([3, 4]), state, method)
    assert state.cache.lengths.tolist() == state.cache.positions.tolist() == [6, 9]
    assert torch.equal(state.cache.k[:, 1, :, :9], stored)
    assert (state.kv_tokens_per_head[:, 0] == 6).all() and (state.kv_tokens_per_head[:, 1] == 0).all()


@pytest.mark.parametrize(("dtype", "relative_tolerance"), [(torch.bfloat16, 0.15), (torch.float16, 0.025)])
def test_half_precision_stays_near_float32(
    dtype: torch.dtype, relative_tolerance: float, tiny_checkpoint: Callable, reference_model: Callable,
    random_ids: Callable, dense: Callable,
) -> None:  # fmt: skip
    """Root mean square over the vocabulary; over a hundred random models 0.07 and 0.009 of the spread were the most."""
    folder = tiny_checkpoint("llama3")
    decoder = load_decoder(folder, device="cpu", dtype=dtype)
    ids = random_ids(40, decoder.config.vocab_size)
    expected = reference_logits(reference_model(folder), list(ids))
    cache, method = decoder.new_cache(1, 40), dense(decoder.config)
    prefilled, _ = decoder.prefill([torch.tensor(ids[:-1])], cache, 64)
    stepped = decoder.step(torch.tensor([ids[-1]]), method.decode_in(cache.clone()), method)
    assert prefilled.dtype == stepped.dtype == torch.float32
    for ours, theirs in ((prefilled[0], expected[-2]), (stepped[0], expected[-1])):
        assert (ours - theirs).square().mean().sqrt().item() <= relative_tolerance * theirs.std().item()


@pytest.mark.parametrize("name", ["llama2", "llama3", "qwen2_yarn", "qwen3", "minicpm", "minicpm_tied"])
def test_tables_equal_transformers(name: str, tiny_checkpoint: Callable, reference_model: Callable) -> None:
    folder: Path = tiny_checkpoint(name)
    model: Any = reference_model(folder)
    table = RopeTable(read_config(folder), torch.device("cpu"))
    positions = torch.arange(256)
    cos, sin = model.model.rotary_emb(torch.zeros(1), positions[None])
    ours_cos, ours_sin = table.at(torch.arange(len(positions))[None])
    # The angle itself is rounded to float32: at position 255 that is 1.5e-5.
    torch.testing.assert_close(ours_cos, cos, atol=2e-5, rtol=0)
    torch.testing.assert_close(ours_sin, sin, atol=2e-5, rtol=0)


def test_positions_are_looked_up_row_by_row(tiny_checkpoint: Callable) -> None:
    table = RopeTable(read_config(tiny_checkpoint("qwen2_yarn")), torch.device("cpu"))
    cos, sin = table.at(torch.tensor([[200, 0], [31, 5]]))
    for row, position in enumerate((200, 0, 31, 5)):
        assert torch.equal(cos.flatten(0, 1)[row], torch.cat((table.cos[position], table.cos[position])))
        assert torch.equal(sin.flatten(0, 1)[row], torch.cat((table.sin[position], table.sin[position])))


def test_the_default_variant_does_not_import_transformers() -> None:
    program = (
        "import sys, torch\n"
        "from longdecode.engine.generation import Generator, Request\n"
        "from longdecode.engine.model_config import ModelConfig\n"
        "from longdecode.engine.weights import random_decoder\n"
        "config = ModelConfig('llama', 9, 8, 8, 1, 2, 1, 4, 16)\n"
        "Generator(random_decoder(config, 0, 'cpu', torch.float32)).prefill([Request((1, 2), 1)])\n"
        "sys.exit('transformers' in sys.modules)\n"
    )
    source = Path(__file__).parents[2] / "src"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(source), "PATH": ""})
