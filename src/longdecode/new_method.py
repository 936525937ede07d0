"""Start a method: the worked example of docs/adding-a-method.md, which a test holds to the gate, under another name."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from longdecode.engine.errors import ConfigError
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.methods.registry import METHODS

EXAMPLE = "recent_only"


def write_method(name: str, into: Path) -> Path:
    """Write the three files of a method and return their folder.

    Raises:
        ConfigError: the name is taken, is no module's name or would hide one that the code needs; or this is no
            checkout of the project.
    """
    page, folder = REPOSITORY / "docs" / "adding-a-method.md", into / name
    if not page.is_file():
        raise ConfigError(f"{page} is not there: start a method in a checkout of the project")
    blocks = re.findall(rf"`{EXAMPLE}/(\S+)`:\n\n```\w+\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    camel = "".join(part.capitalize() for part in name.split("_"))
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise ConfigError(f"{name!r}: a method's name has lower-case letters, digits and _, and begins with a letter")
    if {name, camel} & {*keyword.kwlist, *re.findall("[A-Z]\\w+", str(blocks).replace("RecentOnly", ""))}:
        raise ConfigError(f"{name!r}: {name} or {camel} means something in Python or in a method's code")
    if name in METHODS.folders() or folder.exists() or folder.with_suffix(".py").exists():
        raise ConfigError(f"{name!r} is a method already, or {folder} or {folder}.py is there")
    folder.mkdir(parents=True)
    for file, text in blocks:
        (folder / file).write_text(text.replace(EXAMPLE, name).replace("RecentOnly", camel), encoding="utf-8")
    return folder
