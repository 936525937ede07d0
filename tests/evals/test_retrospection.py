"""Measures of overlapping selections and of corrected states, against sets in loops and against what must be exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from longdecode.engine.attention import Selection
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator
from longdecode.evals import retrospection
from longdecode.evals import retrospection as traces
from longdecode.evals.run_config import build_run_config
from longdecode.methods.conformance_bench import make_inputs
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.registry import get_method

SPARSE = {"params": {"dense_layers": 1}}
BATCH, HEADS, PAGES, STEPS, LAYERS = 2, 3, 12, 9, 2


@pytest.fixture
def choices(rng: torch.Generator) -> retrospection.PageChoices:
    """Random selections whose rows grow by a page now and then."""
    steps = torch.arange(STEPS)
    used = torch.stack((6 + steps // 2, 8 + steps // 3), dim=1)
    known = (torch.arange(PAGES) < used[..., None])[:, None, :, None]
    draws = torch.rand(2, STEPS, LAYERS, BATCH, HEADS, PAGES, generator=rng) < 0.45
    draws[0, ..., 0] = True
    return retrospection.PageChoices(draws[0] & known, draws[1] & known & ~draws[0], used)


def pages(mask: Tensor, row: int, head: int) -> set[int]:
    return set(mask[row, head].nonzero()[:, 0].tolist())


def test_overlaps_and_effective_budgets_are_those_of_sets(choices: retrospection.PageChoices) -> None:
    for row in range(BATCH):
        for lag in (1, 4):
            shares, unions = [], []
            for step in range(STEPS - lag):
                existing = set(range(int(choices.used[step][row])))
                for layer in range(LAYERS):
                    for head in range(HEADS):
                        own = pages(choices.top[step][layer], row, head)
                        later = pages(choices.top[step + lag][layer], row, head) & existing
                        following = pages(choices.following[step][layer], row, head)
                        shares.append((len(later & own) / len(later), len(later & following) / len(later)))
                        loaded = [pages(choices.top[step + n][layer], row, head) & existing for n in range(lag + 1)]
                        unions.append(len(set().union(*loaded)) / len(own))
            got = [float(part[row]) for part in traces.overlap(choices, lag)]
            assert got == pytest.approx([sum(column) / len(shares) for column in zip(*shares, strict=True)])
            assert float(traces.effective_budget(choices, lag)[row]) == pytest.approx(sum(unions) / len(unions))


def test_the_next_ranks_are_as_many_as_the_list_and_none_of_it(rng: torch.Generator) -> None:
    scores = torch.randn(1, 1, 10, generator=rng)
    scores[..., 8:] = float("-inf")  # not in use
    listed = torch.tensor([[[2, 5, 7, 0]]])  # the last entry is past the count
    top, following = retrospection.chosen_and_next(Selection(listed, torch.tensor([[3]]), 16), scores)
    others = sorted(set(range(8)) - {2, 5, 7}, key=lambda page: -float(scores[0, 0, page]))
    assert pages(top, 0, 0) == {2, 5, 7} and pages(following, 0, 0) == set(others[:3])


def test_states_lie_where_they_must(seed: int) -> None:
    """Full at no distance from itself, Quest exact below its first sparse output, a window of one where Quest is."""
    inputs = make_inputs(torch.device("cpu"), torch.float64, seed, 64, 8)
    prompt = Generator(inputs.decoder).prefill(inputs.requests())
    built = {"quest": get_method("quest").from_budget(64, CONFIG)}
    for label, budget, window in (("one", 64, 1), ("three", 64, 3), ("whole", 512, 3)):
        built[label] = get_method("retro").from_budget(budget, CONFIG, window=window)
    found = retrospection.measured(inputs.decoder, prompt, inputs.fed, built)
    rows = {tuple(place): values for *place, values in found}
    for layer in range(CONFIG.num_layers):
        at = (layer, 0)
        assert float(rows[("whole", "output_final_error", *at)].max()) < 1e-5
        assert float(rows[("one", "output_error" + retrospection.MINUS, *at)].abs().max()) < 1e-6
        keys = rows[("quest", "key_error", *at)]
        assert bool((keys < 1e-5).all()) if layer < 3 else float(keys.max()) > 1e-3
        moved = rows[("three", "key_error" + retrospection.MINUS, *at)].abs().max()
        assert float(moved) < 1e-5 if layer < 3 else float(moved) > 1e-5
    # What a past row kept before its correction is what it put out in its own step.
    assert float((rows["three", "output_final_error", 3, 0] - rows["three", "output_error", 3, 0]).abs().max()) > 1e-4
    gap = ("loss_gap", retrospection.ALL_LAYERS, 7)
    assert rows["one", *gap].equal(rows["quest", *gap])
    with pytest.raises(ConfigError, match="one of method 'quest'"):
        next(retrospection.measured(inputs.decoder, prompt, inputs.fed, {"one": built["one"]}))
    with pytest.raises(ConfigError, match="dropped token"):
        retrospection.record(inputs.decoder, prompt, get_method("streaming").from_budget(64, CONFIG), inputs.fed)


def test_the_table_has_a_row_a_measure_and_models_their_tasks(config_values: dict[str, Any], tmp_path: Path) -> None:
    spec = {"models": {"tiny": "mini_book_loss"}, "variants": ["quest", "retro"], "contexts": [512], "steps": 5}
    values = config_values | {"methods": {"full": {}, "quest": SPARSE, "retro": SPARSE}, "budgets": [64, 0.25]}
    run = build_run_config(values | {"retrospection": spec}, "c")
    retrospection.measure_retrospection(run, "tiny", tmp_path / "tiny.parquet")
    table = pd.read_parquet(tmp_path / "tiny.parquet")
    assert list(table.columns) == list(retrospection.COLUMNS) and set(table["budget"]) == {"64", "0.25"}
    assert set(table["n"]) == {retrospection.SAMPLES} and (table["low"] <= table["value"] + 1e-6).all()
    lags = table[(table["measure"] == "effective_budget") & (table["budget"] == "64")]
    assert list(lags["index"]) == [1, 2, 3, 4] and (lags["value"] >= 1).all()
    assert set(table[table["measure"].str.endswith(retrospection.MINUS)]["variant"]) == {"retro"}
    for wrong, said in (
        ({"models": {"small": "fidelity_forced"}}, r"retrospection\.models.*small"),
        ({"models": {"tiny": "mini_bok_loss"}}, "mini_book_loss"),
        ({"variants": ["quests"]}, "nearest valid name: 'quest'"),
    ):
        with pytest.raises(ConfigError, match=said):
            build_run_config(values | {"retrospection": spec | wrong}, "c")
