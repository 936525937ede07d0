"""Hashes of code, files and texts; apart from provenance, so that reading a workflow does not import torch."""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = "longdecode"
BOOKKEEPING = frozenset(
    f"{PACKAGE}.{name}"
    for name in (
        "engine.plugins", "evals.config_values", "evals.hashing", "evals.identification_spec", "evals.journal",
        "evals.ledger", "evals.migrations", "evals.names", "evals.provenance", "evals.records", "evals.run_config",
        "evals.storage", "evals.tasks.registry", "evals.throughput.spec", "methods.card", "methods.conformance",
        "methods.conformance_bench", "methods.conformance_rules", "methods.registry", "methods.rule",
    )
)  # fmt: skip
"""Modules that choose, check, describe or store what is run; a closure stops at them. What they choose is a root."""
_CODE_SUFFIXES = (".py", ".yaml", ".json")


def quality_code_hash(method: str, suite: str, root: Path = REPOSITORY) -> str:
    """Hash the code behind a score: the quality job, the suite's module and the method, with all that they import.

    Args:
        method: name of the method and of its folder.
        suite: name of the suite and of its folder.
        root: folder of the rooms.
    """
    suites = [folder / "suite.py" for folder in _folders("evals/tasks", "LONGDECODE_SUITE_PATH", suite, root)]
    return code_hash([f"{PACKAGE}.evals.quality_job"], [method], root, suites)


def speed_code_hash(bench: str, methods: Iterable[str], root: Path = REPOSITORY) -> str:
    """Hash the code behind a time: the bench's module and the methods timed, with all that they import.

    Args:
        bench: ``decode`` or ``kernels``, a module of ``evals/throughput``.
        methods: names of methods; those without a folder, such as ceilings, are in the bench's closure.
        root: folder of the rooms.
    """
    return code_hash([f"{PACKAGE}.evals.throughput.{bench}"], methods, root)


def code_hash(
    modules: Iterable[str], methods: Iterable[str], root: Path = REPOSITORY, files: Iterable[Path] = ()
) -> str:
    """Hash the import closure of some modules, of some files and of the folders of some methods.

    A method's folder, in the room or in a folder that ``LONGDECODE_METHOD_PATH`` names, counts whole: code and card.

    Raises:
        FileNotFoundError: a module does not exist.
    """
    roots = set(files)
    for module in modules:
        if not (found := _module_files(module, root)):
            raise FileNotFoundError(f"no module {module} under {root}")
        roots |= found
    for method in set(methods):
        for folder in _folders("methods", "LONGDECODE_METHOD_PATH", method, root):
            roots |= {path for path in folder.rglob("*") if path.suffix in _CODE_SUFFIXES}
    closure = import_closure(roots, root)
    inside = {path for path in closure if path.is_relative_to(root)}
    outside = sorted(hash_files([path], path.parent.parent) for path in closure - inside)
    return hash_texts([hash_files(inside, root), *outside])


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
            names = {name for name in _imports(path, *_version(path)) if name not in BOOKKEEPING}
            reached = {file for name in names for file in _module_files(name, root)} | _data_of(path)
            todo |= reached - found
    return frozenset(found)


def file_hashes(files: Iterable[Path]) -> list[str]:
    """Hash each file's content under its own name; a missing file counts as nothing."""
    return [hash_files([path], path.parent) for path in files]


def hash_files(files: Iterable[Path], root: Path) -> str:
    """Hash names (relative to ``root``) and contents, in name order; times and owners play no part."""
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


def _folders(room: str, variable: str, name: str, root: Path) -> list[Path]:
    """Return the folder of a plugin, in its room or in a folder that an environment variable names."""
    entries = filter(None, os.environ.get(variable, "").split(os.pathsep))
    return [folder for base in (root / room, *map(Path, entries)) if (folder := base / name).is_dir()]


def _module_files(module: str, root: Path) -> set[Path]:
    """Return the file of a module of ours and the ``__init__`` of each package around it; empty for any other name."""
    package, *parts = module.split(".")
    if package != PACKAGE or not parts or not all(parts):
        return set()
    path = root.joinpath(*parts)
    own = [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()]
    around = (root.joinpath(*parts[:count], "__init__.py") for count in range(1, len(parts)))
    return {*own, *(file for file in around if file.is_file())} if own else set()


def _data_of(module: Path) -> set[Path]:
    """Return the YAML and JSON files beside a module that share its name or are named in it."""
    beside = [path for path in module.parent.iterdir() if path.suffix in (".yaml", ".json")]
    text = module.read_text(encoding="utf-8") if beside else ""
    return {path for path in beside if path.stem == module.stem or path.name in text}


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=4096)
def _content(path: Path, *version: int) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@functools.lru_cache(maxsize=4096)
def _imports(path: Path, *version: int) -> frozenset[str]:
    """Return dotted names that a module may import; ``from a import b`` gives ``a`` and ``a.b``."""
    names: set[str] = set()
    for node in _executed(ast.parse(path.read_bytes(), str(path))):
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
