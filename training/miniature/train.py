"""Train the miniature, resumably: ``python -m longdecode.training.miniature.train --help``."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from longdecode.engine.device import lease_gpu, resolve_device
from longdecode.training.files import append_log, run_commands
from longdecode.training.loop import Loop, take_step
from longdecode.training.miniature.books import book_folder
from longdecode.training.miniature.checkpoint import save_checkpoint
from longdecode.training.miniature.curriculum import Curriculum, load_curriculum
from longdecode.training.miniature.documents import Library, document
from longdecode.training.miniature.model import Miniature, MiniatureShape
from longdecode.training.miniature.validation import validate

CURRICULUM = Path(__file__).resolve().parent / "curriculum.yaml"


def step_batch(curriculum: Curriculum, library: Library, step: int) -> tuple[Tensor, Tensor]:
    """Return the ids and weights of a step's batch: a function of seed and step alone, so that training resumes."""
    mixture, length = curriculum.stage_at(step)[0].mixture, curriculum.length_at(step)
    rows = [
        document(random.Random(f"{curriculum.seed} {step} {row}"), mixture, length + 1, library)
        for row in range(curriculum.rows_at(step))
    ]
    ids, weights = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
    return ids, weights


def train(curriculum: Curriculum, output: Path, library: Library, device: torch.device, workers: int) -> Path:
    """Train from the last checkpoint in ``output`` (or from scratch) and write the finished checkpoint there.

    Returns:
        The folder of the finished checkpoint, ``output / "weights"``.
    """
    output.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(curriculum.seed)
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64  # two compiled functions serve every stage, with and without gradients
    shape = replace(MiniatureShape(), max_position_embeddings=curriculum.longest)
    model = Miniature(shape, compiled=device.type == "cuda").to(device)
    optimizer = _optimizer(model, curriculum, device)
    parts = {"model": model, "optimizer": optimizer}
    loop = Loop(output / "state.pt", curriculum, device, parts, curriculum.total_steps)
    for step, (ids, weights) in loop.over(_batches(curriculum, library, loop.step, workers)):
        ids, weights = ids.to(device, torch.int64, non_blocking=True), weights.to(device, non_blocking=True)
        loss = _loss(model, ids, weights)
        loss.backward()
        take_step(optimizer, curriculum.learning_rate_at(step), curriculum.gradient_clip)
        done = step + 1
        if done % curriculum.validate_every_steps == 0 or done == curriculum.total_steps:
            lengths = (
                sorted(set(curriculum.stages[-1].lengths)) if done == curriculum.total_steps else [ids.shape[1] - 1]
            )
            for length in lengths:
                items = validate(model, length, curriculum.tokens_per_step, device)
                seconds = round(loop.seconds, 1)
                entry = {"step": done, "length": length, "loss": round(loss.item(), 4), "items": items}
                append_log(output / "log.jsonl", entry | {"seconds": seconds})
    folder = output / "weights"
    folder.mkdir(exist_ok=True)
    (folder / "README.md").write_text(_card(curriculum, output / "log.jsonl"), encoding="utf-8")
    save_checkpoint(model, folder)
    return folder


def _card(curriculum: Curriculum, log: Path) -> str:
    """Return the checkpoint's card: how it was trained, and what it solved at the end by length."""
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    last = {entry["length"]: entry for entry in entries if entry["step"] == curriculum.total_steps}
    names = list(dict.fromkeys(name for entry in last.values() for name in entry["items"]))
    rows = [["tokens", *names], ["---"] * (len(names) + 1)]
    rows += [[f"{length:,}", *(f"{last[length]['items'].get(name, '')}" for name in names)] for length in sorted(last)]
    plan = "; ".join(f"{stage.steps} at {', '.join(map(str, stage.lengths))}" for stage in curriculum.stages)
    return (
        f"# A miniature, seed {curriculum.seed}\n\nTrained in {curriculum.total_steps:,} steps of "
        f"{curriculum.tokens_per_step:,} bytes, by length: {plan}. Its limit is the longest, {curriculum.longest:,} "
        "tokens. `models/miniature/weights/README.md` describes the architecture and the data.\n\n"
        "Items answered right under teacher forcing, on generated text:\n\n"
        + "\n".join(f"| {' | '.join(row)} |" for row in rows)
        + "\n"
    )


def _loss(model: Miniature, ids: Tensor, weights: Tensor) -> Tensor:
    logits = model(ids[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    w = weights[:, 1:].flatten()
    return (losses * w).sum() / w.sum().clamp_min(1.0)


def _optimizer(model: Miniature, curriculum: Curriculum, device: torch.device) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": curriculum.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=curriculum.learning_rate, betas=(0.9, 0.95), fused=device.type == "cuda")


def _batches(curriculum: Curriculum, library: Library, first: int, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    steps: Any = range(first, curriculum.total_steps)
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        steps, batch_size=None, collate_fn=partial(step_batch, curriculum, library), num_workers=workers,
        prefetch_factor=4 if workers else None, pin_memory=torch.cuda.is_available(),
    )  # fmt: skip
    return iter(loader)


def run(
    output: Path, books: str = "", device: str = "auto", workers: int = 8, seed: int | None = None,
    curriculum: Path = CURRICULUM,
) -> None:  # fmt: skip
    """Train from the last checkpoint in ``output``.

    Args:
        output: folder for state, log and the finished weights.
        books: a folder of ``*.txt`` books, or a hub data set's id such as ``emozilla/pg19``; generated text without.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        workers: processes that make documents.
        seed: in place of the curriculum's.
        curriculum: the plan.
    """
    plan = load_curriculum(curriculum)
    plan = plan if seed is None else replace(plan, seed=seed)
    library = Library(book_folder(books) if books else None)
    with lease_gpu(resolve_device(device)) as target:
        print(train(plan, output, library, target, workers))


if __name__ == "__main__":
    run_commands(run)
