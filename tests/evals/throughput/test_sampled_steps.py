"""Steps under a sampler: what is drawn, what a reset brings back, the table, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.sampling import Sampling
from longdecode.engine.weights import random_decoder
from longdecode.evals import sampled_steps
from longdecode.evals.sampled_steps import whole_step
from longdecode.evals.throughput.step_block import fill_cache
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.registry import get_method

SWIFT = {"heads": "random:1", "ngrams": 4}


@pytest.mark.parametrize(("name", "params"), [("full", {}), ("tokenswift", SWIFT)])
def test_a_step_draws_by_its_sampler_and_a_reset_brings_back_its_counters(name: str, params: dict[str, Any]) -> None:
    decoder = random_decoder(CONFIG, 3, "cpu", torch.float32)
    cache = decoder.new_cache(1, 200)
    fill_cache(cache, 199, 0)
    drawn = []
    for sampling in (Sampling(), Sampling(1.0, min_p=0.01, penalty=1.2, penalty_window=64)):
        method = get_method(name).from_budget(None if name == "full" else 64, CONFIG, **params)
        rows = method.draft.tree.rows if method.draft else 1
        block = whole_step(decoder, cache, method, 200, sampling)
        sequences = block.keep[0].sequences
        start = int(sequences.counts[0])
        block.reset()
        block.run()
        drawn.append(sequences.chosen[0, start : int(sequences.counts[0])].tolist())
        assert 1 <= len(drawn[-1]) <= rows and int(cache.lengths[0]) > 200 - rows
        block.reset()
        assert int(sequences.counts[0]) == start and int(cache.lengths[0]) == 200 - rows
    assert drawn[0] != drawn[1], "the same noise as greedy decoding: none"
    with pytest.raises(ConfigError, match="1 rows are verified; the context has 1 tokens"):
        whole_step(decoder, cache, get_method("full").from_budget(None, CONFIG), 1, Sampling())
    with pytest.raises(UnsupportedCellError, match="streaming decodes in a cache of its own"):
        whole_step(decoder, cache, get_method("streaming").from_budget(64, CONFIG), 200, Sampling())


def test_the_table_has_a_row_a_context_and_label(config_values: dict[str, Any], tmp_path: Path) -> None:
    given = config_values | {"generation": {"samplers": {"drawn": {"temperature": 1.0, "penalty": 1.2}}, "runs": {}}}
    given["methods"] = {"full": {}, "swift": {"method": "tokenswift", "suites": [], "params": SWIFT}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(given))
    ask = [str(tmp_path), "--model", "tiny", "--contexts", "150", "180", "--budget", "64", "--rounds", "2"]
    ask += ["--device", "cpu", "--sampler"]
    assert sampled_steps.main([*ask, "drawn", "--labels", "full", "swift"]) == 0
    table = pd.read_csv(tmp_path / sampled_steps.NAME)
    assert list(zip(table["context"], table["label"], strict=True)) == [
        (150, "full"), (150, "swift"), (180, "full"), (180, "swift"),
    ]  # fmt: skip
    assert list(table["rows"] == 1) == [True, False] * 2 and (table["n"] + table["disturbed"] == 2).all()
    assert (table[["sampled_us", "greedy_us"]] > 0).all(axis=None)
    assert ((table["low"] <= table["ratio"]) & (table["ratio"] <= table["high"])).all()
    assert sampled_steps.main([*ask, "other", "--labels", "full"]) == 1
    assert sampled_steps.main([*ask, "drawn", "--labels", "none"]) == 1
