"""Start a method: the worked example of docs/adding-a-method.md, which a test holds to the gate, under another name."""

from __future__ import annotations

import re
from pathlib import Path

from longdecode.engine.errors import ConfigError
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.methods.registry import METHODS

EXAMPLE = "recent_only"
FILES = ("method.py", "rule.py", "card.yaml")


def write_method(name: str, into: Path) -> Path:
    """Write the three files of a method and return their folder.

    Raises:
        ConfigError: the name is taken or is no module's name, or this is no checkout of the project.
    """
    page, folder = REPOSITORY / "docs" / "adding-a-method.md", into / name
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise ConfigError(f"{name!r}: a method's name has lower-case letters, digits and _, and begins with a letter")
    if name in METHODS.folders() or folder.exists():
        raise ConfigError(f"{name!r} is a method already, or {folder} is there")
    if not page.is_file():
        raise ConfigError(f"{page} is not there: start a method in a checkout of the project")
    text = page.read_text(encoding="utf-8")
    camel = "".join(part.capitalize() for part in name.split("_"))
    folder.mkdir(parents=True)
    for file in FILES:
        found = re.search(rf"`{EXAMPLE}/{re.escape(file)}`:\n\n```\w+\n(.*?)```", text, re.DOTALL)
        if found is None:
            raise ConfigError(f"{page}: the example has no {file}")
        (folder / file).write_text(found[1].replace(EXAMPLE, name).replace("RecentOnly", camel), encoding="utf-8")
    return folder
