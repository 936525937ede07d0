"""Measures of overlapping selections and of corrected states, against sets in loops and against what must be exact."""

from __future__ import annotations

import pytest
import torch
import yaml
from torch import Tensor

from longdecode.engine.attention import Selection
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.evals.retrospection import measures
from longdecode.evals.retrospection.job import ALL_LAYERS, MINUS, measured
from longdecode.evals.retrospection.spec import RetrospectionSpec
from longdecode.evals.retrospection.trace import PageChoices, chosen_and_next, record
from longdecode.evals.run_config import build_run_config
from longdecode.methods.conformance_bench import make_inputs
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.registry import get_method

BATCH, HEADS, PAGES, STEPS, LAYERS = 2, 3, 12, 9, 2


@pytest.fixture
def rng(seed: int) -> torch.Generator:
    """A generator of random inputs."""
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def choices(rng: torch.Generator) -> PageChoices:
    """Random selections whose rows grow by a page now and then."""
    steps = torch.arange(STEPS)
    used = torch.stack((6 + steps // 2, 8 + steps // 3), dim=1)
    known = (torch.arange(PAGES) < used[..., None])[:, None, :, None]
    draws = torch.rand(2, STEPS, LAYERS, BATCH, HEADS, PAGES, generator=rng) < 0.45
    draws[0, ..., 0] = True
    return PageChoices(draws[0] & known, draws[1] & known & ~draws[0], used)


def pages(mask: Tensor, row: int, head: int) -> set[int]:
    return set(mask[row, head].nonzero()[:, 0].tolist())


def test_overlaps_and_effective_budgets_are_those_of_sets(choices: PageChoices) -> None:
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
            got = [float(part[row]) for part in measures.overlap(choices, lag)]
            assert got == pytest.approx([sum(column) / len(shares) for column in zip(*shares, strict=True)])
            assert float(measures.effective_budget(choices, lag)[row]) == pytest.approx(sum(unions) / len(unions))


def test_the_next_ranks_are_as_many_as_the_list_and_none_of_it(rng: torch.Generator) -> None:
    scores = torch.randn(1, 1, 10, generator=rng)
    scores[..., 8:] = float("-inf")  # not in use
    listed = torch.tensor([[[2, 5, 7, 0]]])  # the last entry is past the count
    top, following = chosen_and_next(Selection(listed, torch.tensor([[3]]), 16), scores)
    others = sorted(set(range(8)) - {2, 5, 7}, key=lambda page: -float(scores[0, 0, page]))
    assert pages(top, 0, 0) == {2, 5, 7} and pages(following, 0, 0) == set(others[:3])


def test_states_lie_where_they_must(seed: int) -> None:
    """Full at no distance from itself, Quest exact below its first sparse output, a window of one where Quest is."""
    inputs = make_inputs(torch.device("cpu"), torch.float64, seed, 64, 8)
    prompt = Generator(inputs.decoder).prefill(inputs.requests())
    built = {
        label: get_method(name).from_budget(budget, CONFIG, **params)
        for label, name, budget, params in (
            ("quest", "quest", 64, {}),
            ("one", "retro", 64, {"window": 1}),
            ("three", "retro", 64, {"window": 3}),
            ("whole", "retro", 512, {"window": 3}),
        )
    }
    spec = RetrospectionSpec(("m",), tuple(built), (256,), (), steps=7, lags=2)
    rows = {
        (label, measure, layer, index): values
        for label, measure, layer, index, values in measured(spec, inputs.decoder, prompt, inputs.fed, built)
    }
    for layer in range(CONFIG.num_layers):
        at = (layer, 0)
        assert float(rows[("whole", "output_final_error", *at)].max()) < 1e-5
        assert float(rows[("one", "output_error" + MINUS, *at)].abs().max()) < 1e-6
        keys = rows[("quest", "key_error", *at)]
        assert bool((keys < 1e-5).all()) if layer < 3 else float(keys.max()) > 1e-3
        moved = rows[("three", "key_error" + MINUS, *at)].abs().max()
        assert float(moved) < 1e-5 if layer < 3 else float(moved) > 1e-5
    # What a past row kept before its correction is what it put out in its own step.
    assert float((rows["three", "output_final_error", 3, 0] - rows["three", "output_error", 3, 0]).abs().max()) > 1e-4
    assert rows["one", "loss_gap", ALL_LAYERS, 7].equal(rows["quest", "loss_gap", ALL_LAYERS, 7])
    with pytest.raises(ConfigError, match="label of method 'quest'"):
        next(measured(spec, inputs.decoder, prompt, inputs.fed, {"one": built["one"]}))
    with pytest.raises(ConfigError, match="dropped token"):
        record(inputs.decoder, prompt, get_method("streaming").from_budget(64, CONFIG), inputs.fed)


def test_a_model_may_have_a_task_of_its_own() -> None:
    values = yaml.safe_load((REPOSITORY / "config" / "retro.yaml").read_text("utf-8"))
    spec = build_run_config(values, "retro", check_params=False).retrospection
    assert spec is not None
    assert [spec.task_of(model) for model in spec.models] == ["mini_longgen_45", "pg19_long_forced_1024"]
    values["retrospection"]["tasks"] = {"smollm2": "fidelity_forced"}
    with pytest.raises(ConfigError, match=r"retrospection\.tasks.*smollm2"):
        build_run_config(values, "retro", check_params=False)
