"""Write and read what a training leaves: tables, texts, logs, and the state that a killed run goes on from."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
import typer

from longdecode.engine.errors import CheckpointError, LongDecodeError
from longdecode.evals.store import replacing, write_text

Made = TypeVar("Made")


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]], digits: int = 6) -> None:
    """Write a table through a temporary file; floats keep so many significant digits."""
    with replacing(path) as partial, partial.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(
            [f"{value:.{digits}g}" if isinstance(value, float) else value for value in row] for row in rows
        )


def write_json(path: Path, content: object) -> None:
    """Write a JSON file through a temporary one."""
    write_text(path, json.dumps(content, indent=2, default=str) + "\n")


def prefetched(make: Callable[[int], Made], first: int, stop: int) -> Iterator[Made]:
    """Yield what ``make`` returns for each step, made while the steps before are trained on."""
    with ThreadPoolExecutor(1) as pool:
        coming = [pool.submit(make, step) for step in range(first, min(first + 2, stop))]
        for step in range(first, stop):
            ready = coming.pop(0).result()
            if step + 2 < stop:
                coming.append(pool.submit(make, step + 2))
            yield ready


def append_log(path: Path, entry: Mapping[str, Any]) -> None:
    """Print an entry as JSON and append it to a file of such lines."""
    line = json.dumps(entry)
    print(line, flush=True)
    with path.open("a", encoding="utf-8") as log:
        log.write(line + "\n")


def save_state(path: Path, settings: object, **state: Any) -> None:
    """Write a training's state, whole or not at all.

    Args:
        path: the file.
        settings: what the training is; ``load_state`` refuses a file of other settings.
        state: step, tensors and histories.
    """
    with replacing(path) as partial:
        torch.save({"settings": repr(settings), **state}, partial)


def load_state(path: Path, settings: object, device: torch.device) -> dict[str, Any] | None:
    """Read a training's state; ``None`` where there is none yet.

    Raises:
        CheckpointError: the file belongs to other settings.
    """
    if not path.is_file():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    if state["settings"] != repr(settings):
        raise CheckpointError(f"{path} belongs to other settings; remove it to start anew")
    return state


def run_commands(*functions: Callable[..., None]) -> None:
    """Run functions as the commands of a program, arguments by their signatures; an error of ours is one line."""
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    for function in functions:
        app.command()(function)
    try:
        app()
    except LongDecodeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None
