"""Look at this machine: what runs need, whether it is here, and what to do where it is not."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

NEEDED = ("torch", "transformers", "numpy", "pandas", "pyarrow", "pydantic", "scipy", "filelock")
FOR_RUNS = ("snakemake", "datasets", "lm_eval", "altair", "vl_convert", "jinja2")
LEAST_DISK_GB = 10


def examined() -> Iterator[tuple[str, bool, str]]:
    """Yield what was looked at, whether it is as wanted, and what was found or what to do."""
    yield "python", sys.version_info >= (3, 11), f"{'.'.join(map(str, sys.version_info[:3]))}; 3.11 or later is needed"
    for title, names, advice in (("packages", NEEDED, ""), ("for runs", FOR_RUNS, "[bench,report]")):
        missing = ", ".join(name for name in names if not importlib.util.find_spec(name))
        yield title, not missing, f"missing: {missing}; pip install 'longdecode{advice}'" if missing else "all here"
    yield from _torch()
    yield "bubblewrap", bool(shutil.which("bwrap")), _sandbox()
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    yield "disk", free >= LEAST_DISK_GB, f"{free:,.0f} GB free here; {LEAST_DISK_GB} and each checkpoint are needed"
    cache, writable = cache_folder()
    yield "cache", writable, f"{cache}; XDG_CACHE_HOME names another"
    refusal = reached()
    yield "network", not refusal, f"{refusal}; the demo needs none" if refusal else "the hub can be reached"


def _torch() -> Iterator[tuple[str, bool, str]]:
    if not importlib.util.find_spec("torch"):
        yield "torch", False, "pip install torch"
        return
    import torch

    yield "torch", True, torch.__version__
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        yield "gpu", True, f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, {memory:.0f} GiB"
    else:
        yield "gpu", False, "none that torch sees: kernels run as plain torch on the CPU, and times are the CPU's"
    names = metadata.packages_distributions().get("triton")  # torch's own builds call it pytorch-triton
    yield "triton", bool(names), metadata.version(names[0]) if names else "not installed: needed on a GPU alone"


def _sandbox() -> str:
    """Try the sandbox of model-written code, which a container may forbid."""
    if not shutil.which("bwrap"):
        return "not here; suite code stays `unsupported`: apt-get install bubblewrap"
    tried = subprocess.run(["bwrap", "--ro-bind", "/", "/", "--unshare-all", "true"], capture_output=True, check=False)
    return "here, but this machine forbids namespaces; suite code stays `unsupported`" if tried.returncode else "works"


def cache_folder() -> tuple[Path, bool]:
    """Return the folder of caches, made where it is not there, and whether it can be written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME", "~")).expanduser() / ".cache")
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
    return cache, cache.is_dir() and os.access(cache, os.W_OK)


def reached() -> str:
    """Say that the hub cannot be reached, and why; nothing where it can."""
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        socket.create_connection((host, 443), timeout=3).close()
    except OSError as error:
        return f"{host} cannot be reached ({error})"
    return ""
