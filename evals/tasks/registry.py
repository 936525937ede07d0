"""Find suites: every folder of this room, and of ``LONGDECODE_SUITE_PATH``, that holds a suite.py.

A suite is a folder ``<name>/`` with ``suite.py``, which exports its tasks as ``SUITE``, and ``description.yaml``, whose
sentences reports print. Folders are searched, and modules imported, when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from longdecode.engine.errors import ConfigError
from longdecode.engine.plugins import PluginRoom
from longdecode.evals.names import unknown_name
from longdecode.evals.tasks.base import Data, Suite, Task

SUITES = PluginRoom("suite", Path(__file__).parent, "longdecode.evals.tasks", "suite", "LONGDECODE_SUITE_PATH")


def suite_names() -> tuple[str, ...]:
    """Return the names of all suites.

    Raises:
        ConfigError: a folder of ``LONGDECODE_SUITE_PATH`` does not exist, or two suites share a name.
    """
    return tuple(SUITES.folders())


def get_suite(name: str) -> Suite:
    """Return a suite.

    Raises:
        ConfigError: no such suite, with the nearest name; or its module does not export a fitting ``SUITE``.
    """
    suite = getattr(SUITES.load(name), "SUITE", None)
    if not isinstance(suite, Suite):
        raise ConfigError(f"{SUITES.find(name) / 'suite.py'}: SUITE must be a Suite, got {suite!r}")
    return suite


def suite_tasks(suite: str) -> tuple[str, ...]:
    """Return the names of the tasks of one suite.

    Raises:
        ConfigError: as for ``get_suite``.
    """
    return tuple(get_suite(suite).tasks)


def default_tasks(suite: str) -> tuple[str, ...]:
    """Return the tasks that a suite runs where a configuration names none.

    Raises:
        ConfigError: as for ``get_suite``.
    """
    return get_suite(suite).default or suite_tasks(suite)


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, suite by suite."""
    return tuple(_suite_of_tasks())


def get_task(name: str, data: Data | None = None) -> Task:
    """Return a task.

    Args:
        name: one of ``task_names()``.
        data: folders of real data by data set, for the tasks that read one.

    Raises:
        ConfigError: no task has this name; the message gives the nearest one.
    """
    suites = _suite_of_tasks()
    if name not in suites:
        raise ConfigError(unknown_name("task", name, suites))
    return get_suite(suites[name]).tasks[name](data or {})


def data_names() -> tuple[str, ...]:
    """Return the names of data sets that a configuration may place: those of the suites, and of head identification."""
    return tuple(sorted({"hotpotqa", *(name for suite in suite_names() for name in get_suite(suite).data)}))


def describe(suite: str) -> Mapping[str, Any]:
    """Return the sentences on a suite: ``summary``, and ``tasks`` by name; empty where the folder has none.

    Raises:
        ConfigError: no such suite.
    """
    path = SUITES.find(suite) / "description.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _suite_of_tasks() -> dict[str, str]:
    """Return the suite of every task."""
    found: dict[str, str] = {}
    for suite in suite_names():
        for task in suite_tasks(suite):
            if task in found:
                raise ConfigError(f"task {task!r} is in two suites: {found[task]} and {suite}")
            found[task] = suite
    return found
