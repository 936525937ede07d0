"""Write a fork: a small adaptor with a card, its history, and the checkpoint with the adaptor merged, that one last."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.config_reader import IMPORTANCE_FILE
from longdecode.engine.disk import whole_folder
from longdecode.evals.store import write_text
from longdecode.training.files import write_csv
from longdecode.training.forks.fork import TrainedHeads
from longdecode.training.long_context.adaptor import merge, trained_tensors

CURVE_COLUMNS = ("step", "loss", "prose", "answers", "sure", "gamma", "seconds")
"""Losses in nats: of training documents, weighted; of held-out prose and answers. ``sure``: share of answer tokens
whose probability is over a half. ``gamma``: overlap of neighbouring queries, mean over layers."""
_FACTORS = "adapter_model.safetensors"
_TAKEN = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def write_fork(
    output: Path, base: Path, model: Any, heads: TrainedHeads | None, curve: Sequence[Sequence[float]],
    about: Mapping[str, Any],
) -> None:  # fmt: skip
    """Write ``adaptor/``, ``curve.csv``, ``run.json``, and ``model/`` last.

    Args:
        output: the fork's folder.
        base: the checkpoint that it was forked from.
        model: the trained peft model.
        heads: importance heads, ``None`` for attention without.
        curve: rows in the order of ``CURVE_COLUMNS``.
        about: settings and provenance.
    """
    from safetensors.torch import save_file

    from longdecode.methods.importance_heads import write_heads

    lora = model.peft_config["default"]
    card = json.dumps({**about, "rank": lora.r, "alpha": lora.lora_alpha}, indent=2, sort_keys=True, default=str)
    with whole_folder(output / "adaptor") as fresh:
        save_file(trained_tensors(model), fresh / _FACTORS, {"format": "pt", "scale": str(lora.lora_alpha / lora.r)})
        if heads is not None:
            write_heads(fresh / IMPORTANCE_FILE, heads.delta, heads.scale, heads.form)
        write_text(fresh / "README.md", _card(about))
        write_text(fresh / "run.json", card + "\n")
    write_csv(output / "curve.csv", CURVE_COLUMNS, curve)
    write_text(output / "run.json", card + "\n")
    merge_fork(output / "adaptor", base, output / "model")


def merge_fork(adaptor: Path, base: Path, output: Path) -> None:
    """Write a checkpoint with a fork's adaptor merged, in bfloat16, with its importance heads beside it.

    Raises:
        CheckpointError: the adaptor does not fit the checkpoint.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    state: dict[str, Tensor] = {}
    for file in sorted(base.glob("*.safetensors")):
        if file.name != IMPORTANCE_FILE:
            state |= load_file(file)
    factors = load_file(adaptor / _FACTORS)
    with safe_open(str(adaptor / _FACTORS), framework="pt") as opened:
        scale = float(opened.metadata()["scale"])
    merged = merge(state, factors, scale, str(adaptor))
    with whole_folder(output) as fresh:
        tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in merged.items()}
        save_file(tensors, fresh / "model.safetensors", {"format": "pt"})
        for name in _TAKEN:
            if (base / name).is_file():
                shutil.copyfile(base / name, fresh / name)
        if (adaptor / IMPORTANCE_FILE).is_file():
            shutil.copyfile(adaptor / IMPORTANCE_FILE, fresh / IMPORTANCE_FILE)


def _card(about: Mapping[str, Any]) -> str:
    run, last = about["settings"], about["last"]
    importance = f", importance heads of form `{run['head']}`" if run["attention"] in ("nosa", "dma") else ""
    layers = "every linear layer" if run["targets"] == "all" else "the linear layers of attention"
    beside = f"distilled from the checkpoint at weight {run['distil']:g}, " if run["distil"] else ""
    beside += f"importances against attention received at weight {run['received']:g}, " if run["received"] else ""
    return (
        f"# {run['name']}: {run['model']} continued with `{run['attention']}` attention\n\n"
        f"Low-rank factors of rank {run['rank']} on {layers} and the norms{importance}. "
        f"{last['step']} steps of {run['rows']} x {run['length']:,} tokens, {run['lookups']:.0%} look-ups, a budget of "
        f"{run['budget']:,} tokens, {beside}rate {run['lr']:g}, seed {run['seed']}.\n\n"
        f"Base checkpoint: {about['base_hash']}. Device: {about['device']}. Revision: {about['revision']}"
        f"{' with uncommitted changes' if about['dirty'] else ''}.\n\n"
        f"Held out at the end: prose {last['prose']:.4f}, answers {last['answers']:.4f} nats a token; "
        f"{last['sure']:.1%} of answer tokens over one half. `run.json` has the rest.\n"
    )
