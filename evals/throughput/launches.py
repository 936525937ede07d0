"""Launch settings that the kernels chose, written into every speed record."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import longdecode.kernels.dispatch as _kernels_room

_CHOOSERS = "choose_"


class Launches:
    """Settings by op, filled while ``recorded`` is open; every different choice of an op is kept, in order."""

    def __init__(self) -> None:
        self.by_op: dict[str, list[dict[str, Any]]] = {}

    def add(self, op: str, chosen: object) -> None:
        """Note one choice, if it is new: a dataclass of settings, or ``None``, by which an op leaves it to torch."""
        if chosen is None or (is_dataclass(chosen) and not isinstance(chosen, type)):
            settings = {"path": "torch"} if chosen is None else asdict(chosen)
            known = self.by_op.setdefault(op, [])
            if settings not in known:
                known.append(settings)

    def as_record(self) -> dict[str, Any]:
        """Return one mapping: an op to its settings, or to a list where it was launched in several ways."""
        return {op: found[0] if len(found) == 1 else found for op, found in sorted(self.by_op.items())}


@contextmanager
def recorded(device: torch.device) -> Iterator[Launches]:
    """Note what every GPU op's ``choose_launch`` returns while the block runs; nothing where no kernels are launched.

    The functions are wrapped where their modules look them up, so that the settings come from the launch itself,
    whatever a chooser takes as arguments.
    """
    launches = Launches()
    if device.type != "cuda":
        yield launches
        return
    undo: list[tuple[ModuleType, str, Any]] = []
    for op, module in _gpu_modules():
        for name, original in list(vars(module).items()):
            if name.startswith(_CHOOSERS) and _is_host_function(original):
                undo.append((module, name, original))
                setattr(module, name, _wrapped(launches, op, original))
    try:
        yield launches
    finally:
        for module, name, original in undo:
            setattr(module, name, original)


def _wrapped(launches: Launches, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def choose(*args: Any, **kwargs: Any) -> Any:
        chosen = original(*args, **kwargs)
        launches.add(op, chosen)
        return chosen

    return choose


def _is_host_function(value: object) -> bool:
    """Return whether it is a Python function, cached or not; Triton functions are looked up by kernels too."""
    return inspect.isfunction(value) or hasattr(value, "cache_info")


def _gpu_modules() -> Iterator[tuple[str, ModuleType]]:
    """Return the Triton modules of all ops."""
    room = Path(_kernels_room.__file__).parent
    for file in sorted(room.glob("*/gpu*.py")):
        op = file.parent.name
        yield op, importlib.import_module(f"longdecode.kernels.{op}.{file.stem}")
