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
        extra = [Path(entry) for entry in os.environ.get(self.variable, "").split(os.pathsep) if entry]
        found: dict[str, Path] = {}
        for room in (self.folder, *extra):
            if not room.is_dir():
                raise ConfigError(f"{self.variable} names {room}, which is not a folder")
            for folder in (module.parent for module in room.glob(f"*/{self.file}.py")):
                if folder.name in found:
                    raise ConfigError(
                        f"{self.kind} {folder.name!r} is defined twice: {found[folder.name]} and {folder}"
                    )
                found[folder.name] = folder
        return dict(sorted(found.items()))

    def find(self, name: str) -> Path:
        """Return the folder of an entry.

        Raises:
            ConfigError: no entry has this name; the message gives the nearest one.
        """
        folders = self.folders()
        if name not in folders:
            near = difflib.get_close_matches(name, folders, n=1, cutoff=0.0)
            nearest = f"; nearest valid name: {near[0]!r}" if near else ""
            valid = f"valid: {', '.join(folders)}; {self.variable} names folders with more"
            raise ConfigError(f"unknown {self.kind} {name!r}{nearest} ({valid})")
        return folders[name]

    def load(self, name: str, file: str | None = None) -> ModuleType:
        """Import a Python file of an entry's folder, ``<file>.py`` or the one that makes it an entry.

        Raises:
            ConfigError: no entry has this name.
        """
        folder, file = self.find(name), file or self.file
        if folder.parent == self.folder:
            return importlib.import_module(f"{self.package}.{name}.{file}")
        path = folder / f"{file}.py"
        qualified = f"{self.package.replace('.', '_')}_extra.{name}.{file}"
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
