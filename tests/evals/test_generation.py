"""Long generation: killed runs, exact and other labels, measures of texts by hand, the law of the printed rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator, Request, Sampling
from longdecode.engine.sampling import gumbel_noise
from longdecode.engine.weights import random_decoder
from longdecode.evals import exact_texts
from longdecode.evals.generation import job as jobs
from longdecode.evals.generation.law import law_measures, steps_of
from longdecode.evals.generation.measures import distinct, diversity, loss_by_full
from longdecode.evals.generation.run import LongRun, first_difference
from longdecode.evals.records import Record
from longdecode.evals.replay import Replay, distances
from longdecode.evals.run_config import build_run_config
from longdecode.evals.store import read_records
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.draft_heads import DraftHeads, write_heads
from longdecode.methods.registry import get_method

SMALL = replace(CONFIG, vocab_size=64)
WRITERS: dict[str, tuple[int | None, dict[str, Any]]] = {
    "tokenswift": (40, {"heads": "random:1", "ngrams": 4}),
    "speculate": (40, {"drafter": "h2o"}),
    "retro": (40, {}),
}


@pytest.fixture(scope="module")
def generator() -> Generator:
    """A random model that draws with a penalty."""
    return Generator(random_decoder(SMALL, 3, "cpu", torch.float32), Sampling(0.9, min_p=0.02, penalty=1.2))


def build(name: str) -> Any:
    budget, params = WRITERS[name]
    return get_method(name).from_budget(budget, SMALL, **params)


@pytest.mark.parametrize("name", WRITERS)
def test_a_killed_text_goes_on_at_its_last_mark(
    generator: Generator, name: str, tmp_path: Path, random_ids: Callable
) -> None:
    """Caches that drop tokens and rewritten ones cannot be computed again from the text: the state itself is kept."""
    request = Request(random_ids(90, 64), 70, seed=4)
    (want,) = generator.run([request], build(name))
    looks = []
    for _ in range(9):
        for saved in LongRun(generator, build(name), tmp_path / "state", "a").write(request, 24):
            looks.append(saved.marks[-1])
            break  # killed
    assert saved.ids == want.output_ids
    assert [mark.past for mark in looks] == [24, 48, 70] and looks[-1].steps == want.decode_steps
    assert list(LongRun(generator, build(name), tmp_path / "state", "a").write(request, 24)) == []
    again = next(LongRun(generator, build(name), tmp_path / "state", "other").write(request, 24))
    assert len(again.marks) == 1


def test_texts_are_measured_as_by_hand() -> None:
    ids = [1, 2, 1, 2, 1, 2, 3]
    assert distinct(ids, 1) == 3 / 7 and distinct(ids, 2) == 3 / 6 and distinct([1, 2], 4) == 0
    found = diversity(ids * 300, "to be or not\nto be to be\n\nso")
    assert found["distinct_2"] == 4 / 2099
    assert found["distinct_1_line"] == (1 + 2 / 4 + 1) / 3 and found["distinct_3_line"] == (1 + 1 + 0) / 3
    windows = [(ids * 300)[start : start + 1024] for start in (0, 1024)]
    assert (
        found["distinct_4_window"] == sum(len({tuple(w[i : i + 4]) for i in range(1021)}) / 1021 for w in windows) / 2
    )
    assert found["repeated_8"] == 1 - 7 / 2093
    assert first_difference([1, 2, 3], [1, 2, 4]) == 2 and first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference((1, 2), [1, 2]) is None


def test_the_loss_of_a_text_is_that_of_forcing_it(generator: Generator, random_ids: Callable) -> None:
    prompt, text = random_ids(50, 64), random_ids(23, 64)
    (forced,) = generator.run([Request(prompt, 0, text)], get_method("full").from_budget(None, SMALL))
    assert math.isclose(loss_by_full(generator.decoder, prompt, text), -sum(forced.forced_logprobs) / 23, rel_tol=1e-5)


def test_the_law_is_taken_where_the_text_goes(generator: Generator, random_ids: Callable) -> None:
    """Each law noted is that of a place of plain decoding's text, and each step is further on than the one before."""
    request = Request(random_ids(90, 64), 60, seed=1)
    laws, drafts = steps_of(generator, build("tokenswift"), request, 12)
    (plain,) = generator.run([request], get_method("full").from_budget(None, SMALL))
    text = (*request.prompt_ids, *plain.output_ids)
    places = [90]
    for law in laws:
        for at in range(places[-1] + 1, len(text)):
            prompt = generator.prefill([Request(text[:at], 1)])
            there = generator.sampling.processed(prompt.logits, torch.tensor([text[:at]]))
            if torch.allclose(there.softmax(1), law[None].softmax(1), atol=1e-4):
                places.append(at)
                break
    del places[0]
    assert len(places) == len(drafts) == 12 and places[0] == 91
    assert 0 < sum(text[at] == draft for at, draft in zip(places, drafts.tolist(), strict=True)) < 12
    found = law_measures(laws, drafts, 3, 0.95)
    chance = laws.double().softmax(1).gather(1, drafts[:, None])
    assert math.isclose(found["tv_27"], float((1 - (1 - chance) ** 27 - chance).mean()), rel_tol=1e-6)
    assert abs(found["tv_27_drawn"] - found["tv_27"]) < 0.1 and abs(found["tv_exact_drawn"]) < 0.1


def test_a_replay_says_by_how_much_logits_must_be_off() -> None:
    """0 for what the sampling chooses; a token is chosen once all logits favour it by its distance, and not before."""
    rows, vocab = 60, 12
    logits = 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(5))
    history = torch.randint(vocab, (rows, 4), generator=torch.Generator().manual_seed(6))
    seeds, at = torch.full((rows,), 3), torch.arange(rows)
    for sampling in (Sampling(), Sampling(0.7, penalty=1.3), Sampling(1.0, min_p=0.1, penalty=1.3)):
        noise = gumbel_noise(seeds, at, vocab) if sampling.temperature else None
        chosen = sampling.choose(logits, seeds, at, history)
        every = [distances(logits, torch.full_like(at, v), sampling, noise, history) for v in range(vocab)]
        found = torch.stack(every, 1)
        assert torch.equal(found == 0, torch.nn.functional.one_hot(chosen, vocab).bool())
        if sampling.min_p or sampling.penalty > 1:
            continue
        for factor, wins in ((1.001, True), (0.999, False)):
            moved = logits[:, None] + torch.diag_embed(found.float() * factor + (1e-5 if wins else -1e-5))
            assert torch.equal(moved.argmax(2) == torch.arange(vocab), (found == 0) | wins)
    laws, shift = torch.tensor([[0.0, -2.0, -2.5, -4.0]]), torch.tensor([[0.0, 2.3, 2.5, 0.0]]).double()
    lifted = torch.tensor([[0.0, 2.3, 3.0, 0.0]]).double()  # beats all, but stands under min-p's floor
    for wanted, noise, want in (
        (0, shift, 0.3), (1, shift, 0.0), (2, shift, 0.3), (3, shift, math.log(10)), (2, lifted, 2.5 - math.log(10)),
    ):  # fmt: skip
        seen = distances(laws, torch.tensor([wanted]), Sampling(1.0, min_p=0.1), noise, None)
        assert math.isclose(float(seen), want, abs_tol=1e-6), wanted
    with pytest.raises(ConfigError, match="top-p and eta"):
        distances(laws, torch.tensor([0]), Sampling(1.0, top_p=0.9), shift, None)


def generation(**changes: Any) -> dict[str, Any]:
    run = {
        "model": "tiny", "prompts": [64], "tokens": 72, "samplers": ["greedy", "drawn"],
        "labels": ["swift", "streaming"],
        "drafters": ["streaming"], "draft_tokens": [2, 3], "source": "narrative", "budgets": [48], "mark": 32,
        "law_positions": 10,
    }  # fmt: skip
    samplers = {"greedy": {}, "drawn": {"temperature": 1.0, "min_p": 0.1, "penalty": 1.2, "penalty_window": 32}}
    return {"samplers": samplers, "runs": {"short": run | changes}}


def config_with(config_values: dict[str, Any], **changes: Any) -> dict[str, Any]:
    swift = {"method": "tokenswift", "params": {"heads": "random:1", "ngrams": 4, "sinks": 8}}
    methods = {"full": {}, "streaming": {}, "swift": swift}
    return config_values | {"methods": methods, "generation": generation(**changes)}


def test_a_job_killed_between_and_inside_texts_writes_the_same_records(
    config_values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.Gate, "refusal", lambda *_: None)
    run = build_run_config(config_with(config_values), "test")
    whole, cut = (tmp_path / name / "generation" / "short.parquet" for name in ("whole", "cut"))
    jobs.write_texts(run, "short", whole)
    records = read_records(whole, Record)
    seen = {(r.variant, r.task): r for r in records}
    assert len(records) == len(seen) == 10 and all(r.status == "ok" for r in records)
    for (label, sampler), record in seen.items():
        exact = label in ("full", "swift") or "+" in label
        assert exact <= (record.measures["identical"] == 1) if label != "full" else "identical" not in record.measures
        assert (record.output_ids is None) == (record.measures.get("identical") == 1)
        assert record.measures["at_32_tokens"] >= 32 and record.measures["at_72_tokens"] == 72
        steps = record.measures["decode_steps"]
        assert math.isclose(record.score or 0, 71 / steps) and (exact or steps == 71), (label, sampler)
    assert seen["streaming", "drawn"].measures["identical"] == 0
    replayed = {(row["label"], row["sampler"]): row for row in Replay(run, "short").rows(records, 50)}
    assert set(replayed) == set(seen)
    for how in ("greedy", "drawn"):
        assert all(
            replayed[name, how]["drawn"] == 50 and not replayed[name, how]["largest"] for name in ("full", "swift")
        )
    assert replayed["streaming", "drawn"]["drawn"] < 50 and replayed["streaming", "drawn"]["beyond_0.125"] > 0
    kept = [r.model_copy(update={"output_ids": None}) if r.variant == "full" else r for r in records]
    again = {(row["label"], row["sampler"]) for row in Replay(run, "short").rows(kept, 50)}
    assert again == {(r.variant, r.task) for r in kept if r.output_ids} and again >= {("streaming", "drawn")}
    assert 0 <= seen["swift", "drawn"].measures["tv_27_low"] <= seen["swift", "drawn"].measures["tv_47"]

    advance, calls = LongRun._advance, []

    def killed(self: LongRun, *given: Any) -> None:
        calls.append(1)
        if len(calls) in (5, 9):
            raise KeyboardInterrupt
        advance(self, *given)

    monkeypatch.setattr(LongRun, "_advance", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            jobs.write_texts(run, "short", cut)
    jobs.write_texts(run, "short", cut)
    resumed = {(r.variant, r.task): r for r in read_records(cut, Record)}
    assert {key: (r.output_ids, r.score) for key, r in resumed.items()} == {
        key: (r.output_ids, r.score) for key, r in seen.items()
    }
    assert sorted(path.name for path in cut.parent.iterdir()) in (
        ["short.parquet"],
        ["short.jsonl.lock", "short.parquet"],
    )


def test_every_lossless_writer_is_held_against_plain_decoding_in_float32(
    config_values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that draft, each way to draw, alone and ragged; a writer that draws by another law is found out."""
    monkeypatch.setattr(exact_texts, "LENGTHS", (64, 50, 41))
    given = config_with(config_values, labels=["swift", "printed", "streaming", "whole"])
    given["methods"] |= {
        "printed": {"method": "tokenswift", "params": {"heads": "random:1", "mode": "faithful"}},
        "whole": {"method": "medusa", "params": {"heads": str(tmp_path / "heads.json")}},
    }
    results = tmp_path / "results"
    results.mkdir()
    (results / "config.yaml").write_text(yaml.safe_dump(given))
    ask = [str(results), "--model", "tiny", "--tokens", "40", "--device", "cpu", "--samplers"]
    assert exact_texts.main([*ask, "greedy", "drawn"]) == 0
    table = pd.read_csv(results / exact_texts.NAME)
    assert set(table["label"]) == {"swift", "streaming+2", "streaming+3", "whole"}
    done = table[table["status"] == "ok"]
    assert len(table) == 16 and len(done) == 12 and (done["identical"] == done["batch"]).all()
    assert set(table[table["label"] == "whole"]["status"]) == {"data_unavailable"}
    assert (done["tokens_per_step"] > 1).any() and set(done["prompts"]) == {"64", "64 50 41"}
    given["methods"]["swift"]["params"]["mode"] = "released"
    monkeypatch.setattr(exact_texts, "_LOSSLESS", "released")
    (results / "config.yaml").write_text(yaml.safe_dump(given))
    assert exact_texts.main([*ask, "drawn", "--batches", "3"]) == 0
    again = pd.read_csv(results / exact_texts.NAME)
    (row,) = again[again["label"].eq("swift") & again["sampler"].eq("drawn") & again["batch"].eq(3)].to_dict("records")
    assert len(again) == 16 and row["identical"] < 3 and row["first_difference"] < 40 and row["nats"] > 0
    some = [*ask, "drawn", "--batches", "1", "--output", str(tmp_path / "some.csv"), "--labels"]
    assert exact_texts.main([*some, "streaming+3"]) == 0 and exact_texts.main([*some, "streaming+9"]) == 1
    assert list(pd.read_csv(tmp_path / "some.csv")["label"]) == ["streaming+3"]
    assert exact_texts.main([*ask, "other"]) == 1 and exact_texts.main([str(results), "--model", "none"]) == 1


def test_what_cannot_be_written_is_a_status_with_its_reason(
    config_values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.Gate, "refusal", lambda *_: None)
    for changes, said in (
        ({"tokens": 2000}, "the model's context is 1024"),
        ({"source": "pg19"}, "data.pg19 names nothing"),
        ({"budgets": [12]}, "12"),
    ):
        given = config_with(config_values, samplers=["greedy"], drafters=[], labels=["swift"], **changes)
        output = tmp_path / str(len(said)) / "short.parquet"
        jobs.write_texts(build_run_config(given, "test"), "short", output)
        last = read_records(output, Record)[-1]
        assert last.status in ("unsupported", "data_unavailable") and said in str(last.reason)
    file, heads = tmp_path / "heads.json", DraftHeads("chained", 3, 32, 1e-5)
    heads.initialise("normal", 3, torch.ones(32))
    write_heads(file, heads, "other", "0" * 64, {})
    for params, said in (
        ({"heads": str(file)}, "belongs to a checkpoint of hash 0000"),
        ({"sinks": 60}, "(60 sinks and two steps of 5 tokens), got 64"),  # as long a partial cache as the prompt
    ):
        given = config_with(config_values, samplers=["greedy"], drafters=[], labels=["swift"], budgets=[1.0])
        given["methods"]["swift"]["params"] |= params
        output = tmp_path / next(iter(params)) / "short.parquet"
        jobs.write_texts(build_run_config(given, "test"), "short", output)
        last = read_records(output, Record)[-1]
        assert last.status not in ("ok", "failed") and said in str(last.reason), last.reason
    with pytest.raises(ConfigError, match=r"runs.short.prompts: is 8; .* greater than or equal to 64"):
        build_run_config(config_with(config_values, prompts=[8]), "test")
    with pytest.raises(ConfigError, match=r"runs.short.prompts: 64 tokens are fewer than the penalty window of .*1024"):
        wrong = config_with(config_values)
        wrong["generation"]["samplers"]["drawn"].pop("penalty_window")
        build_run_config(wrong, "test")
    with pytest.raises(ConfigError, match="nearest valid name: 'streaming'"):
        build_run_config(config_with(config_values, drafters=["steaming"]), "test")
