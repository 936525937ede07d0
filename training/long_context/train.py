"""Train the long-context adaptor, resumably: ``python -m longdecode.training.long_context.train --help``.

Low-rank factors on every linear layer and all norms are trained by peft over a frozen model with a raised rotary base.
A document is a function of seed, step and row alone, so that a killed run goes on as if it had not been.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longdecode.engine.device import resolve_device, resolve_dtype
from longdecode.engine.disk import whole_folder
from longdecode.engine.errors import ConfigError
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.evals.run_config import RunConfig
from longdecode.training.files import append_log, prefetched, run_commands
from longdecode.training.long_context.adaptor import low_rank_model, write_adaptor
from longdecode.training.long_context.books import ids_of_books, load_ids
from longdecode.training.long_context.documents import Document, Library, Weights
from longdecode.training.long_context.recipe import RECIPE, Recipe, load_recipe
from longdecode.training.loop import Loop, take_step
from longdecode.training.token_losses import token_losses


def train(recipe: Recipe, model_folder: Path, library: Library, output: Path, device: torch.device) -> Path:
    """Train from the last checkpoint in ``output``, or from the start, and write the adaptor there.

    Returns:
        The adaptor's folder, ``output / "adaptor"``.

    Raises:
        CheckpointError: the saved state belongs to another recipe.
    """
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    model = lengthened_model(recipe, model_folder, device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0, betas=(0.9, 0.95), fused=device.type == "cuda")
    answers: list[Tensor] = []
    prose: list[Tensor] = []
    parts = {"trained": torch.nn.ParameterList(trained), "optimizer": optimizer, "answers": answers, "prose": prose}
    loop = Loop(output / "state.pt", recipe, device, parts, recipe.total_steps)

    def documents_of(step: int) -> list[Document]:
        stage, _ = recipe.stage_at(step)
        drawn = [random.Random(f"{recipe.seed} {step} {row}") for row in range(stage.rows)]
        return [library.document(rng, stage.length, stage.lookups) for rng in drawn]

    for step, documents in loop.over(prefetched(documents_of, loop.step, recipe.total_steps)):
        stage, done = recipe.stage_at(step)
        _set_checkpointing(model, stage.length >= recipe.checkpointing_from)
        for ids, weights in documents:
            loss, answered = document_loss(model, ids, weights, recipe.loss_slice, device)
            (loss / len(documents)).backward()
            (prose if answered is None else answers).append(loss.detach() if answered is None else answered)
        take_step(optimizer, recipe.learning_rate_at(step), recipe.gradient_clip)
        if (done + 1) % 20 == 0 or done + 1 == stage.steps:
            entry = {"step": step + 1, "length": stage.length, "prose": _mean(prose), "answers": _mean(answers)}
            append_log(output / "log.jsonl", entry | {"seconds": round(loop.seconds, 1)})
            answers.clear()
            prose.clear()
    folder = output / "adaptor"
    with whole_folder(folder) as fresh:
        write_adaptor(fresh, model, recipe.rope_theta, recipe.max_positions)
    return folder


def lengthened_model(recipe: Recipe, folder: Path, device: torch.device) -> Any:
    """Return the peft model with the recipe's rotary base; what is trained is float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    config.rope_parameters["rope_theta"] = recipe.rope_theta
    config.max_position_embeddings = recipe.max_positions
    dtype = resolve_dtype("auto", device)
    base = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype, attn_implementation="sdpa")
    return low_rank_model(base.to(device), recipe.rank, recipe.alpha)


def document_loss(
    model: Any, ids: np.ndarray, weights: np.ndarray, slice_tokens: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Return the weighted mean loss of one document, and that of its answers where it has some."""
    tokens = torch.from_numpy(ids).to(device)
    weight = torch.from_numpy(weights[1:]).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        causal = model.base_model.model
        hidden = causal.model(tokens[None, :-1], use_cache=False).last_hidden_state[0]
        losses, _ = token_losses(causal.lm_head.weight, hidden, tokens[1:], slice_tokens)
    loss = (losses * weight).sum() / weight.sum()
    return loss, losses.detach()[weight > 1].mean() if weights.max() > 1 else None


def _set_checkpointing(model: Any, wanted: bool) -> None:
    causal = model.base_model.model
    if wanted and not causal.is_gradient_checkpointing:
        causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    elif not wanted and causal.is_gradient_checkpointing:
        causal.gradient_checkpointing_disable()


def _mean(losses: list[Tensor]) -> float | None:
    return round(torch.stack(losses).mean().item(), 4) if losses else None


def run(model: Path, books: Path | None, output: Path, recipe: Path = RECIPE, device: str = "auto") -> None:
    """Train from the last checkpoint in ``output``.

    Args:
        model: folder of SmolLM2 as released.
        books: a folder with ``<id>.txt`` or PG-19's parquet, or a hub id.
        output: folder for state, log, adaptor and the books' ids, which are made once.
        recipe: the settings.
        device: ``auto``, ``cpu`` or ``cuda``.
    """
    settings = load_recipe(recipe)
    weights = Weights(settings.text_weight, settings.answer_weight)
    ids = ids_of_books(books, model, output / "books.npz")
    library = Library(load_ids(ids, "train"), load_tokenizer(model), weights)
    print(train(settings, model, library, output, resolve_device(device)))


def run_planned(config: RunConfig, model: Path, output: Path) -> None:
    """Train with the books of a configuration's ``data.pg19``, whose tokens are kept in ``output``.

    Raises:
        ConfigError: there is no CUDA device.
        DataUnavailableError: the configuration names no books.
    """
    if not torch.cuda.is_available():
        raise ConfigError(
            "training the long-context adaptor needs a CUDA device; train it elsewhere and put the folder "
            "results/smollm2/adaptor at models/smollm2-long, or name the model smollm2 (8,192 tokens), which needs none"
        )
    run(model, config.data.get("pg19"), output, device="cuda")


if __name__ == "__main__":
    run_commands(run)
