"""The adaptor's training: it learns, it resumes exactly, and what it writes merges into the same model."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from longdecode.engine.tokenizer import load_tokenizer
from longdecode.training import loop
from longdecode.training.long_context.adaptor import merge, read_adaptor
from longdecode.training.long_context.documents import Library, Weights
from longdecode.training.long_context.recipe import Recipe, load_recipe
from longdecode.training.long_context.train import document_loss, lengthened_model, train


@pytest.fixture(scope="module", autouse=True)
def _peft() -> None:
    """Import peft, which takes seconds, in the worker that needs it and not when tests are collected."""
    pytest.importorskip("peft", reason="peft trains the adaptor")


CPU = torch.device("cpu")
BOOK = "It was a bright cold morning in the valley, and every clock along the river struck eleven. " * 40


@pytest.fixture
def library(tiny_model: Path) -> Library:
    ids = np.frombuffer(BOOK.encode(), dtype=np.uint8).astype(np.int64)
    return Library({"1": ids}, load_tokenizer(tiny_model), Weights(0.3, 4.0))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return read_adaptor(folder)[0]


def test_a_killed_run_ends_with_the_same_weights(
    tiny_model: Path, short_recipe: Recipe, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tensors(train(short_recipe, tiny_model, library, tmp_path / "whole", CPU))
    calls, original = 0, library.document

    def killed(rng: random.Random, length: int, lookups: float) -> tuple[np.ndarray, np.ndarray]:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise KeyboardInterrupt
        return original(rng, length, lookups)

    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(Library, "document", lambda self, *arguments: killed(*arguments))
    with pytest.raises(KeyboardInterrupt):
        train(short_recipe, tiny_model, library, tmp_path / "killed", CPU)
    monkeypatch.undo()
    assert not (tmp_path / "killed" / "adaptor").exists()
    resumed = tensors(train(short_recipe, tiny_model, library, tmp_path / "killed", CPU))
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert [json.loads(line)["step"] for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()] == [3, 6]


def test_merged_weights_are_the_model(tiny_model: Path, short_recipe: Recipe, library: Library, tmp_path: Path) -> None:
    """Merged by hand from the bfloat16 file, against peft's own forward with the same factors."""
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = train(short_recipe, tiny_model, library, tmp_path, CPU)
    adaptor, scale, changes = read_adaptor(folder)
    assert changes == {"rope_theta": 1e5, "max_position_embeddings": 2048}
    assert any("layernorm" in name for name in adaptor) and "base_model.model.model.norm.weight" in adaptor

    config = AutoConfig.from_pretrained(tiny_model)
    config.rope_parameters["rope_theta"] = changes["rope_theta"]
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model, config=config), folder)
    ours = AutoModelForCausalLM.from_pretrained(tiny_model, config=config)
    state = {name: tensor for name, tensor in ours.state_dict().items() if name != "lm_head.weight"}
    ours.load_state_dict(merge(state, adaptor, scale, "test"), strict=False)
    ids = torch.arange(200)[None] % 250
    with torch.no_grad():
        released = AutoModelForCausalLM.from_pretrained(tiny_model, config=config)(ids).logits
        assert (ours(ids).logits - theirs(ids).logits).abs().max() < 1e-5
        assert (ours(ids).logits - released).abs().max() > 1e-3


def test_checkpointing_and_slices_change_no_gradient(tiny_model: Path, short_recipe: Recipe, library: Library) -> None:
    ids, weights = library.document(random.Random(1), 300, 1.0)
    gradients = []
    for slice_tokens in (37, 4096):
        torch.manual_seed(0)
        model = lengthened_model(short_recipe, tiny_model, CPU)
        if slice_tokens == 37:
            model.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})
        document_loss(model, ids, weights, slice_tokens, CPU)[0].backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients, strict=True))


def test_the_shipped_recipe_reads_and_stays_within_ten_megabytes() -> None:
    recipe = load_recipe()
    rows_and_columns = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)]
    factors = 30 * sum(recipe.rank * (rows + columns) for rows, columns in rows_and_columns)
    assert 2 * (factors + 61 * 576) <= 10_000_000 - 100_000
