"""Reading typed values out of a configuration, with errors that name file, key, value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from longdecode.engine.errors import ConfigError
from longdecode.evals.names import unknown_name

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


class Section:
    """A mapping of the configuration that knows where it stands.

    Args:
        values: the mapping as read from YAML.
        source: the file it came from.
        key: its dotted place in the file; empty for the whole.
    """

    def __init__(self, values: Any, source: str, key: str = ""):
        self.source = source
        self.key = key
        if values is None:
            values = {}
        if not isinstance(values, Mapping):
            self.refuse("", f"is {values!r}; a mapping is needed")
        self.values: Mapping[str, Any] = values

    def refuse(self, name: str, problem: str) -> NoReturn:
        """Raise the error for one key of this section."""
        where = ".".join(part for part in (self.key, name) if part)
        raise ConfigError(f"{self.source}: {where or 'the file'}: {problem}")

    def allow(self, kind: str, valid: Iterable[str]) -> None:
        """Refuse keys that are not among the valid ones."""
        names = tuple(valid)
        for name in self.values:
            if name not in names:
                self.refuse(str(name), unknown_name(kind, name, names))

    def section(self, name: str) -> Section:
        """A mapping below this one; an empty one where the key is absent or null."""
        return Section(self.values.get(name), self.source, f"{self.key}.{name}" if self.key else name)

    def named_sections(self) -> Iterator[tuple[str, Section]]:
        """Every entry as a section; names become folders, so they keep to letters, digits and ``_ . + -``."""
        for name in self.values:
            if not isinstance(name, str) or not _FOLDER_NAME.fullmatch(name):
                self.refuse(str(name), f"the name {name!r} is not made of letters, digits and _ . + -")
            yield name, self.section(name)

    def text(self, name: str, default: str | None = None) -> str:
        """A non-empty string."""
        value = self._get(name, default)
        if not isinstance(value, str) or not value:
            self.refuse(name, f"is {value!r}; a non-empty text is needed")
        return value

    def folder_name(self, name: str, default: str | None = None) -> str:
        """A string that can name a folder."""
        value = self.text(name, default)
        if not _FOLDER_NAME.fullmatch(value):
            self.refuse(name, f"{value!r} is not made of letters, digits and _ . + -")
        return value

    def optional_text(self, name: str) -> str | None:
        """A non-empty string, or ``None`` where the key is absent or null."""
        return None if self.values.get(name) is None else self.text(name)

    def choice(self, name: str, kind: str, valid: Iterable[str], default: str | None = None) -> str:
        """One of the valid names."""
        names = tuple(valid)
        value = self.text(name, default)
        if value not in names:
            self.refuse(name, unknown_name(kind, value, names))
        return value

    def integer(self, name: str, minimum: int, default: int | None = None) -> int:
        """A whole number of at least ``minimum``; true and false are not numbers."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            self.refuse(name, f"is {value!r}; a whole number of at least {minimum} is needed")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A number between ``low`` and ``high``, both allowed."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.refuse(name, f"is {value!r}; a number from {low} to {high} is needed")
        return float(value)

    def sequence(self, name: str) -> list[Any]:
        """A non-empty list without repetitions."""
        value = self._get(name, None)
        if not isinstance(value, list) or not value:
            self.refuse(name, f"is {value!r}; a list of at least one entry is needed")
        for index, entry in enumerate(value):
            if repr(entry) in map(repr, value[:index]):  # 1 and 1.0 are different budgets
                self.refuse(name, f"{entry!r} stands twice in {value!r}")
        return value

    def integers(self, name: str, minimum: int) -> tuple[int, ...]:
        """A non-empty list of whole numbers of at least ``minimum``."""
        values = self.sequence(name)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
                self.refuse(name, f"{value!r} in the list; whole numbers of at least {minimum} are needed")
        return tuple(values)

    def _get(self, name: str, default: Any) -> Any:
        if name not in self.values:
            if default is None:
                self.refuse(name, "is missing")
            return default
        return self.values[name]
