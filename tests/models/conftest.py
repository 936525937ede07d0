"""A cache of each test's own, and tiny GGUF files written once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_gguf import TinyGguf, write_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and no folder of wheels."""
    monkeypatch.setenv("LONGDECODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LONGDECODE_WHEELS", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyGguf]:
    """Return a function that writes a random model of a family, once for each of its arguments."""
    gguf = pytest.importorskip("gguf", reason="gguf writes and reads the files")
    made: dict[tuple[object, ...], TinyGguf] = {}

    def write(family: str = "qwen2", kind: str = "Q8_0", own_head: bool = True) -> TinyGguf:
        key = (family, kind, own_head)
        if key not in made:
            made[key] = write_gguf(gguf, tmp_path_factory.mktemp("gguf") / "tiny.gguf", *key)
        return made[key]

    return write
