"""The adaptor that ships: its files, what its card says, and its evaluation."""

from __future__ import annotations

import json

import pytest

from longdecode.training.long_context.adaptor import SHIPPED, WEIGHTS, read_adaptor
from longdecode.training.long_context.recipe import load_recipe

EVALUATION = json.loads((SHIPPED / "evaluation.json").read_text(encoding="utf-8"))


def test_it_is_small_and_made_by_the_recipe() -> None:
    tensors, scale, changes = read_adaptor(SHIPPED)
    recipe = load_recipe()
    assert (SHIPPED / WEIGHTS).stat().st_size <= 10_000_000
    assert scale == recipe.alpha / recipe.rank
    assert changes == {"rope_theta": recipe.rope_theta, "max_position_embeddings": recipe.max_positions}
    assert sum(name.endswith("lora_A.weight") for name in tensors) == 30 * 7
    last = json.loads((SHIPPED / "training.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["step"] == recipe.total_steps


@pytest.mark.parametrize("row", EVALUATION["checks"], ids=lambda row: f"{row['task']}-{row['context']}")
def test_a_check_s_mean_is_its_scores_and_it_is_met(row: dict) -> None:
    mean = sum(row["scores"]) / len(row["scores"])
    assert len(row["scores"]) == row["samples"] and abs(mean - row["mean"]) < 1e-4
    assert row["target"] is None or mean >= row["target"]


def test_the_card_states_the_measured_losses() -> None:
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    losses = [f"{value:.3f}" for value in EVALUATION["loss"]["bins"].values()]
    places = [card.index(loss) for loss in losses]
    assert places == sorted(places)
