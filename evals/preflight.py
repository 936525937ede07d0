"""Look at all that a run names before any of its jobs starts: checkpoints, role files, data folders, the device."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from longdecode.engine import errors
from longdecode.engine.config_reader import BUILT_MODELS, built_model, read_config, resolve_checkpoint
from longdecode.engine.errors import ConfigError, LongDecodeError, unknown_name
from longdecode.evals.datasets.reader import FROM_HUB, SOURCES
from longdecode.evals.run_config import RunConfig

DATA_FOLDER = "data"
"""Folder of the layout in which `longdecode data fetch` puts all sets."""


def look(run: RunConfig, made: Collection[str] = ()) -> None:
    """Check what takes no time: that folders and files are there, and config.json of each local checkpoint.

    Raises:
        ConfigError: the first of ``faults``, with the configuration's name.
    """
    for fault in faults(run, made):
        raise ConfigError(f"{run.source}: {fault}")


def faults(run: RunConfig, made: Collection[str] = ()) -> Iterator[str]:
    """Yield what is wrong with the files that a run names, a line a file: the configuration's key and the fault.

    Args:
        run: the configuration.
        made: files that the run itself makes, such as role files.
    """
    local = dict(_local_models(run, made))
    for model, named in run.models.items():
        if fault := _absent(named.path) or (_unread(local[model]) if model in local else None):
            yield f"models.{model}: {fault}"
    for variant, spec in run.methods.items():
        for path in {path: None for model in run.models for path in spec.files_of(model)}:
            if str(path) not in made and not path.is_file():
                yield f"methods.{variant}: {path} is no file here, and no rule of this run makes it"
    for name, place in run.data.items():
        if place is not None and (fault := data_fault(name, place)):
            yield f"data.{name}: {fault}"


def _unread(folder: Path) -> str | None:
    """Say why a checkpoint's shape cannot be read, or that it has no tokenizer."""
    try:
        read_config(found := resolve_checkpoint(folder))
    except (ConfigError, errors.CheckpointError) as error:
        return str(error)
    for file in (*found.glob("*.safetensors"), *found.glob("tokenizer*")):
        if file.is_file() and file.stat().st_size < 1000 and file.read_bytes().startswith(b"version https://git-lfs"):
            return f"{file} is git LFS's pointer to the file; `git lfs pull` in {found} fetches it"
    return None if [*found.glob("tokenizer*"), *found.glob("vocab*")] else f"{found} has no tokenizer (tokenizer.json)"


def require_hub_id(model: str) -> None:
    """Refuse a model that is no folder here and cannot be one of the hub, before the hub is asked.

    Raises:
        ConfigError: the message gives the nearest name.
    """
    if fault := _absent(model) or (None if _may_be_hub_id(model) else "no such folder"):
        raise ConfigError(f"--model {model}: {fault}")


def data_fault(name: str, place: Path) -> str | None:
    """Say that the place of a data set is neither here nor on the hub; folders of ``data`` are never hub ids."""
    sets = [data for data in SOURCES.values() if data.key == name]
    hub = str(place) == FROM_HUB and any(data.hub_id for data in sets)
    copy = any(data.copies for data in sets) and _may_be_hub_id(str(place)) and place.parts[0] != DATA_FOLDER
    own = not sets and (place.expanduser().is_file() or _may_be_hub_id(str(place)))  # HotpotQA to train on
    if place.expanduser().is_dir() or hub or copy or own:
        return None
    return f"no such folder: {place}" + (f"; `{sets[0].command}` makes {DATA_FOLDER}/{name}" if sets else "")


def check(run: RunConfig, made: Collection[str] = (), *, device: bool = True) -> None:
    """Check what needs torch: names and shapes of weights, tokenizers, methods at their budgets, the device.

    Args:
        run: the configuration, which ``look`` has passed.
        made: files that the run itself makes.
        device: the jobs run on this machine, so that its devices count.

    Raises:
        ConfigError: the message names the configuration, the key and what is wrong.
    """
    from longdecode.engine.device import resolve_device
    from longdecode.engine.tokenizer import eos_ids, load_tokenizer
    from longdecode.engine.weights import check_checkpoint

    if device:
        with _blamed(run, "device"):
            resolve_device(run.device)
    for model, folder in _local_models(run, made):
        with _blamed(run, f"models.{model}"):
            if check_checkpoint(folder).experts and any(one.model == model for one in run.role_trainings.values()):
                raise ConfigError("a mixture of experts; head roles (`training`) are learned on dense models alone")
            eos_ids(folder, load_tokenizer(folder))
        for variant in run.methods:
            with _blamed(run, f"methods.{variant}"):
                if not {str(path) for path in run.methods[variant].files_of(model)} & set(made):
                    _build(run, model, variant)


def _build(run: RunConfig, model: str, variant: str) -> None:
    """Build a variant's method at each of its budgets, as its jobs will; native ones for bytes are left to them."""
    config = read_config(resolve_checkpoint(run.models[model].path))
    for budget in (budget for budget in run.budgets_of(variant) if not budget.of_bytes):
        for context in sorted({context for suite in run.suites_of(variant) for context in run.suites[suite].contexts}):
            try:
                run.methods[variant].build(budget.tokens(context), config, model)
            except errors.UnsupportedCellError:
                continue  # a status of its cell


def _local_models(run: RunConfig, made: Collection[str]) -> Iterator[tuple[str, Path]]:
    """Yield the models whose folder is named or found here; not those that a rule builds or the hub has."""
    for model, spec in run.models.items():
        path = Path(spec.path).expanduser()
        is_made = built_model(spec.path) or any(Path(name).is_relative_to(path) for name in made)
        if not is_made and (path.exists() or path.is_symlink() or not _may_be_hub_id(spec.path)):
            yield model, path


def _absent(path: str) -> str | None:
    """Say that a path is no checkpoint, where a folder or name differs by a slip of the pen or a hub id has two parts.

    Of folders with as many parts, up to three, the nearest is named.
    """
    depth = len((here := Path(path).expanduser()).parts)
    if built_model(path) or here.exists() or here.is_symlink() or depth > 3:
        return None
    if depth == 1:
        names = (*BUILT_MODELS, *map(str, Path().glob("models/*/weights")))
        return f"{unknown_name('model', path, names)}, no folder here, and a hub id is org/name"
    folders = [str(file.parent) for file in Path().glob("*/" * depth + "config.json")]
    near = difflib.get_close_matches(path, folders, n=1, cutoff=0.85)
    copy = " (of the hub's model of this name give a copy)" if _may_be_hub_id(path) else ""
    return f"no folder {path} here; nearest folder: {near[0]}{copy}" if near else None


@contextmanager
def _blamed(run: RunConfig, key: str) -> Iterator[None]:
    """Name the configuration's key in the error of a check."""
    try:
        yield
    except errors.StorageError:
        raise
    except LongDecodeError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(f"{run.source}: ") else f"{run.source}: {key}: {text}") from None


def _may_be_hub_id(text: str) -> bool:
    """Return whether a path may be the hub's ``org/name``: two parts, the first no folder here."""
    parts = Path(text).parts
    return len(parts) == 2 and not text.startswith((os.sep, ".", "~")) and not Path(parts[0]).is_dir()
