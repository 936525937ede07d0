"""LongDecode: long-context decoding, measured. ``longdecode.generate`` is the library in one call.

What the call needs is imported when it is first asked for: planning a run imports this package and no torch.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Answer", "generate"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from longdecode import api

        return getattr(api, name)
    raise AttributeError(f"module 'longdecode' has no attribute {name!r}")
