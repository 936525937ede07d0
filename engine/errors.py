"""Every error this project raises on purpose: what was given, what is allowed, where it came from."""


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
