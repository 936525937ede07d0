"""Find what users may add: folders of a room, and of the folders that an environment variable names."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from longdecode.engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PluginRoom:
    """A room whose every folder with a certain file is an entry of that folder's name.

    Folders are searched, and modules imported, when asked for.

    Args:
        kind: the word for one entry in errors.
        folder: the room.
        package: dotted name of the room.
        file: stem of the Python file that makes a folder an entry.
        variable: environment variable with further rooms, separated like PATH.
    """

    kind: str
    folder: Path
    package: str
    file: str
    variable: str

    def folders(self) -> dict[str, Path]:
        """Return the folder of every entry, by name in alphabetical order.

        Raises:
            ConfigError: a folder of the variable does not exist, or two entries share a name.
        """
        found: dict[str, Path] = {}
        for room in (self.folder, *self._further()):
            if not room.is_dir():
                raise ConfigError(f"{self.variable} names {room}, which is not a folder")
            for folder in self._held(room):
                if folder.name in found:
                    raise ConfigError(
                        f"{self.kind} {folder.name!r} is defined twice: {found[folder.name]} and {folder}"
                    )
                found[folder.name] = folder
        return dict(sorted(found.items()))

    def find(self, name: str) -> Path:
        """Return the folder of an entry.

        Raises:
            ConfigError: no entry has this name (``unknown``).
        """
        folders = self.folders()
        if name not in folders:
            raise ConfigError(self.unknown(name))
        return folders[name]

    def unknown(self, name: str) -> str:
        """Say that no entry has a name, and what each folder of the variable holds.

        The nearest name is given too, but not where a folder holds nothing: the variable is then the likelier mistake.
        """
        folders, further = self.folders(), self._further()
        empty = not all(map(self._held, further))
        near = [] if empty else difflib.get_close_matches(name.lower(), folders, n=1, cutoff=0.0)
        nearest = f"; nearest valid name: {near[0]!r}" if near else ""
        searched = f"names {', '.join(map(self._contents, further))}" if further else "names no further folder"
        return f"unknown {self.kind} {name!r}{nearest} (valid: {', '.join(folders)}); {self.variable} {searched}"

    def load(self, name: str, file: str | None = None) -> ModuleType:
        """Import a Python file of an entry's folder, ``<file>.py`` or the one that makes it an entry.

        Raises:
            ConfigError: no entry has this name, or a file of a further room cannot be imported.
        """
        folder, file = self.find(name), file or self.file
        if folder.parent == self.folder:
            return importlib.import_module(f"{self.package}.{name}.{file}")
        path = folder / f"{file}.py"
        qualified = f"{self.package.replace('.', '_')}_extra.{name}.{file}"
        if (loaded := sys.modules.get(qualified)) is not None and loaded.__file__ == str(path):
            return loaded
        spec = importlib.util.spec_from_file_location(qualified, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{path}: cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[qualified] = module  # dataclasses look their module up while it runs
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # a file of the user's may raise anything
            del sys.modules[qualified]
            said = " ".join(str(error).split())
            raise ConfigError(f"{path}: cannot be imported: {type(error).__name__}: {said}") from error
        return module

    def _further(self) -> list[Path]:
        return [Path(entry) for entry in os.environ.get(self.variable, "").split(os.pathsep) if entry]

    def _held(self, room: Path) -> list[Path]:
        return [module.parent for module in room.glob(f"*/{self.file}.py")]

    def _contents(self, room: Path) -> str:
        if held := self._held(room):
            return f"{room} (holds {', '.join(sorted(folder.name for folder in held))})"
        if (room / f"{self.file}.py").is_file():
            return f"{room} (itself a {self.kind}: name the folder above it)"
        return f"{room} (holds no <name>/{self.file}.py)"
