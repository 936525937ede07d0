"""Find suites: every folder of this room, and of ``LONGDECODE_SUITE_PATH``, that holds a suite.py.

A suite is a folder ``<name>/`` with ``suite.py``, which exports its tasks as ``SUITE``, and ``description.yaml``, whose
sentences reports print. One that has a question is two suites: under the protocol that its samples are made in it has
the folder's name, under the other one ``<name>_prompt`` or ``<name>_decoded``, and so have its tasks. Folders are
searched, and modules imported, when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import yaml

from longdecode.engine.errors import ConfigError
from longdecode.engine.plugins import PluginRoom
from longdecode.evals.names import unknown_name
from longdecode.evals.tasks.base import Data, Question, Suite, Task
from longdecode.evals.tasks.question import Reasked

SUITES = PluginRoom("suite", Path(__file__).parent, "longdecode.evals.tasks", "suite", "LONGDECODE_SUITE_PATH")
_PROTOCOLS: Mapping[Question, str] = {
    "decoded": "The question is decoded through the method.",
    "prompt": "The question ends the prompt, which is prefilled whole.",
}


def suite_names() -> tuple[str, ...]:
    """Return the names of all suites; one that has a question is there once more, under its other protocol.

    Raises:
        ConfigError: a folder of ``LONGDECODE_SUITE_PATH`` does not exist, two suites share a name, or a module does not
            export a fitting ``SUITE``.
    """
    return tuple(name for folder in SUITES.folders() for name in (folder, *_further_name(folder)))


def get_suite(name: str) -> Suite:
    """Return a suite.

    Raises:
        ConfigError: no such suite, with the nearest name; or its module does not export a fitting ``SUITE``.
    """
    folder, question = folder_of(name)
    suite = _exported(folder)
    if question == suite.question:
        return suite

    def task(own: str) -> Callable[[Data], Task]:
        assert suite.question is not None and question is not None
        return partial(_reasked, suite.tasks[own], name, suite.question, question)

    tasks = {f"{own}_{question}": task(own) for own in suite.tasks}
    return replace(suite, tasks=tasks, default=tuple(f"{own}_{question}" for own in suite.default), question=question)


def folder_of(name: str) -> tuple[str, Question | None]:
    """Return the folder behind a suite's name, and its protocol; ``longbench_prompt`` has no folder of its own.

    Raises:
        ConfigError: as for ``get_suite``.
    """
    folder, _, ending = name.rpartition("_")
    if name not in SUITES.folders() and folder in SUITES.folders() and name in _further_name(folder):
        return folder, cast(Question, ending)
    return name, _exported(name).question


def name_under(suite: str, question: Question | None) -> str:
    """Return the name of a suite's folder under a protocol: its own under the one that its samples are made in.

    Raises:
        ConfigError: the suite has no question to move; or as for ``get_suite``.
    """
    own = _exported(suite).question
    if own is None and question is not None:
        raise ConfigError(f"is {question!r}, but the suite {suite} has no question that could stand elsewhere")
    return suite if question in (None, own) else f"{suite}_{question}"


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
    suite = get_suite(suites[name])
    task = suite.tasks[name](data or {})
    task.question = suite.question
    if task.chat and task.question == "decoded" and not isinstance(task, Reasked):
        # The question belongs to the user's turn, which the template would close before it.
        return Reasked(task, task.suite, task.question, task.question)
    return task


def data_names() -> tuple[str, ...]:
    """Return the names of data sets that a configuration may place: those of the suites, and of head identification."""
    return tuple(sorted({"hotpotqa", *(name for suite in suite_names() for name in get_suite(suite).data)}))


def describe(suite: str) -> Mapping[str, Any]:
    """Return the sentences on a suite: ``summary`` with its protocol, and ``tasks`` by name; empty where it has none.

    Raises:
        ConfigError: no such suite.
    """
    folder, question = folder_of(suite)
    path = SUITES.find(folder) / "description.yaml"
    words: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if question is None or "summary" not in words:
        return words
    ending = "" if suite == folder else f"_{question}"
    tasks = {f"{name}{ending}": text for name, text in words.get("tasks", {}).items()}
    return {**words, "summary": f"{words['summary']} {_PROTOCOLS[question]}", "tasks": tasks}


def _exported(folder: str) -> Suite:
    suite = getattr(SUITES.load(folder), "SUITE", None)
    if not isinstance(suite, Suite):
        raise ConfigError(f"{SUITES.find(folder) / 'suite.py'}: SUITE must be a Suite, got {suite!r}")
    return suite


def _further_name(folder: str) -> tuple[str, ...]:
    """Return the name of a folder's suite under the other protocol; none where it has no question."""
    own = _exported(folder).question
    names = tuple(f"{folder}_{question}" for question in _PROTOCOLS if own is not None and question != own)
    for name in names:
        if name in SUITES.folders():
            raise ConfigError(
                f"{SUITES.find(name)}: the name is that of {folder} with `question: {name[len(folder) + 1 :]}`"
            )
    return names


def _reasked(make: Callable[[Data], Task], suite: str, made: Question, question: Question, data: Data) -> Task:
    return Reasked(make(data), suite, made, question)


def _suite_of_tasks() -> dict[str, str]:
    """Return the suite of every task."""
    found: dict[str, str] = {}
    for suite in suite_names():
        for task in suite_tasks(suite):
            if task in found:
                raise ConfigError(f"task {task!r} is in two suites: {found[task]} and {suite}")
            found[task] = suite
    return found
