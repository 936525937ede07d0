"""Head roles and draft heads, which belong to one checkpoint: found by its hash, and refused where it is another's."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.fairness import require_fair
from longdecode.evals.fingerprint import REPOSITORY, hash_files, hash_texts
from longdecode.evals.plan import Plan
from longdecode.evals.preflight import check, faults
from longdecode.evals.sweep import folder_here

if TYPE_CHECKING:
    from longdecode.evals.run_config import RunConfig

LEARNED = {
    "lychee": ("roles", "hardkuma"), "duo": ("roles", "duo"), "tokenswift": ("heads", "chained"),
    "medusa": ("heads", "medusa"),
}  # fmt: skip
"""By method its parameter that names a file, and the kind of that file."""
PLACES = ("models/*/roles/*.json", "models/draft_heads/*/heads.json", "results/*/identification/*/*/roles.json")


def own_file(method: str, folder: Path, config: ModelConfig, profile: str) -> Path | None:
    """Return a file that was learned for a method on this very checkpoint; not one that the run itself makes."""
    hashes: set[str] = set()  # of gigabytes: not taken before a file of the same shape is found
    for path in (path for place in PLACES for path in sorted(REPOSITORY.glob(place))):
        about = _read(path)
        shape = (about.get("layers", config.num_layers), about.get("hidden_size", config.hidden_size))
        fits = about.get("kind") == LEARNED[method][1] and shape == (config.num_layers, config.hidden_size)
        # Of a model of the hub, only config.json may be here yet.
        if fits and any(folder.glob("*.safetensors")) and not path.is_relative_to(REPOSITORY / "results" / profile):
            hashes = hashes or checkpoint_hashes(folder)
            if _owner(about) in hashes:
                return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return None


def checkpoint_hashes(folder: Path) -> set[str]:
    """Return the hashes by which files name a checkpoint: of weights, with all prompt files, and with its tokenizer."""
    from longdecode.engine.weights import model_hash
    from longdecode.evals.provenance import checkpoint_hash

    weights = model_hash(folder)
    return {weights, checkpoint_hash(folder), hash_texts([weights, hash_files(folder.glob("tokenizer*"), folder)])}


def require_own(run: RunConfig, made: Collection[str] = ()) -> None:
    """Refuse a run whose methods name roles or heads of another checkpoint; files that name none pass.

    Args:
        run: the configuration.
        made: files that the run itself makes.

    Raises:
        ConfigError: the message names the key, the file and both checkpoints.
    """
    for model, spec in run.models.items():
        folder = folder_here(spec.path)
        named = {path: name for name, v in run.methods.items() if v.runs_on(model) for path in v.files_of(model)}
        there = [path for path in named if str(path) not in made and path.is_file() and _owner(_read(path))]
        own = checkpoint_hashes(folder) if there and any(folder.glob("*.safetensors")) else set[str]()
        for path in there if own else ():
            if _owner(about := _read(path)) not in own:
                raise ConfigError(
                    f"{run.source}: methods.{named[path]}: {path} was learned on another checkpoint than {model}: "
                    f"{about['model']}, hash {_owner(about)[:12]}; docs/models.md says how to learn its own"
                )


def refusals(runs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield a line for each run that the workflow would refuse before its first job, where all files are here."""
    for run in runs:
        made = Plan(run, Path()).made
        try:
            require_fair(run)
            if not any(faults(run, made)):
                check(run, made, device=False)
                require_own(run, made)
        except LongDecodeError as error:
            yield f"refused: {error}"


def _read(path: Path) -> dict[str, Any]:
    about = path if path.suffix == ".json" else path.with_name("config.json")
    try:
        return dict(json.loads(about.read_text(encoding="utf-8"))) if about.is_file() else {}
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{about}: no JSON object: {error}") from None


def _owner(about: dict[str, Any]) -> Any:
    return about.get("checkpoint") or about.get("run", {}).get("model_hash")
