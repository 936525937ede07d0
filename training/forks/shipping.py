"""Take a fork's importance heads out of it, and lay them beside a checkpoint.

``python -m longdecode.training.forks.shipping --help``. The heads are kilobytes; a fork's low-rank factors are
megabytes and stay where they were trained.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from longdecode.engine.config_reader import IMPORTANCE_FILE, read_config, read_json, resolve_checkpoint
from longdecode.engine.disk import whole_folder
from longdecode.engine.errors import CheckpointError
from longdecode.evals.store import write_text
from longdecode.methods.importance_heads import TRAIN_COMMAND, read_heads
from longdecode.training.files import run_commands

_ABOUT = "run.json"
_CARD = "README.md"


def ship(fork: Path, output: Path) -> None:
    """Write a fork's importance heads, their card and what they were trained with.

    Args:
        fork: a folder that ``nosa_train`` wrote.
        output: a new folder, or one to be replaced.

    Raises:
        CheckpointError: the fork has no importance heads, or is not finished.
    """
    adaptor = fork / "adaptor"
    if missing := [name for name in (IMPORTANCE_FILE, _ABOUT, _CARD) if not (adaptor / name).is_file()]:
        raise CheckpointError(f"{adaptor} has no {', '.join(missing)}; a finished fork of nosa or dma is needed")
    read_heads(adaptor / IMPORTANCE_FILE, read_config(fork / "model"))
    run = read_json(adaptor / _ABOUT)["settings"]
    trained = (adaptor / _CARD).read_text(encoding="utf-8")
    with whole_folder(output) as fresh:
        shutil.copyfile(adaptor / IMPORTANCE_FILE, fresh / IMPORTANCE_FILE)
        shutil.copyfile(adaptor / _ABOUT, fresh / _ABOUT)
        write_text(
            fresh / _CARD,
            f"{trained}\n## What is here\n\n"
            f"`{IMPORTANCE_FILE}`: the importance heads alone, for `{run['attention']}` with `heads: model` once they "
            f"lie beside the weights of `{run['model']}`:\n\n"
            "```bash\n"
            f"python -m longdecode.training.forks.shipping attach {output} {run['model']} build/{run['model']}-heads\n"
            "```\n\n"
            "The low-rank factors and norms that were trained together with them are not here; "
            f"`{TRAIN_COMMAND}` makes the whole fork. Scores of the fork do not hold for the heads on the checkpoint "
            "as it was.\n",
        )


def attach(heads: Path, checkpoint: Path, output: Path) -> None:
    """Write a checkpoint's folder with importance heads beside the weights, which are linked.

    Args:
        heads: a folder that ``ship`` wrote.
        checkpoint: folder or name of the checkpoint that they were trained for.
        output: a new folder, or one to be replaced; a configuration may name it as a model's path.

    Raises:
        CheckpointError: there are no heads, or they are of another shape.
    """
    folder = resolve_checkpoint(str(checkpoint), None)
    read_heads(heads / IMPORTANCE_FILE, read_config(folder))
    with whole_folder(output) as fresh:
        for file in folder.iterdir():
            if file.is_file() and file.name != IMPORTANCE_FILE:
                (fresh / file.name).symlink_to(file.resolve())
        shutil.copyfile(heads / IMPORTANCE_FILE, fresh / IMPORTANCE_FILE)


if __name__ == "__main__":
    run_commands(ship, attach)
