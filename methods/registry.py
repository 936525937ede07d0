"""Find methods: every folder of this room, and of ``LONGDECODE_METHOD_PATH``, that holds a method.py.

A method is a folder ``<name>/`` with ``method.py``, which exports its class as ``METHOD``, ``card.yaml``, and
``rule.py``, which exports its rule as ``RULE``. Folders are searched, and modules imported, when asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from longdecode.engine.errors import ConfigError
from longdecode.engine.plugins import PluginRoom
from longdecode.methods.card import Card, read_card

if TYPE_CHECKING:
    from longdecode.engine.attention import AttentionMethod
    from longdecode.methods.rule import Rule

METHOD_PATH_VARIABLE = "LONGDECODE_METHOD_PATH"
"""Environment variable with further folders of methods, separated like PATH."""

METHODS = PluginRoom("method", Path(__file__).parent, "longdecode.methods", "method", METHOD_PATH_VARIABLE)


def method_names() -> tuple[str, ...]:
    """Return the names of all methods on hand, sorted.

    Raises:
        ConfigError: a folder of ``LONGDECODE_METHOD_PATH`` does not exist, or two methods share a name.
    """
    return tuple(METHODS.folders())


def get_method(name: str) -> type[AttentionMethod]:
    """Return the class of a method.

    Raises:
        ConfigError: no such method, with the nearest valid name; or its module does not export a fitting ``METHOD``.
    """
    from longdecode.engine.attention import AttentionMethod  # imports torch, which naming methods does not need

    folder = METHODS.find(name)
    method = getattr(METHODS.load(name), "METHOD", None)
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
    path = METHODS.find(name) / "card.yaml"
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

    folder = METHODS.find(name)
    if not (folder / "rule.py").exists():
        return None
    rule = getattr(METHODS.load(name, "rule"), "RULE", None)
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise ConfigError(f"{folder / 'rule.py'}: RULE must be a subclass of Rule, got {rule!r}")
    return rule
