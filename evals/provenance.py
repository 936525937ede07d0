"""Collect the provenance of a number: revision, hashes of code, model and data, versions, device, clocks."""

from __future__ import annotations

import datetime
import functools
import platform
import shutil
import subprocess
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from longdecode.engine.config_reader import prompt_files
from longdecode.engine.device import device_name
from longdecode.engine.weights import model_hash
from longdecode.evals.fingerprint import REPOSITORY, hash_files, hash_settings, hash_texts
from longdecode.evals.records import Provenance
from longdecode.kernels.dispatch import kernel_path

IMAGE_REVISION = ".revision"
"""Left beside the code of a container image by its build: the commit, and 1 where files differed from it."""
_PACKAGES = ("torch", "triton", "transformers", "tokenizers", "safetensors", "numpy")


def revision() -> str:
    """Return the commit of this checkout, or of the image that holds the code; ``unknown`` where neither says."""
    return _code()[0]


def is_dirty() -> bool:
    """Return whether tracked files may differ from the revision that records name."""
    return _code()[1]


def checkpoint_hash(folder: Path) -> str:
    """Hash a checkpoint folder: weights and all that changes a prompt or an answer, whatever the folder is called."""
    return hash_texts([model_hash(folder), hash_files(prompt_files(folder), folder)])


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a number."""
    installed = {name: metadata.version(name) for name in _PACKAGES if find_spec(name)}
    cuda = {"cuda": torch.version.cuda} if torch.version.cuda else {}
    return {"python": platform.python_version()} | dict.fromkeys(_PACKAGES, "absent") | installed | cuda


def origin(device: torch.device) -> dict[str, Any]:
    """Return what made a file: the device, this code and the versions of packages."""
    return {"device": device_name(device), "revision": revision(), "dirty": is_dirty(), "versions": versions()}


def collect(
    *, settings: Mapping[str, Any], code: str, model: str, data: str, device: torch.device, dtype: torch.dtype,
    clock_mhz: int | None = None,
) -> Provenance:  # fmt: skip
    """Build the provenance of one cell from its settings, three hashes and the machine it runs on."""
    name, numbers = device_name(device), str(dtype).removeprefix("torch.")
    return Provenance(
        revision=revision(), dirty=is_dirty(), settings_hash=hash_settings(settings, name, numbers), code_hash=code,
        model_hash=model, data_hash=data, device=name, dtype=numbers, sm_clock_mhz=clock_mhz,
        versions=versions() | {"kernels": kernel_path(device, dtype)},
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


@functools.cache
def _code() -> tuple[str, bool]:
    """Return the commit and whether files may differ from it; of a checkout git tells, elsewhere an image's build."""
    if (commit := _git("rev-parse", "HEAD")) is not None:
        return commit, bool(_git("status", "--porcelain", "--untracked-files=no"))
    path = REPOSITORY / IMAGE_REVISION
    if (REPOSITORY / ".git").exists() or not path.is_file():
        return "unknown", True
    commit, dirty = path.read_text().split()
    return commit, dirty != "0"


def _git(*arguments: str) -> str | None:
    """Return git's answer about this repository; ``None`` where it is no checkout of its own or git is absent."""
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        return None
    command = ["git", "-c", f"safe.directory={REPOSITORY}", "-C", str(REPOSITORY)]  # in a container: another's files
    answer = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None
