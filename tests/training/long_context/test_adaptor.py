"""The adaptor's merge: what it adds, and what is refused; the adaptor that ships, and what its card says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from longdecode.engine.errors import CheckpointError
from longdecode.training.long_context.adaptor import SHIPPED, WEIGHTS, merge, read_adaptor
from longdecode.training.long_context.recipe import load_recipe


def state() -> dict[str, torch.Tensor]:
    return {"model.layers.0.mlp.up_proj.weight": torch.randn(6, 4), "model.norm.weight": torch.ones(4)}


def test_an_adaptor_is_merged_and_the_given_weights_stay() -> None:
    given, name = state(), "base_model.model.model.layers.0.mlp.up_proj"
    before = {key: tensor.clone() for key, tensor in given.items()}
    down, up, norm = torch.randn(2, 4), torch.randn(6, 2), torch.full((4,), 3.0)
    adaptor = {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up, "base_model.model.model.norm.weight": norm}
    merged = merge(given, adaptor, 2.0, "test")
    expected = before["model.layers.0.mlp.up_proj.weight"] + 2 * up @ down
    assert torch.allclose(merged["model.layers.0.mlp.up_proj.weight"], expected)
    assert torch.equal(merged["model.norm.weight"], norm) and all(torch.equal(given[key], before[key]) for key in given)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"layers.0.mlp.up_proj.lora_A": (2, 5), "layers.0.mlp.up_proj.lora_B": (6, 2)}, r"\[6, 5\].*\[6, 4\]"),
        ({"layers.0.mlp.up_proj.lora_A": (2, 4), "layers.0.mlp.up_proj.lora_B": (6, 3)}, "ranks"),
        ({"layers.0.mlp.up_proj.lora_A": (2, 4)}, "no counterpart"),
        ({"layers.9.mlp.up_proj.lora_A": (2, 4), "layers.9.mlp.up_proj.lora_B": (6, 2)}, "the model has no"),
        ({"norm": (5,)}, r"\[5\].*\[4\]"),
    ],
)
def test_an_adaptor_for_another_model_is_refused(tensors: dict[str, tuple[int, ...]], said: str) -> None:
    named = {f"base_model.model.model.{name}.weight": torch.zeros(shape) for name, shape in tensors.items()}
    with pytest.raises(CheckpointError, match=said):
        merge(state(), named, 1.0, "test")


def test_a_folder_without_an_adaptor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not an adaptor"):
        read_adaptor(tmp_path)


EVALUATION = json.loads((SHIPPED / "evaluation.json").read_text(encoding="utf-8"))


def test_it_is_small_and_made_by_the_recipe() -> None:
    tensors, scale, changes = read_adaptor(SHIPPED)
    recipe = load_recipe()
    assert (SHIPPED / WEIGHTS).stat().st_size <= 10_000_000 and scale == recipe.alpha / recipe.rank
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
