"""A prompt is decoded by the method that it was read for, or refused; never read by another rule without a word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from decoding import THREE_LAYERS
from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Completion, Generator, Request
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.weights import random_decoder
from longdecode.methods.registry import get_method, load_card, method_names

CONFIG = replace(THREE_LAYERS, vocab_size=61, intermediate_size=32, num_layers=5, max_positions=512)
IDS = tuple(range(5, 45))
REQUESTS = [Request(IDS * 2, 3, (7, 8, 9)), Request(IDS, 5)]
OWN_RULE = {"nosa": {"heads": "random:0"}, "infllm2": {}, "dma": {"heads": "random:0"}}


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(random_decoder(CONFIG, 0, torch.device("cpu"), torch.float64))


def build(name: str, budget: int | None = 40, config: ModelConfig = CONFIG, **params: Any) -> AttentionMethod:
    return get_method(name).from_budget(budget, config, **params)


def said(completions: list[Completion]) -> list[tuple[Any, ...]]:
    return [(done.output_ids, done.forced_logprobs, done.read_tokens_mean) for done in completions]


@pytest.mark.parametrize("maker", ["streaming", "h2o", "tova", "snapkv", "shadowkv", "nosa", "infllm2", "dma"])
def test_a_prompt_of_another_method_is_refused(generator: Generator, maker: str) -> None:
    params = {"window": 8} if maker == "snapkv" else OWN_RULE.get(maker, {})
    prompt = generator.prefill_for(REQUESTS, build(maker, **params))
    for other in (build("full", None), build("quest"), build("streaming", sinks=1)):
        with pytest.raises(ConfigError, match=f"{other.name} .*cannot decode a prompt that {maker} .*run\\(\\)"):
            generator.decode(prompt, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (build("streaming"), build("streaming", 39)),
        (build("streaming"), build("streaming", sinks=2)),
        (build("nosa", heads="random:0"), build("nosa", heads="random:1")),
        (build("infllm2", offload=True), build("infllm2")),
    ],
)
def test_other_settings_are_refused(generator: Generator, one: AttentionMethod, other: AttentionMethod) -> None:
    """For a prompt that was read by others of the same method."""
    prompt = generator.prefill_for(REQUESTS, one)
    with pytest.raises(ConfigError, match=r"budget of .* cannot decode a prompt that .* budget of"):
        generator.decode(prompt, other)


@pytest.mark.parametrize("name", OWN_RULE)
def test_a_dense_prompt_is_refused_by_a_method_that_reads_prompts_itself(generator: Generator, name: str) -> None:
    method = build(name, **OWN_RULE[name])
    with pytest.raises(ConfigError, match=f"{name} prefills by a rule of its own.*prefill_for\\(\\)"):
        generator.decode(generator.prefill(REQUESTS, [method]), method)


@pytest.mark.parametrize(
    ("name", "params"),
    [("snapkv", {"window": 8}), ("h2o", {}), ("triforce", {"window": 32}),
     ("speculate", {"drafter": "snapkv", "drafter_params": {"window": 8}})],
)  # fmt: skip
def test_a_dense_prompt_not_observed_is_refused(generator: Generator, name: str, params: dict[str, Any]) -> None:
    method = build(name, **params)
    roomy = [replace(request, max_new_tokens=request.max_new_tokens + 8) for request in REQUESTS]
    with pytest.raises(ConfigError, match=rf"{name} must see the prefill.*prefill\(requests, \[method\]\)"):
        generator.decode(generator.prefill(roomy), method)


def test_another_window_was_not_observed_either(generator: Generator) -> None:
    prompt = generator.prefill(REQUESTS, [build("snapkv", window=8)])
    with pytest.raises(ConfigError, match="with the parameters that it decodes with"):
        generator.decode(prompt, build("snapkv", window=9))


def test_a_prompt_of_another_model_is_refused(generator: Generator) -> None:
    method = build("full", None, replace(CONFIG, num_layers=4))
    with pytest.raises(ConfigError, match="full is made for another model"):
        generator.decode(generator.prefill(REQUESTS), method)


@pytest.mark.parametrize("name", method_names())
def test_a_prompt_of_its_own_is_decoded_as_often_as_asked(generator: Generator, name: str) -> None:
    """Prefilled for an equal method, or shared where it may be, it gives what ``run`` gives, twice."""
    card = load_card(name)
    budget = None if card.limits.min_budget_tokens is None else card.conformance.budget_tokens

    def made() -> AttentionMethod:
        return build(name, budget, replace(CONFIG, num_layers=7), **card.conformance.params)

    deeper = Generator(random_decoder(replace(CONFIG, num_layers=7), 0, torch.device("cpu"), torch.float64))
    want = said(deeper.run(REQUESTS, made()))
    prompts = [deeper.prefill_for(REQUESTS, made())]
    if made().prefills_densely:
        prompts.append(deeper.prefill(REQUESTS, [made(), build("full", None, replace(CONFIG, num_layers=7))]))
    for prompt in prompts:
        assert [said(deeper.decode(prompt, made())) for _ in range(2)] == [want, want]


def test_a_prompt_that_was_decoded_in_place_is_refused(generator: Generator) -> None:
    for method in (build("streaming"), build("full", None)):
        prompt = generator.prefill_for(REQUESTS, method)
        generator.decode(prompt, method, keep_prompt=False)
        with pytest.raises(ConfigError, match="decoded in its own cache"):
            generator.decode(prompt, method)


@pytest.mark.parametrize("name", ["full", "quest", "lychee", "retro", "tidal", "snapkv", "ngram"])
def test_a_dense_prompt_is_decoded_without_a_copy_and_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is full at once and one that rewrites what it read are among the rows; every bit is there again."""
    deeper = Generator(random_decoder(replace(CONFIG, num_layers=7), 0, torch.device("cpu"), torch.float64))
    params = {"tidal": {"correction": "rewrite", "correction_period": 2}, "snapkv": {"window": 8}}.get(name, {})
    budget = None if load_card(name).limits.min_budget_tokens is None else 64
    method = build(name, budget, replace(CONFIG, num_layers=7), **params)
    requests = [Request(IDS * 2, 0), Request(IDS, 12)]
    want = said(deeper.run(requests, method))
    prompt = deeper.prefill(requests, [method])
    cache = prompt.cache
    before = [tensor.clone() for tensor in (cache.k, cache.v)]

    def copied(self: KVCache) -> None:
        raise AssertionError("the prompt's cache was copied")

    monkeypatch.setattr(KVCache, "clone", copied)
    for _ in range(2):
        assert said(deeper.decode(prompt, method)) == want
        for tensor, old in zip((cache.k, cache.v), before, strict=True):
            for row, request in enumerate(requests):
                stored = len(request.prompt_ids)
                assert tensor[:, row, :, :stored].equal(old[:, row, :, :stored])
