"""Copy trained draft heads to where a release has them: ``python -m longdecode.training.draft_heads.ship FILE FOLDER``.

Tensors become bfloat16, what every method makes of them on a GPU anyway, so that runs from a copy are those from the
original; the card says what they are.
"""

from __future__ import annotations

from pathlib import Path

import torch

from longdecode.engine.errors import CheckpointError
from longdecode.methods.draft_heads import DraftHeads, HeadsFile, read_description, write_heads
from longdecode.training.files import run_commands

PAPER = "200 steps of 983,040 tokens, 197 million in all, 5e-3 (table 9)"
_CARD = """# Draft heads of {model}: {count} {kind} heads

{size:,} bytes in bfloat16, for a checkpoint of hash `{hash}` alone; another one is refused. Licence Apache-2.0.
Name `{path}` as `heads` of `tokenswift`: [`docs/models.md`](../../../docs/models.md).

| | |
| --- | --- |
| recipe | {steps} steps of {step_tokens:,} tokens, {millions:.1f} million in all, windows of {length:,} |
| | rate {rate}, seed {seed}, start `{init}`; revision {revision}, {device} |
| the paper's | {paper} |
| data | {books} books of `data.pg19` (PG-19, public domain), read over and over; accuracy on {unseen} others |
| loss at the end, nats a token | {losses} |

Accuracy on unseen books, in percent. *Pairs* is a table of the tokens that most often follow at the same distance,
counted in the books of the training.

| head | top 1 | pairs | top 2 | pairs | top 3 | pairs |
| --- | --- | --- | --- | --- | --- | --- |
{rows}

Limits: trained on old English prose alone, by its tokens and not by what the model itself writes.
"""


def ship(trained: Path, folder: Path) -> None:
    """Write ``heads.json``, ``heads.safetensors`` and a card ``README.md``.

    Args:
        trained: a heads file, as a training wrote it.
        folder: ``models/draft_heads/<model>``.

    Raises:
        DataUnavailableError: there is no such heads file.
        CheckpointError: it is broken, or no training wrote it.
    """
    from safetensors.torch import load_file

    file = read_description(trained)
    if missing := {"recipe", "accuracy", "loss", "books", "tokens"} - set(file.run):
        raise CheckpointError(f"{trained} does not say {', '.join(sorted(missing))}: no training wrote it")
    tensors = load_file(trained.with_suffix(".safetensors"))
    heads = DraftHeads(file.kind, file.heads, file.hidden_size, eps=0.0).bfloat16()  # eps is the checkpoint's to say
    heads.load_state_dict({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()})
    write_heads(folder / "heads.json", heads, file.model, file.checkpoint, file.run)
    (folder / "README.md").write_text(_card(file, folder), encoding="utf-8")


def _card(file: HeadsFile, folder: Path) -> str:
    run, recipe = file.run, file.run["recipe"]
    rows = []
    for row in run["accuracy"]:
        cells = [f"{100 * row[name]:.1f}" for rank in (1, 2, 3) for name in (f"top{rank}", f"pair_top{rank}")]
        rows.append(f"| {row['head']} | {' | '.join(cells)} |")
    losses = [f"head {head} {run['loss'][f'loss_{head}']:.3f}" for head in range(1, file.heads + 1)]
    return _CARD.format(
        model=file.model, count=file.heads, kind=file.kind, hash=file.checkpoint[:12], paper=PAPER,
        size=(folder / "heads.safetensors").stat().st_size, path=folder / "heads.json", steps=recipe["steps"],
        step_tokens=recipe["sequences"] * recipe["length"], millions=run["tokens"] / 1e6, length=recipe["length"],
        rate=recipe["learning_rate"], seed=recipe["seed"], init=run["init"], revision=run["revision"][:12],
        device=run["device"], books=run["books"], unseen=run["unseen_books"], losses=", ".join(losses),
        rows="\n".join(rows),
    )  # fmt: skip


if __name__ == "__main__":
    run_commands(ship)
