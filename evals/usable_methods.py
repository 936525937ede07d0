"""Refuse a configuration whose methods cannot be used: their jobs would say so only after others had run."""

from __future__ import annotations

from longdecode.engine.errors import ConfigError
from longdecode.evals.config_values import wrong
from longdecode.methods.registry import METHODS, get_method, get_rule


def require_usable(name: str) -> None:
    """Import a method and its rule.

    Args:
        name: a method that has a folder.

    Raises:
        PydanticCustomError: ``method.py`` or ``rule.py`` cannot be imported, or exports no fitting ``METHOD`` or
            ``RULE``; the message names the file.
    """
    for file, load in (("method.py", get_method), ("rule.py", get_rule)):
        try:
            load(name)
        except ConfigError as error:
            raise wrong(str(error)) from None
        except Exception as error:  # a file of the user's may raise anything
            path = METHODS.find(name) / file
            raise wrong(f"{path}: cannot be imported: {type(error).__name__}: {error}") from None
