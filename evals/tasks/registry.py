"""Every task by its name, every suite by its tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from longdecode.engine.errors import ConfigError
from longdecode.evals.names import unknown_name
from longdecode.evals.tasks.base import Task
from longdecode.evals.tasks.fidelity.suite import TASKS as FIDELITY
from longdecode.evals.tasks.longbench import ENGLISH_EIGHT, LongBench, protocols
from longdecode.evals.tasks.math import MathTask
from longdecode.evals.tasks.math_data import SETS as MATH_SETS
from longdecode.evals.tasks.mini_book import MiniBookLoss, MiniBookWrite
from longdecode.evals.tasks.mini_book_pg19 import MiniBookPg19
from longdecode.evals.tasks.mini_longgen import MiniLonggen
from longdecode.evals.tasks.mini_reason import MiniReason
from longdecode.evals.tasks.mini_recall import MiniRecall
from longdecode.evals.tasks.passkey import DEPTHS, Passkey
from longdecode.evals.tasks.ruler import RULER_TASKS, Ruler

Data = Mapping[str, Path | None]
_Factory = Callable[[Data], Task]


def _longbench(plain: bool) -> dict[str, _Factory]:
    """One factory a LongBench data set, under the name of its task."""

    def factory(dataset: str) -> _Factory:
        return lambda data: LongBench(dataset, data.get("longbench"), plain=plain)

    return {f"longbench_{dataset}{'_plain' * plain}": factory(dataset) for dataset in protocols()}


def _math(name: str) -> _Factory:
    return lambda data: MathTask(name, data.get("math"))


def _ruler(chat: bool) -> dict[str, _Factory]:
    """One factory a RULER task, under its name."""

    def factory(kind: str) -> _Factory:
        return lambda data: Ruler(kind, data.get("ruler"), chat=chat)

    return {f"ruler_{kind}{'_chat' * chat}": factory(kind) for kind in RULER_TASKS}


def _passkey(depth: int) -> _Factory:
    return lambda data: Passkey(depth)


_SUITES: Mapping[str, Mapping[str, _Factory]] = {
    "mini_recall": {
        "mini_recall_single": lambda data: MiniRecall("single"),
        "mini_recall_multikey": lambda data: MiniRecall("multikey"),
        "mini_recall_two_hop": lambda data: MiniRecall("two_hop"),
    },
    "mini_longgen": {
        "mini_longgen_15": lambda data: MiniLonggen(15),
        "mini_longgen_30": lambda data: MiniLonggen(30),
        "mini_longgen_45": lambda data: MiniLonggen(45),
    },
    "mini_reason": {
        "mini_reason_8": lambda data: MiniReason(8),
        "mini_reason_16": lambda data: MiniReason(16),
    },
    "mini_book": {
        "mini_book_loss": lambda data: MiniBookLoss(),
        "mini_book_write": lambda data: MiniBookWrite(),
        "mini_book_pg19": lambda data: MiniBookPg19(data.get("pg19")),
    },
    "fidelity": FIDELITY,
    "longbench": _longbench(plain=False),
    "longbench_plain": _longbench(plain=True),
    "ruler": _ruler(chat=False),
    "ruler_chat": _ruler(chat=True),
    "passkey": {f"passkey_depth_{depth}": _passkey(depth) for depth in DEPTHS},
    "math": {name: _math(name) for name in MATH_SETS},
}
_DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "longbench": tuple(f"longbench_{dataset}" for dataset in ENGLISH_EIGHT),
    "longbench_plain": tuple(f"longbench_{dataset}_plain" for dataset in ENGLISH_EIGHT),
}
_TASKS: Mapping[str, _Factory] = {name: make for tasks in _SUITES.values() for name, make in tasks.items()}


def get_task(name: str, data: Data | None = None) -> Task:
    """The task of this name.

    Args:
        name: one of ``task_names()``.
        data: folders of real data by data set, for the tasks that read one.

    Raises:
        ConfigError: no task has this name; the message gives the nearest one.
    """
    if name not in _TASKS:
        raise ConfigError(unknown_name("task", name, _TASKS))
    return _TASKS[name](data or {})


def task_names() -> tuple[str, ...]:
    """Names of all tasks, suite by suite."""
    return tuple(_TASKS)


def suite_names() -> tuple[str, ...]:
    """Names of all suites."""
    return tuple(_SUITES)


def suite_tasks(suite: str) -> tuple[str, ...]:
    """Names of the tasks of one suite.

    Raises:
        ConfigError: no suite has this name; the message gives the nearest one.
    """
    if suite not in _SUITES:
        raise ConfigError(unknown_name("suite", suite, _SUITES))
    return tuple(_SUITES[suite])


def default_tasks(suite: str) -> tuple[str, ...]:
    """Names of the tasks that a suite runs where a configuration names none: all of them, but for LongBench's 21.

    Raises:
        ConfigError: as for ``suite_tasks``.
    """
    return _DEFAULTS.get(suite) or suite_tasks(suite)
