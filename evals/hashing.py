"""Hashes of code, files and texts; apart from provenance, so that reading a workflow does not import torch."""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = "longdecode"
BOOKKEEPING = frozenset(
    f"{PACKAGE}.{name}"
    for name in (
        "engine.plugins", "evals.config_values", "evals.fairness", "evals.tuning_spec",
        "evals.gate_launches", "evals.generation.spec", "evals.hashing", "evals.journal",
        "evals.ledger", "evals.names", "evals.provenance", "evals.records", "evals.run_config",
        "evals.storage", "evals.training_spec", "evals.tasks.registry", "evals.throughput.spec",
        "methods.card", "methods.conformance",
        "methods.conformance_bench", "methods.conformance_card", "methods.conformance_launches",
        "methods.conformance_model", "methods.conformance_rules", "methods.registry",
        "methods.rule",
    )
)  # fmt: skip
"""Modules that choose, check, describe or store what is run; a closure stops at them. What they choose is a root."""
GATE = (
    "conformance", "conformance_bench", "conformance_card", "conformance_launches", "conformance_model",
    "conformance_rules", "rule",
)  # fmt: skip
"""Modules of the methods room that check a method."""
_CODE_SUFFIXES = (".py", ".yaml", ".json")


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
    """Hash the code behind a time: the bench's module and the methods timed, with all that they import.

    Args:
        bench: ``decode`` or ``kernels``, a module of ``evals/throughput``.
        methods: names of methods; those without a folder, such as ceilings, are in the bench's closure.
        root: folder of the rooms.
    """
    return code_hash([f"{PACKAGE}.evals.throughput.{bench}"], methods, root)


def gate_code_hash(method: str, root: Path = REPOSITORY) -> str:
    """Hash the code behind a method's conformance: the checks and the method, with all that they import."""
    return code_hash([f"{PACKAGE}.methods.{name}" for name in GATE], [method], root)


def code_hash(modules: Iterable[str], methods: Iterable[str], root: Path = REPOSITORY) -> str:
    """Hash the import closure of some modules and of the folders of some methods.

    A module outside the rooms, such as a suite that ``LONGDECODE_SUITE_PATH`` names, counts with its whole folder.
    A method's folder, in the room or in a folder that ``LONGDECODE_METHOD_PATH`` names, counts whole: code and card.

    Raises:
        FileNotFoundError: a module does not exist.
    """
    roots = set()
    outside = []
    for module in modules:
        if found := _module_files(module, root):
            roots |= found
        elif folder := _folder_outside(module):
            roots |= _code_of(folder)
            outside.append(folder_hash(folder))
        else:
            raise FileNotFoundError(f"no module {module} under {root}")
    entries = filter(None, os.environ.get("LONGDECODE_METHOD_PATH", "").split(os.pathsep))
    for folder in (room / method for room in (root / "methods", *map(Path, entries)) for method in set(methods)):
        files = _code_of(folder)
        roots |= files
        if files and not folder.is_relative_to(root):
            outside.append(folder_hash(folder))
    inside = (path for path in import_closure(roots, root) if path.is_relative_to(root))
    return hash_texts([hash_files(inside, root), *sorted(outside)])


def import_closure(files: Iterable[Path], root: Path = REPOSITORY) -> frozenset[Path]:
    """Return the files, every module of the rooms that they import directly or not, and the data beside each module.

    Imports are read from the source, those inside functions and conditions included, so that a kernel that is imported
    when first called counts. A text that is the name of a module counts as an import of it. Imports for type checkers
    alone do not count.
    """
    found: set[Path] = set()
    todo = set(files)
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
    """Hash the code and data of a folder of a method or suite under the folder's name, wherever it lies."""
    return hash_files(_code_of(folder), folder.parent)


def hash_files(files: Iterable[Path], root: Path) -> str:
    """Hash names (relative to ``root``) and contents, in name order; times and owners play no part.

    Of Python, what runs counts: comments, docstrings and layout do not.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in files if path.is_file()):
        digest.update(f"{path.relative_to(root).as_posix()}\0{_content(path, *_version(path))}\n".encode())
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
    path = root.joinpath(*parts)
    own = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    around = (root.joinpath(*parts[:count], "__init__.py") for count in range(1, len(parts)))
    return {*own, *(file for file in around if file.is_file())} if own else set()


def _folder_outside(module: str) -> Path | None:
    """Return the folder of a module that was imported from outside the package."""
    loaded = None if module.startswith(f"{PACKAGE}.") else sys.modules.get(module)
    return Path(loaded.__file__).parent if loaded is not None and loaded.__file__ else None


def _data_of(module: Path) -> set[Path]:
    """Return the YAML and JSON files beside a module that share its name or are named in it."""
    beside = [path for path in module.parent.iterdir() if path.suffix in (".yaml", ".json")]
    text = module.read_text(encoding="utf-8") if beside else ""
    return {path for path in beside if path.stem == module.stem or path.name in text}


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=4096)
def _reached(path: Path, root: Path, *version: int) -> frozenset[Path]:
    """Return the files that a module imports by itself, and the data beside it."""
    names = (name for name in _imports(path, *version) if name not in BOOKKEEPING)
    return frozenset(file for name in names for file in _module_files(name, root)) | _data_of(path)


@functools.lru_cache(maxsize=4096)
def _content(path: Path, *version: int) -> str:
    if path.suffix == ".py":
        return hashlib.sha256(_running(_tree(path)).encode()).hexdigest()
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), str(path))


def _running(value: object) -> str:
    """Write a syntax tree without positions, docstrings and empty fields, alike in every version of Python."""
    if isinstance(value, ast.AST):
        fields = (
            f"{name}={_running(part)}" for name, part in ast.iter_fields(value) if part is not None and part != []
        )
        return f"{type(value).__name__}({','.join(fields)})"
    if isinstance(value, list):
        return f"[{','.join(_running(part) for part in value if not _is_text_alone(part))}]"
    return repr(value)


def _is_text_alone(node: object) -> bool:
    """Return true for a statement that is a text: a docstring, of whatever stands before it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@functools.lru_cache(maxsize=4096)
def _imports(path: Path, *version: int) -> frozenset[str]:
    """Return dotted names that a module may import; ``from a import b`` gives ``a`` and ``a.b``."""
    names: set[str] = set()
    for node in _executed(_tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.ImportFrom):
            raise ValueError(f"{path}:{node.lineno}: a relative import; this project writes them out")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{PACKAGE}."):
            names.add(node.value)
    return frozenset(names)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it but the bodies of ``if TYPE_CHECKING``."""
    yield node
    guarded = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for child in node.orelse if isinstance(node, ast.If) and guarded else ast.iter_child_nodes(node):
        yield from _executed(child)
