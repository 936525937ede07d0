"""Every error this project raises on purpose: what was given, what is allowed, where it came from."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


class LongDecodeError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(LongDecodeError):
    """A configuration names something unknown or gives a value out of range."""


class CheckpointError(LongDecodeError):
    """A checkpoint cannot be loaded: missing tensors, an unsafe format, a shape that does not fit."""


class UnsupportedFamilyError(CheckpointError):
    """The checkpoint's architecture is not one the engine implements."""


class UnsupportedCellError(LongDecodeError):
    """The method cannot run at this budget, context, batch or model. Recorded with status ``unsupported``."""


class ContextLimitError(UnsupportedCellError):
    """Prompt plus generation do not fit the model's trained context."""


class DeviceMemoryError(LongDecodeError):
    """The cell does not fit the device's memory. Recorded with status ``oom``."""


class HostMemoryError(DeviceMemoryError):
    """The cell does not fit the host's memory. Recorded with status ``oom``."""


class PinnedMemoryError(UnsupportedCellError):
    """The driver refuses to pin host memory, which kernels could then not read. Recorded as ``unsupported``."""


class GateError(LongDecodeError):
    """A correctness gate failed, so no number may be reported. Recorded with status ``failed_gate``."""


class MonitorError(LongDecodeError):
    """A device cannot be asked for its clocks and processes."""


class DataUnavailableError(LongDecodeError):
    """A dataset is not on this machine; the message carries the command that fetches it."""


class ScoreTimeoutError(LongDecodeError):
    """A completion could not be scored within the deadline: neither right nor wrong. Its record gets ``timeout``."""


class StorageError(LongDecodeError):
    """A file could not be written in full, for lack of room or permission; nothing half-written is left."""


class LockError(LongDecodeError):
    """A lock cannot be had: somebody else holds it, or the place has no locks."""


def unknown_name(kind: str, given: str, valid: Iterable[str], likely: Iterable[str] = ()) -> str:
    """Return the sentence for an unknown ``given``, with the nearest of the ``valid`` names.

    Where none is as near as a slip of the pen, it is the nearest of those that are ``likely``, if there are any.
    """
    names, word = sorted(map(str, valid)), str(given).lower()
    folded, likely = {name.lower(): name for name in names}, sorted(map(str.lower, likely))
    slips = difflib.get_close_matches(word, folded, n=1, cutoff=0.8)
    near = slips or difflib.get_close_matches(word, likely or folded, n=1, cutoff=0.0)
    nearest = f"; nearest valid name: {folded.get(near[0], near[0])!r}" if near else ""
    return f"unknown {kind} {given!r}{nearest} (valid: {', '.join(names) or 'none'})"


def refuse_unknown(source: str, kind: str, given: Iterable[str], valid: Collection[str]) -> None:
    """Refuse names that are not among the valid ones.

    Raises:
        ConfigError: the message begins with ``source`` and gives the nearest valid name.
    """
    for name in given:
        if name not in valid:
            raise ConfigError(f"{source}: {unknown_name(kind, name, valid)}")
