"""Long generation: killed runs, exact and other variants, measures of texts by hand, the law of the printed rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import tokenizers
import torch
import yaml

from longdecode.analysis.measures import text_measures
from longdecode.engine.acceptance import accept
from longdecode.engine.endless import without_ends
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator, Request, Sampling
from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import DraftTree, PlacedTree
from longdecode.engine.weights import random_decoder
from longdecode.evals import exact_texts
from longdecode.evals.generation import job as jobs
from longdecode.evals.generation import texts
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.stats import Spread
from longdecode.evals.store import read_records
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.draft_heads import DraftHeads, write_heads
from longdecode.methods.registry import get_method

SMALL = replace(CONFIG, vocab_size=64, num_layers=3)
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


@pytest.mark.parametrize(("name", "look"), [(name, look) for name in WRITERS for look in (1, 16)])
def test_marks_have_totals(generator: Generator, name: str, look: int, random_ids: Callable, monkeypatch: Any) -> None:
    """Also where the last mark is one token after the one before, and a look passes both, or many."""
    request = Request(random_ids(90, 64), 64, seed=4)
    (want,) = generator.run([request], build(name))
    monkeypatch.setattr(Generator, "look_every", look)
    ids, measures = texts.write_text(generator, build(name), request)
    assert ids == want.output_ids and measures["decode_steps"] == want.decode_steps
    assert [at for at in range(80) if measures.get(f"at_{at}_tokens", 0) >= max(at, 1)] == [*range(7, 64, 7), 64]
    assert measures["at_64_steps"] == want.decode_steps and measures["tokens_per_step"] == 63 / want.decode_steps
    assert all(measures[f"at_64_{count}"] == value for count, value in want.draft_counts.items())


def test_texts_are_measured_as_by_hand() -> None:
    ids = [1, 2, 1, 2, 1, 2, 3]
    assert texts.distinct(ids, 1) == 3 / 7 and texts.distinct(ids, 2) == 3 / 6 and texts.distinct([1, 2], 4) == 0
    found = texts.diversity(ids * 300)
    assert found["distinct_2"] == 4 / 2099 and found["repeated_8"] == 1 - 7 / 2093
    assert texts.first_difference([1, 2, 3], [1, 2, 4]) == 2 and texts.first_difference((1, 2), [1, 2]) is None


def test_an_instruction_holds_a_story_and_no_text_ends(tmp_path: Path) -> None:
    """The chat and the story's beginning are the prompt; end tokens, added tokens and rows of no token are barred."""
    words = SimpleNamespace(chat_text=lambda text: f"<{text}>", encode=lambda text: tuple(map(ord, text)))
    ids = texts.instruction(words, range(1000, 1400), 300)  # type: ignore[arg-type]
    assert ids == (ord("<"), *map(ord, texts.INSTRUCTION), *range(1000, 1298 - len(texts.INSTRUCTION)), ord(">"))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    tokens = tokenizers.Tokenizer(tokenizers.models.BPE({chr(100 + number): number for number in range(60)}, []))
    tokens.add_tokens(["<file>"])
    tokens.save(str(tmp_path / "tokenizer.json"))
    endless = without_ends(random_decoder(SMALL, 3, "cpu", torch.float32), tmp_path)
    barred = (endless.logits(torch.ones(SMALL.hidden_size)) == 0).nonzero().flatten().tolist()
    assert barred == [3, 5, *range(60, 64)] and endless.weights.embedding[3].any()


@pytest.mark.parametrize(("rule", "paths"), [("faithful", 27), ("faithful", 47), ("faithful", 1), ("exact", 27)])
def test_the_engine_accepts_as_the_law_says(rule: Any, paths: int) -> None:
    """The share of draws that yield the draft is its probability and the bias: 0 for the exact rule and one path."""
    logits = 1.5 * torch.randn(24, 12, generator=torch.Generator().manual_seed(2))
    sampling, draws = Sampling(0.8, min_p=0.05), 300
    chance, drafts = sampling.processed(logits).double().softmax(1).max(1)
    tree = DraftTree.chain(1).with_chains(1, paths, 1) if paths > 1 else DraftTree.chain(1)
    shares = []
    for place, draft in enumerate(drafts.tolist()):
        requests = [Request((0,), tree.depth + 1, seed=place * draws + row) for row in range(draws)]
        nodes = torch.full((draws, tree.rows - 1), -1, dtype=torch.int64)
        nodes[:, 0] = draft
        sequences = Sequences(requests, sampling, torch.ones(draws, dtype=torch.bool))
        block = logits[place].expand(draws, tree.rows, -1)
        taken = accept(PlacedTree(tree, torch.device("cpu")), nodes, block, sequences, rule)
        shares.append((taken.chosen[:, 0] == draft).double().mean())
    bias = (1 - (1 - chance) ** paths - chance).mean() if rule == "faithful" else 0.0
    assert float(torch.stack(shares).mean() - chance.mean()) == pytest.approx(float(bias), abs=0.02)
    assert (float(bias) > 0.3) == (rule == "faithful" and paths > 1)


def config_with(config_values: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A configuration whose run writes with an exact variant, a drafted one and one of another law."""
    methods = {
        "full": {}, "streaming": {}, "drafted": {"method": "speculate", "params": {"drafter": "streaming"}},
        "swift": {"method": "tokenswift", "params": {"heads": "random:1", "ngrams": 4, "sinks": 8}},
    }  # fmt: skip
    samplers = {"greedy": {}, "drawn": {"temperature": 1.0, "min_p": 0.1, "penalty": 1.2, "penalty_window": 32}}
    run = {
        "model": "tiny", "prompts": [64], "tokens": 72, "samplers": ["greedy", "drawn"],
        "variants": ["swift", "streaming", "drafted"],
    }  # fmt: skip
    generation = {"samplers": samplers, "runs": {"short": run | changes}}
    return config_values | {"methods": methods, "budgets": [48], "generation": generation}


def test_a_killed_job_goes_on(config_values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the text it was killed at; it writes the same records."""
    monkeypatch.setattr(jobs.Gate, "refusal", lambda *_: None)
    run = build_run_config(config_with(config_values), "test")
    whole, cut = (tmp_path / name / "generation" / "short.parquet" for name in ("whole", "cut"))
    jobs.write_texts(run, "short", whole)
    records = read_records(whole, Record)
    seen = {(r.variant, r.task): r for r in records}
    assert len(records) == len(seen) == 8 and all(r.status == "ok" for r in records)
    for (variant, sampler), record in seen.items():
        exact = variant != "streaming"
        assert exact <= (record.measures.get("identical", 1) == 1)
        assert ("identical" in record.measures) == (variant != "full")
        assert (record.output_ids is None) == (record.measures.get("identical") == 1)
        steps = record.measures["decode_steps"]
        assert math.isclose(record.score or 0, 71 / steps) and (exact or steps == 71), (variant, sampler)
        assert record.measures["at_40_tokens"] >= 40
    assert seen["streaming", "drawn"].measures["same_tokens"] < 72
    # Untimed: the same text without its times, on a GPU that it shares.
    given = config_with(config_values, variants=["swift"], samplers=["drawn"], timed=False)
    monkeypatch.setattr(jobs, "lease_gpu", lambda device, alone: nullcontext(None if alone else device))
    jobs.write_texts(build_run_config(given, "test"), "short", tmp_path / "untimed.parquet")
    (untimed,) = read_records(tmp_path / "untimed.parquet", Record)
    kept = {name: value for name, value in seen["swift", "drawn"].measures.items() if not name.endswith("_ms")}
    assert untimed.measures == {name: kept[name] for name in kept.keys() - {"identical", "same_tokens"}}
    measures = {row["measure"] for row in text_measures([[untimed]], Spread(0.95, 100, 0))}
    assert "alpha" in measures and "minutes" not in measures
    monkeypatch.setattr(jobs, "lease_gpu", lambda device, alone: nullcontext(device if alone else None))
    written, write = list[int](), texts.write_text

    def killed(*given: Any) -> Any:
        written.append(1)
        if len(written) in (3, 7):
            raise KeyboardInterrupt
        return write(*given)

    monkeypatch.setattr(jobs.texts, "write_text", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            jobs.write_texts(run, "short", cut)
    jobs.write_texts(run, "short", cut)
    assert len(written) == 8 + 2
    told = [[(r.variant, r.task, r.output_ids, r.score) for r in read_records(path, Record)] for path in (cut, whole)]
    assert told[0] == told[1] and {path.name for path in cut.parent.iterdir()} <= {"short.parquet", "short.jsonl.lock"}


def test_lossless_is_lossless(config_values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that draft, each way to draw, alone and ragged; a variant that draws by another law is found out."""
    monkeypatch.setattr(exact_texts, "LENGTHS", (64, 50, 41))
    given = config_with(config_values, variants=["swift", "printed", "streaming", "drafted", "whole"])
    given["methods"] |= {
        "printed": {"method": "tokenswift", "params": {"heads": "random:1", "mode": "faithful"}},
        "whole": {"method": "medusa", "params": {"heads": str(tmp_path / "heads.json")}},
    }
    results = tmp_path / "results"
    results.mkdir()
    (results / "config.yaml").write_text(yaml.safe_dump(given))
    exact_texts.main(results, "short", 40, "cpu")
    table = pd.read_csv(results / exact_texts.NAME)
    assert set(table["variant"]) == {"swift", "drafted", "whole"}
    done = table[table["status"] == "ok"]
    assert len(table) == 12 and len(done) == 8 and (done["identical"] == done["batch"]).all()
    assert set(table[table["variant"] == "whole"]["status"]) == {"data_unavailable"}
    assert set(done["prompts"].astype(str)) == {"64", "64 50 41"}
    monkeypatch.setattr(exact_texts, "_is_exact", lambda method: method.draft is not None)
    given["generation"]["runs"]["short"]["variants"] = ["printed"]
    (results / "config.yaml").write_text(yaml.safe_dump(given))
    exact_texts.main(results, "short", 40, "cpu")
    again = pd.read_csv(results / exact_texts.NAME)
    row = again[again["variant"].eq("printed") & again["sampler"].eq("drawn") & again["batch"].eq(3)].squeeze()
    assert len(again) == 16 and row["identical"] < 3 and row["first_difference"] < 40
    with pytest.raises(SystemExit, match="generation: unknown run 'other'"):
        exact_texts.main(results, "other", 40, "cpu")


def test_refusals_have_reasons(config_values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that cannot be written is a status with its reason."""
    monkeypatch.setattr(jobs.Gate, "refusal", lambda *_: None)
    file, heads = tmp_path / "heads.json", DraftHeads("chained", 3, 32, 1e-5)
    heads.initialise("normal", 3, torch.ones(32))
    write_heads(file, heads, "other", "0" * 64, {})
    for number, (changes, budget, params, said) in enumerate((
        ({"tokens": 2000}, 48, {}, "the model's context is 1024"),
        ({}, 12, {}, "12"),
        ({}, 1.0, {"heads": str(file)}, "belongs to a checkpoint of hash 0000"),
        ({}, 1.0, {"sinks": 60}, "(60 sinks and two steps of 5 tokens), got 64"),  # as long as the prompt
        ({"samplers": ["drawn"], "prompts": [65, 64]}, 48, {}, "64 tokens are fewer than the penalty window of drawn"),
    )):  # fmt: skip
        given = config_with(config_values, **({"samplers": ["greedy"], "variants": ["swift"]} | changes))
        given["methods"]["swift"] = {**given["methods"]["swift"], "budgets": [budget]}
        given["methods"]["swift"]["params"] |= params
        given["generation"]["samplers"]["drawn"]["penalty_window"] = 65
        output = tmp_path / str(number) / "short.parquet"
        jobs.write_texts(build_run_config(given, "test"), "short", output)
        last = read_records(output, Record)[-1]
        assert last.status not in ("ok", "failed") and said in str(last.reason), last.reason
    for changes, said in (
        ({"prompts": [8]}, r"runs.short.prompts: is 8; .* greater than or equal to 64"),
        ({"variants": ["steaming"]}, "nearest valid name: 'streaming'"),
        ({"samplers": ["greed"]}, "nearest valid name: 'greedy'"),
    ):
        with pytest.raises(ConfigError, match=said):
            build_run_config(config_with(config_values, **changes), "test")
    wrong = config_with(config_values)
    wrong["generation"]["samplers"]["drawn"] = {"penalty": 0.5}
    with pytest.raises(ConfigError, match=r"generation.samplers.drawn: penalty is 0.5"):
        build_run_config(wrong, "test")
