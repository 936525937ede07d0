"""Hashes of what a number depends on: settings, code, files of a model, data.

Apart from provenance, so that planning a workflow does not import torch.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.tasks.registry import get_suite

if TYPE_CHECKING:
    from longdecode.evals.records import Record
    from longdecode.evals.run_config import RunConfig
    from longdecode.evals.specs import SuiteSpec

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = "longdecode"
CHECKS = ("rule", "conformance", *map("conformance_{}".format, "bench card launches model refill rules".split()))
"""Modules of the methods room that check a method."""
_STOPS = {
    "engine": "plugins",
    "evals": "config_values fingerprint gate provenance records run_config specs store tasks.registry throughput.spec",
    "methods": f"card registry {' '.join(CHECKS)}",
}
BOOKKEEPING = frozenset(f"{PACKAGE}.{room}.{name}" for room, names in _STOPS.items() for name in names.split())
"""Modules that choose, check, describe or store what is run; a closure stops at them. What they choose is a root."""
_CODE_SUFFIXES = (".py", ".yaml", ".json", ".html", ".css", ".js")


class SettingsError(LongDecodeError):
    """A file of results was made under other settings than those that it would stand beside."""


def cell_settings(run: RunConfig, model: str, suite: str, variant: str) -> dict[str, Any]:
    """Return the settings that all cells of a variant on a model and suite share.

    The number of samples and the batch are among them: they fix which samples share a batch. ``refill`` is named where
    it is on, so that records from before there was such a key hold.
    """
    spec = run.suites[suite]
    return {
        "profile": run.profile, "seed": run.seed, "dtype": run.dtype, "model": model, "suite": suite,
        "variant": variant, "method": run.methods[variant].method, "params": run.methods[variant].params_of(model),
        "samples": spec.samples, "batch": spec.batch, **({"refill": True} if spec.refill else {}),
    }  # fmt: skip


def quality_settings(run: RunConfig, model: str, suite: str, variant: str) -> dict[str, Any]:
    """Return all settings that the records of a variant on a model and suite depend on, and no others."""
    spec, places = run.suites[suite], {name: run.data.get(name) for name in get_suite(suite).data}
    return cell_settings(run, model, suite, variant) | {
        "checkpoint": asdict(run.models[model]), "data": places, "contexts": spec.contexts, "tasks": spec.tasks,
        "budgets": [budget.text for budget in run.budgets_of(variant)],
    }  # fmt: skip


def narrowed(run: RunConfig, suite: str, context: int | None) -> RunConfig:
    """Return the run as a job of one context sees it; ``None`` leaves it whole."""
    if context is None:
        return run
    return replace(run, suites={**run.suites, suite: replace(run.suites[suite], contexts=(context,))})


def hash_settings(settings: Mapping[str, Any], device: str, dtype: str) -> str:
    """Hash a cell's settings, whatever their order, and the device and number format that it ran with."""
    return hashlib.sha256(json.dumps([settings, device, dtype], sort_keys=True, default=str).encode()).hexdigest()


def require_settings(run: RunConfig, path: Path, records: Iterable[Record]) -> None:
    """Refuse a file whose records were made under other settings than a run's; those without a hash pass as older.

    Fewer samples are no other settings where both are whole batches: a table may hold the records of two runs.

    Raises:
        SettingsError: the message names the file and the remedy.
    """
    accepted: dict[tuple[Any, ...], set[str]] = {}
    for r in records:
        origin, place = r.provenance, {"task": r.task, "context": r.context, "budget": r.budget}
        key = (r.model, r.suite, r.variant, *place.values(), origin.device, origin.dtype)
        if key not in accepted:
            known = r.model in run.models and r.suite in run.suites and r.variant in run.methods
            settings = cell_settings(run, r.model, r.suite, r.variant) | place if known else {}
            counts = [{}, *({"samples": count} for count in _sample_counts(run.suites[r.suite]))] if known else [{}]
            accepted[key] = {hash_settings(settings | count, origin.device, origin.dtype) for count in counts}
        if origin.settings_hash is not None and origin.settings_hash not in accepted[key]:
            raise SettingsError(
                f"{path}: {r.variant} on {r.task} at {r.context} has other settings than {run.source}; "
                "run again, which makes it anew, or give this run a name of its own (--config profile=NAME)"
            )


def _sample_counts(spec: SuiteSpec) -> Iterable[int]:
    """Return numbers of samples under which the first ones shared the same batches: those of whole fixed batches."""
    return () if spec.refill or spec.samples % spec.batch else range(spec.batch, spec.samples, spec.batch)


def hash_data(run: RunConfig, suite: str) -> str:
    """Hash the contents of the data sets that a suite reads from folders of the configuration."""
    places = [Path(place) for name in get_suite(suite).data if (place := run.data.get(name))]
    files = [(path, place) for place in places for path in (place, *place.rglob("*")) if path.is_file()]
    return hash_texts(hash_files([path], place.parent) for path, place in sorted(files))


def quality_code_hash(method: str, task_module: str, root: Path = REPOSITORY) -> str:
    """Hash the code behind a score: the quality job, the task and its suite, and the method, with all that they import.

    Args:
        method: name of the method and of its folder.
        task_module: dotted name of the module that defines the task.
        root: folder of the rooms.
    """
    suite = f"{task_module.rpartition('.')[0]}.suite"
    suites = [suite] if _module_files(suite, root) else []
    return code_hash([f"{PACKAGE}.evals.quality_job", task_module, *suites], [method], root)


def speed_code_hash(bench: str, methods: Iterable[str], root: Path = REPOSITORY) -> str:
    """Hash the code behind a time: a module of ``evals/throughput`` and the methods timed, with all that they import.

    Methods without a folder, such as upper bounds, are in the module's closure.
    """
    return code_hash([f"{PACKAGE}.evals.throughput.{bench}"], methods, root)


def gate_code_hash(method: str, root: Path = REPOSITORY) -> str:
    """Hash the code behind a method's conformance: the checks and the method, with all that they import."""
    return code_hash([f"{PACKAGE}.methods.{name}" for name in CHECKS], [method], root)


def code_hash(modules: Iterable[str], methods: Iterable[str], root: Path = REPOSITORY) -> str:
    """Hash the import closure of some modules and of the folders of some methods.

    A method's folder, in the room or in a folder that ``LONGDECODE_METHOD_PATH`` names, counts whole: code and card.
    So does the folder of a module outside the rooms, such as a suite that ``LONGDECODE_SUITE_PATH`` names.

    Raises:
        FileNotFoundError: a module does not exist.
    """
    rooms = [root / "methods", *map(Path, filter(None, os.environ.get("LONGDECODE_METHOD_PATH", "").split(os.pathsep)))]
    folders = [room / method for room in rooms for method in set(methods)]
    roots: set[Path] = set()
    for module in modules:
        if found := _module_files(module, root):
            roots |= found
        elif (loaded := sys.modules.get(module)) is not None and loaded.__file__:
            folders.append(Path(loaded.__file__).parent)
        else:
            raise FileNotFoundError(f"no module {module} under {root}")
    inside = import_closure(roots.union(*map(_code_of, folders)), root)
    outside = [folder_hash(folder) for folder in folders if folder.is_dir() and not folder.is_relative_to(root)]
    return hash_texts([hash_files((p for p in inside if p.is_relative_to(root)), root), *sorted(outside)])


def import_closure(files: Iterable[Path], root: Path = REPOSITORY) -> frozenset[Path]:
    """Return the files, every module of the rooms that they import directly or not, and the data beside each module.

    Imports are read from the source, those inside functions and conditions included, so that a kernel that is imported
    when first called counts. A text that is the name of a module counts as an import of it.
    """
    found, todo = set[Path](), set(files)
    while todo:
        path = todo.pop()
        found.add(path)
        if path.suffix == ".py":
            todo |= _reached(path, root, *_version(path)) - found
    return frozenset(found)


def file_hashes(files: Iterable[Path]) -> list[str]:
    """Hash each file's content under its own name; a missing file counts as nothing."""
    return [hash_files([path], path.parent) for path in files]


def folder_hash(folder: Path) -> str:
    """Hash the code and data of a folder, such as a method's or suite's, under the folder's name, wherever it lies."""
    return hash_files(_code_of(folder), folder.parent)


def hash_files(files: Iterable[Path], root: Path) -> str:
    """Hash names (relative to ``root``) and contents, in name order; of Python, what runs, without comments."""
    # Tuning records, roles and draft heads that ship name checkpoints by this hash: its form stays.
    digest = hashlib.sha256()
    for path in sorted(path for path in files if path.is_file()):
        digest.update(f"{path.relative_to(root).as_posix()}\0{_content(path, *_version(path))[0]}\n".encode())
    return digest.hexdigest()


def hash_texts(texts: Iterable[str]) -> str:
    """Hash texts in order, each set off by its length."""
    digest = hashlib.sha256()
    for text in texts:
        raw = text.encode()
        digest.update(f"{len(raw)}\0".encode() + raw)
    return digest.hexdigest()


def _code_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.suffix in _CODE_SUFFIXES}


def _module_files(module: str, root: Path) -> set[Path]:
    """Return the file of a module of ours and the ``__init__`` of each package around it; empty for any other name."""
    package, *parts = module.split(".")
    if package != PACKAGE or not parts or not all(parts):
        return set()
    own = [root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")]
    around = [root.joinpath(*parts[:count], "__init__.py") for count in range(1, len(parts))]
    return {path for path in (*own, *around) if path.is_file()} if any(path.is_file() for path in own) else set()


def _data_of(module: Path) -> set[Path]:
    """Return the YAML and JSON files beside a module that share its name or are named in it."""
    beside = [path for path in module.parent.iterdir() if path.suffix in (".yaml", ".json")]
    text = module.read_text(encoding="utf-8") if beside else ""
    return {path for path in beside if path.stem == module.stem or path.name in text}


def _version(path: Path) -> tuple[int, int]:
    return (status := path.stat()).st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=4096)
def _content(path: Path, *version: int) -> tuple[str, frozenset[str]]:
    """Return a hash of a file, and of Python what may be names of modules that it imports.

    Python counts as it is parsed, without docstrings, alike in every version of Python.
    """
    names = set[str]()
    with path.open("rb") as handle:
        if path.suffix != ".py":
            return hashlib.file_digest(handle, "sha256").hexdigest(), frozenset()
        return hash_texts([_told(ast.parse(handle.read(), str(path)), path, names)]), frozenset(names)


def _told(node: object, path: Path, names: set[str]) -> str:
    """Write a syntax tree without statements that are a text, docstrings among them; collect what it imports.

    ``ast.dump`` and ``ast.unparse`` write the same tree otherwise in each version of Python.
    """
    if isinstance(node, list):
        return f"[{', '.join([_told(entry, path, names) for entry in node if not _is_text(entry)])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Import):
        names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.level or not node.module:
            raise ValueError(f"{path}:{node.lineno}: a relative import; this project writes them out")
        names.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{PACKAGE}."):
        names.add(node.value)
    told = ((name, _told(getattr(node, name, None), path, names)) for name in node._fields)
    return f"{type(node).__name__}({', '.join([f'{name}={t}' for name, t in told if t not in ('None', '[]')])})"


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@functools.lru_cache(maxsize=4096)
def _reached(path: Path, root: Path, *version: int) -> frozenset[Path]:
    """Return the files of modules that a module may import by itself, and the data beside it.

    ``from a import b`` may import ``a`` and ``a.b``. A package below a room brings all of its modules: an op's
    ``gpu.py`` is imported by a name that is put together.
    """
    beside = path.parent.glob("*.py") if path.name == "__init__.py" and path.parents[1] != root else ()
    names = _content(path, *version)[1] - BOOKKEEPING
    return frozenset(_data_of(path)).union(beside, *(_module_files(name, root) for name in names))
