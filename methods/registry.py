"""Find methods: every folder of this room, and of ``LONGDECODE_METHOD_PATH``, that holds a method.py.

A method is a folder ``<name>/`` with ``method.py``, which exports its class as ``METHOD``, ``card.yaml``, and
``rule.py``, which exports its rule as ``RULE``. Folders are searched, and modules imported, when asked for.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from longdecode.engine.errors import ConfigError
from longdecode.methods.card import Card, read_card

if TYPE_CHECKING:
    from longdecode.engine.attention import AttentionMethod
    from longdecode.methods.rule import Rule

METHOD_PATH_VARIABLE = "LONGDECODE_METHOD_PATH"
"""Environment variable with further folders of methods, separated like PATH."""

_ROOM = Path(__file__).parent


def method_names() -> tuple[str, ...]:
    """Return the names of all methods on hand, sorted.

    Raises:
        ConfigError: a folder of ``LONGDECODE_METHOD_PATH`` does not exist, or two methods share a name.
    """
    return tuple(sorted(_folders()))


def get_method(name: str) -> type[AttentionMethod]:
    """Return the class of a method.

    Raises:
        ConfigError: no such method, with the nearest valid name; or its module does not export a fitting ``METHOD``.
    """
    from longdecode.engine.attention import AttentionMethod  # imports torch, which naming methods does not need

    folder = _folder(name)
    module = _import(name, folder, "method")
    method = getattr(module, "METHOD", None)
    if not (isinstance(method, type) and issubclass(method, AttentionMethod)):
        raise ConfigError(f"{folder / 'method.py'}: METHOD must be a subclass of AttentionMethod, got {method!r}")
    if method.name != name:
        raise ConfigError(f"{folder / 'method.py'}: METHOD is named {method.name!r}, its folder {name!r}")
    return method


def load_card(name: str) -> Card:
    """Return the card of a method.

    Raises:
        ConfigError: no such method, or its card does not fit the schema or names another method.
    """
    path = _folder(name) / "card.yaml"
    card = read_card(path)
    if card.name != name:
        raise ConfigError(f"{path}: the card is named {card.name!r}, its folder {name!r}")
    return card


def get_rule(name: str) -> type[Rule] | None:
    """Return the rule of a method, ``None`` where its folder has no rule.py.

    Raises:
        ConfigError: no such method, or rule.py does not export a fitting ``RULE``.
    """
    from longdecode.methods.rule import Rule

    folder = _folder(name)
    if not (folder / "rule.py").exists():
        return None
    rule = getattr(_import(name, folder, "rule"), "RULE", None)
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise ConfigError(f"{folder / 'rule.py'}: RULE must be a subclass of Rule, got {rule!r}")
    return rule


def _folder(name: str) -> Path:
    folders = _folders()
    if name not in folders:
        near = difflib.get_close_matches(name, sorted(folders), n=1, cutoff=0.0)
        nearest = f"; nearest valid name: {near[0]!r}" if near else ""
        raise ConfigError(f"unknown method {name!r}{nearest} (valid: {', '.join(sorted(folders))})")
    return folders[name]


def _folders() -> dict[str, Path]:
    """Return the folder of every method, by name."""
    extra = [Path(entry) for entry in os.environ.get(METHOD_PATH_VARIABLE, "").split(os.pathsep) if entry]
    found: dict[str, Path] = {}
    for room in (_ROOM, *extra):
        if not room.is_dir():
            raise ConfigError(f"{METHOD_PATH_VARIABLE} names {room}, which is not a folder")
        for module in room.glob("*/method.py"):
            folder = module.parent
            if folder.name in found:
                raise ConfigError(f"method {folder.name!r} is defined twice: {found[folder.name]} and {folder}")
            found[folder.name] = folder
    return found


def _import(name: str, folder: Path, file: str) -> ModuleType:
    """Import ``<file>.py`` of a method's folder."""
    if folder.parent == _ROOM:
        return importlib.import_module(f"longdecode.methods.{name}.{file}")
    path = folder / f"{file}.py"
    qualified = f"longdecode_extra_methods.{name}" if file == "method" else f"longdecode_extra_methods.{name}.{file}"
    loaded = sys.modules.get(qualified)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(qualified, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = module  # dataclasses look their module up while it runs
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[qualified]
        raise
    return module
