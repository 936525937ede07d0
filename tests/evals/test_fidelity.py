"""Fidelity: exact zeros for Full, agreement with a float64 computation over the whole vocabulary, and bad texts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError, DataUnavailableError, UnsupportedCellError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.engine.weights import random_decoder
from longdecode.evals.evaluate import compared_prompt, full_run
from longdecode.evals.tasks.base import Sample
from longdecode.evals.tasks.continuation import first_kept, kl_from_full, repeated
from longdecode.evals.tasks.registry import get_task
from longdecode.methods.registry import get_method
from longdecode.training.miniature import tokenizer as miniature_tokenizer


def byte_tokenizer() -> TextTokenizer:
    return TextTokenizer(miniature_tokenizer.byte_tokenizer())


PROSE = " ".join(f"word{i % 97} and{i % 13}" for i in range(900))


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    config = ModelConfig(
        family="llama", vocab_size=300, hidden_size=48, intermediate_size=64, num_layers=2, num_heads=3,
        num_kv_heads=1, head_dim=16, max_positions=4096, rope={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    return random_decoder(config, 0, "cpu", torch.float32)


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    for name in ("one", "two", "tiny"):
        (tmp_path / f"{name}.txt").write_text(PROSE if name != "tiny" else "too short")
    return tmp_path


def requests(count: int, top_tokens: int) -> list[Request]:
    def draw(tokens: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(300), k=tokens))

    rng = random.Random(0)
    return [Request(draw(200), 0, draw(40 - row), top_tokens=top_tokens) for row in range(count)]


def test_full_is_no_distance_from_itself(decoder: Decoder) -> None:
    generator = Generator(decoder)
    prompt = generator.prefill(requests(2, 64))
    full = full_run(generator, prompt)
    for ours, theirs in zip(full_run(generator, compared_prompt(prompt, full)), full, strict=True):
        score = get_task("fidelity_forced").compare(Sample(0, "", "", 0, None, "text"), ours, theirs)
        assert score.value == 0 and score.measures["top1"] == 1
        assert abs(score.measures["kl"]) < 1e-9 and len(score.parts) == 8


def test_divergence_bounds_that_of_the_whole_vocabulary(decoder: Decoder) -> None:
    """Against the log-softmax of all 300 tokens in float64, for a method that reads less."""
    generator = Generator(decoder)
    prompt = generator.prefill(requests(2, 64))
    everything = generator.prefill(requests(2, 300))
    method = get_method("streaming").from_budget(24, decoder.config)
    full, full_all = full_run(generator, prompt), full_run(generator, everything)
    ours = generator.decode(compared_prompt(prompt, full), method)
    ours_all = generator.decode(compared_prompt(everything, full_all), method)
    for row in range(2):
        log_p, log_q = full_all[row].top_logprobs.double(), ours_all[row].compared_logprobs.double()
        assert torch.allclose(log_q.exp().sum(dim=1), torch.ones(40 - row, dtype=torch.float64), atol=1e-5)
        whole = (log_p.exp() * (log_p - log_q)).sum(dim=1)
        coarse = kl_from_full(ours[row], full[row])
        assert (coarse <= whole + 1e-6).all() and (coarse > -1e-9).all() and coarse.mean() > 0.01
        assert coarse.mean() > 0.5 * whole.mean()
        top = ours_all[row].compared_logprobs.argmax(dim=1)
        assert torch.equal(first_kept(ours[row], full[row]), (top == 0).double())
        forced = torch.tensor(prompt.requests[row].forced_ids)
        place = (full_all[row].top_ids == forced[:, None]).nonzero()[:, 1]
        expected = log_q.gather(1, place[:, None])[:, 0]
        assert torch.allclose(torch.tensor(ours[row].forced_logprobs).double(), expected, atol=1e-5)


def test_names_for_every_forced_place_are_needed() -> None:
    with pytest.raises(ConfigError, match="2 places, 3 are forced"):
        Request((1,), 0, (1, 2, 3), compared_ids=torch.zeros(2, 4, dtype=torch.int64))


def test_free_running_counts_to_the_first_difference(decoder: Decoder) -> None:
    generator = Generator(decoder)
    prompt = generator.prefill([Request(tuple(range(200)), 32)])
    full = full_run(generator, prompt)
    (ours,) = generator.decode(compared_prompt(prompt, full), get_method("streaming").from_budget(24, decoder.config))
    sample = Sample(0, "", "", 32, None, "text")
    first = next(i for i, (a, b) in enumerate(zip(ours.output_ids, full[0].output_ids, strict=True)) if a != b)
    assert get_task("fidelity_free").compare(sample, ours, full[0]).value == first
    assert get_task("fidelity_free").compare(sample, full[0], full[0]).value == 32


def test_a_long_continuation_is_told_by_stretch(decoder: Decoder, prose: Path) -> None:
    """Loss and gap of each stretch against the log-probabilities themselves; the last of 16 takes what is left over."""
    generator = Generator(decoder)
    prompt = generator.prefill(requests(1, 64))
    (full,) = full_run(generator, prompt)
    (ours,) = generator.decode(compared_prompt(prompt, [full]), get_method("streaming").from_budget(24, decoder.config))
    task = get_task("pg19_long_forced_1024", {"prose": prose})
    score = task.compare(Sample(0, "", "", 0, None, "text"), ours, full)
    cuts = [(i * 2, i * 2 + 2) for i in range(15)] + [(30, 40)]
    for i, (start, end) in enumerate(cuts):
        mean = -sum(ours.forced_logprobs[start:end]) / (end - start)
        assert score.measures[f"loss_from_{64 * i}"] == pytest.approx(mean, abs=1e-5)
        gap = mean + sum(full.forced_logprobs[start:end]) / (end - start)
        assert score.parts[i] == pytest.approx(gap, abs=1e-5)
    assert score.measures["loss"] == pytest.approx(-sum(ours.forced_logprobs) / 40, abs=1e-5)
    assert len(score.parts) == 16 and "kl_from_960" in score.measures
    samples = task.samples(3000, 8, 0, byte_tokenizer())
    assert [(len(sample.prompt), len(sample.forced)) for sample in samples] == [(1976, 1024)] * 2


def test_free_running_tells_repetition(decoder: Decoder, prose: Path) -> None:
    assert repeated([1, 2, 3, 4] * 5) == 1 - 4 / 17 and repeated(range(9)) == 0 == repeated([1, 2])
    (made,) = get_task("pg19_long_free_1024", {"prose": prose}).samples(3000, 1, 0, byte_tokenizer())
    assert (len(made.prompt), made.forced, made.max_new_tokens) == (1976, "", 1024)
    prompt = Generator(decoder).prefill([Request(tuple(range(200)), 32)])
    (full,) = full_run(Generator(decoder), prompt)
    score = get_task("pg19_long_free_1024", {}).compare(made, full, full)
    found = (score.value, score.measures["repeated"], score.measures["repeated_full"])
    assert found == (32, *[repeated(full.output_ids)] * 2)


def test_windows_are_clustered_by_text_and_hold_the_context(prose: Path) -> None:
    assert len(get_task("fidelity_forced", {"prose": prose}).samples(1024, 8, 0, byte_tokenizer())) == 8
    free = get_task("fidelity_free", {"prose": prose}).samples(1024, 8, 0, byte_tokenizer())
    assert all(s.forced == "" and len(s.prompt) == 1024 - 128 for s in free)


def test_texts_that_cannot_be_used_are_refused(prose: Path, tmp_path: Path) -> None:
    for data, context, error, said in (
        ({"prose": prose}, 50_000, UnsupportedCellError, "no text has 50000 tokens"),
        ({"prose": prose}, 128, UnsupportedCellError, "continues by 128 of 128"),
        ({"prose": tmp_path / "absent.txt"}, 1024, DataUnavailableError, "absent.txt cannot be read.*set data.prose"),
        ({"pg19": tmp_path}, 1024, DataUnavailableError, "longdecode data fetch pg19.*data.pg19"),
    ):
        with pytest.raises(error, match=said):
            get_task("fidelity_forced", data).samples(context, 1, 0, byte_tokenizer())
