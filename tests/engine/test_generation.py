"""The generation loop against transformers and against itself: batches, forced tokens, stops, counters, errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding import WINDOW, Window, WindowParams, assert_same, results
from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError, ContextLimitError, DeviceMemoryError
from longdecode.engine.generation import Generator, Request, Sampling
from longdecode.engine.weights import load_decoder

VOCAB = 97


@pytest.fixture
def method(decoder: Decoder, dense: Callable) -> AttentionMethod:
    return dense(decoder.config)


def ragged(random_ids: Callable) -> list[Request]:
    """Rows that differ in every length, with forced tokens only, generated only, both, and neither."""
    shapes = [(31, 0, 12), (5, 9, 0), (64, 4, 6), (1, 0, 1), (17, 1, 0), (8, 0, 0), (22, 7, 20)]
    return [
        Request(random_ids(prompt, VOCAB), new, random_ids(forced, VOCAB) if forced else (), seed=index)
        for index, (prompt, forced, new) in enumerate(shapes)
    ]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.2, top_p=0.9), Sampling(0.8, min_p=0.05)])
def test_rows_run_as_alone(sampling: Sampling, decoder: Decoder, method: AttentionMethod, random_ids: Callable) -> None:
    """A ragged batch equals single runs."""
    requests = ragged(random_ids)
    generator = Generator(decoder, sampling, prefill_tokens=40)
    together = generator.run(requests, method)
    assert_same(together, [generator.run([request], method)[0] for request in requests])
    assert [c.decode_steps for c in together] == [max(0, r.continuation_tokens - 1) for r in requests]


@pytest.mark.parametrize("name", ["llama2", "llama3", "qwen2", "qwen2_yarn", "qwen3", "mistral", "minicpm_tied"])
def test_forced_logprobs_equal_transformers(
    name: str, dense: Callable, tiny_checkpoint: Callable, reference_model: Callable, random_ids: Callable
) -> None:
    decoder = load_decoder(tiny_checkpoint(name), device="cpu", dtype=torch.float64)
    prompt, forced = random_ids(13, VOCAB), random_ids(20, VOCAB)
    completion = Generator(decoder).run([Request(prompt, 3, forced)], dense(decoder.config))[0]
    with torch.no_grad():
        logits = reference_model(tiny_checkpoint(name))(torch.tensor([prompt + forced])).logits[0].double()
    expected = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, torch.tensor(forced)[:, None])[:, 0]
    assert completion.forced_logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    assert completion.output_ids[0] == logits[-1].argmax().item(), "generation goes on after the last forced token"


def test_forcing_greedy_tokens_changes_nothing(decoder: Decoder, method: AttentionMethod, random_ids: Callable) -> None:
    prompt, generator = random_ids(20, VOCAB), Generator(decoder)
    free = generator.run([Request(prompt, 12)], method)[0].output_ids
    assert generator.run([Request(prompt, 5, free[:7])], method)[0].output_ids == free[7:]


def test_a_stop_token_ends_its_row_alone(decoder: Decoder, method: AttentionMethod, random_ids: Callable) -> None:
    prompts = [random_ids(length, VOCAB) for length in (12, 40, 25)]
    generator = Generator(decoder, Sampling(1.5))
    free = generator.run([Request(prompt, 30, seed=row) for row, prompt in enumerate(prompts)], method)
    stop = free[0].output_ids[6]
    at = free[0].output_ids.index(stop)
    stops = [frozenset({stop}), frozenset(), frozenset({VOCAB - 1, VOCAB + 5} - set(free[2].output_ids))]
    requests = [Request(prompt, 30, stop_ids=stops[row], seed=row) for row, prompt in enumerate(prompts)]
    stopped = generator.run(requests, method)
    assert stopped[0].output_ids == free[0].output_ids[: at + 1]
    assert (stopped[0].finish_reason, stopped[0].decode_steps) == ("stop", at)
    assert results(stopped[1:]) == results(free[1:])
    assert stopped[0].read_tokens_mean == (pytest.approx(12 + (at + 1) / 2) if at else 0)


def test_forced_tokens_do_not_stop(decoder: Decoder, method: AttentionMethod, random_ids: Callable) -> None:
    completion = Generator(decoder).run([Request(random_ids(9, VOCAB), 0, (5, 5, 5), frozenset({5}))], method)[0]
    assert len(completion.forced_logprobs) == 3 and (completion.output_ids, completion.finish_reason) == ((), "length")


def test_one_prompt_serves_many_runs(decoder: Decoder, method: AttentionMethod, random_ids: Callable) -> None:
    """Nothing of one run leaks into another."""
    generator = Generator(decoder, Sampling(1.0))
    prompt = generator.prefill(ragged(random_ids))
    lengths = prompt.cache.lengths.clone()
    stored = torch.arange(prompt.cache.capacity) < lengths[:, None]
    keys = prompt.cache.k.transpose(2, 3)[:, stored].clone()
    first = generator.decode(prompt, method)
    generator.run([Request(random_ids(50, VOCAB), 9)], method)
    assert results(generator.decode(prompt, method)) == results(first)
    assert torch.equal(prompt.cache.k.transpose(2, 3)[:, stored], keys) and torch.equal(prompt.cache.lengths, lengths)


def test_reads_are_means_over_steps_and_layers(decoder: Decoder, dense: Callable, random_ids: Callable) -> None:
    requests = [Request(random_ids(20, VOCAB), 5), Request(random_ids(33, VOCAB), 3)]
    generator, window = Generator(decoder), Window(WindowParams(), decoder.config)
    for completion, full in zip(generator.run(requests, window), (22.5, 34.5), strict=True):
        assert completion.read_tokens_sparse == WINDOW
        assert completion.read_tokens_mean == pytest.approx((full + 2 * WINDOW) / 3)
    for completion, full in zip(generator.run(requests, dense(decoder.config)), (22.5, 34.5), strict=True):
        assert completion.read_tokens_mean == completion.read_tokens_sparse == full


def test_requests_run_up_to_the_limit(decoder: Decoder, method: AttentionMethod, random_ids: Callable) -> None:
    """Requests that just fit run, longer ones are refused."""
    limit, generator = decoder.config.max_positions, Generator(decoder)
    fits = Request(random_ids(limit - 8, VOCAB), 5, (1, 2, 3))
    assert [len(c.output_ids) for c in generator.run([fits, Request((1, 2), 2)], method)] == [5, 2]
    with pytest.raises(ContextLimitError, match=f"{limit + 1}; the model's context is {limit}"):
        generator.prefill([Request((1,), 1), replace(fits, max_new_tokens=6)])


def test_malformed_requests_are_refused(decoder: Decoder) -> None:
    with pytest.raises(ConfigError, match="prompt is empty"):
        Request((), 4)
    with pytest.raises(ConfigError, match="max_new_tokens is -1"):
        Request((1,), -1)
    generator = Generator(decoder)
    with pytest.raises(ConfigError, match="no requests"):
        generator.prefill([])
    outside, compared = f"outside the vocabulary of {VOCAB}", [torch.tensor([[3, VOCAB]]), torch.tensor([[-1]])]
    refused = [
        ({"prompt_ids": (1, VOCAB)}, outside), ({"prompt_ids": (-1,)}, outside), ({"forced_ids": (VOCAB,)}, outside),
        ({"top_tokens": VOCAB + 1}, f"top_tokens is {VOCAB + 1}, not 0 to {VOCAB}"), ({"top_tokens": -1}, "s is -1"),
        *(({"compared_ids": ids}, f"compared_ids are {outside}") for ids in compared),
    ]  # fmt: skip
    for asked, words in refused:
        with pytest.raises(ConfigError, match=words):
            generator.prefill([replace(Request((1, 2), 0, (3,)), **asked)])


def test_graphs_are_refused_without_cuda(decoder: Decoder) -> None:
    with pytest.raises(ConfigError, match="CUDA only"):
        Generator(decoder, cuda_graph=True)


def test_running_out_of_device_memory_is_typed(
    decoder: Decoder, method: AttentionMethod, random_ids: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    generator = Generator(decoder)
    prompt = generator.prefill([Request(random_ids(4, VOCAB), 4)])
    monkeypatch.setattr(Decoder, "forward", full)
    with pytest.raises(DeviceMemoryError, match="batch 1 with 8 tokens"):
        generator.decode(prompt, method)
    with pytest.raises(DeviceMemoryError, match="CUDA out of memory"):
        generator.prefill([Request((1,), 1)])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(1.1, top_p=0.9), Sampling(1.0, min_p=0.05, penalty=1.2, penalty_window=9)]
)
@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_graph_replay_equals_eager(
    name: str, sampling: Sampling, tiny_checkpoint: Callable, random_ids: Callable, dense: Callable
) -> None:
    decoder = load_decoder(tiny_checkpoint(name), device="cuda", dtype=torch.float32)
    method = dense(decoder.config)
    requests = [replace(request, stop_ids=frozenset({3, 50})) for request in ragged(random_ids)]
    eager = Generator(decoder, sampling, cuda_graph=False)
    graph = Generator(decoder, sampling, cuda_graph=True)
    prompt = eager.prefill(requests)
    expected = results(eager.decode(prompt, method))
    assert results(graph.decode(prompt, method)) == expected
    assert results(graph.decode(prompt, method)) == expected, "a second capture starts from the prompt again"


def test_generate_reads_what_the_budget_allows() -> None:
    import longdecode

    model = Path(__file__).parents[2] / "models" / "miniature" / "weights"
    prompts = ["Once upon a time. " * 60, "Once upon"]
    knobs = {"method": "quest", "budget": 256, "max_new_tokens": 8, "device": "cpu"}
    long, short = longdecode.generate(model, prompts, **knobs)
    assert len(long.output_ids) == 8 and 200 < long.read_tokens_mean < 600 and short.read_tokens_mean < 40
    (split,) = longdecode.generate(model, prompts[:1], **knobs, gpus=2)
    assert (split.text, split.read_tokens_mean) == (long.text, pytest.approx(long.read_tokens_mean))
    for texts, budget, why in ((prompts[0], 256, "a list of texts is needed"), (prompts, "10%", "a whole number of")):
        with pytest.raises(ConfigError, match=why):
            longdecode.generate(model, texts, method="quest", budget=budget)
    with pytest.raises(AttributeError):
        longdecode.nothing  # noqa: B018
