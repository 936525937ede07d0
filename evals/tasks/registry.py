"""Find suites: those of this room, and every folder of ``LONGDECODE_SUITE_PATH`` that holds a suite.py.

A suite of one's own is a folder ``<name>/`` with ``suite.py``, which exports its tasks as ``SUITE``, and
``description.yaml``, whose sentences reports print; this room's are declared in its modules (``SUITES``) and
suites.yaml. One that has a question is two suites: under the protocol that its samples are made in it has its own
name, under the other one ``<name>_prompt`` or ``<name>_decoded``, and so have its tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from longdecode.engine.errors import ConfigError, unknown_name
from longdecode.engine.plugins import PluginRoom
from longdecode.evals.config_values import read_yaml
from longdecode.evals.tasks.base import Data, Question, Reasked, Suite, Task

_OWN: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_name("suites.yaml"))
"""Module, protocol and sentences of each suite of this room."""
_PROTOCOLS: Mapping[Question, str] = {
    "decoded": "The question is decoded through the method.",
    "prompt": "The question ends the prompt, which is prefilled whole.",
}


class SuiteRoom(PluginRoom):
    """This room's suites and those of the folders that users name."""

    def folders(self) -> dict[str, Path]:
        """Return the folder of every suite, by name in alphabetical order.

        Raises:
            ConfigError: a folder of the variable does not exist, or two suites share a name.
        """
        further = super().folders()
        for name in further.keys() & _OWN.keys():
            raise ConfigError(f"suite {name!r} is defined twice: {self.folder} and {further[name]}")
        return dict(sorted({**dict.fromkeys(_OWN, self.folder), **further}.items()))


SUITES = SuiteRoom("suite", Path(__file__).parent, "longdecode.evals.tasks", "suite", "LONGDECODE_SUITE_PATH")


def suite_names() -> tuple[str, ...]:
    """Return the names of all suites; one that has a question is there once more, under its other protocol.

    Raises:
        ConfigError: a folder of ``LONGDECODE_SUITE_PATH`` does not exist, two suites share a name, or a module does not
            export a fitting ``SUITE``.
    """
    return tuple(_names())


def get_suite(name: str) -> Suite:
    """Return a suite.

    Raises:
        ConfigError: no such suite, with the nearest name; or its module does not export a fitting ``SUITE``.
    """
    return _find(name)[1]


def folder_of(name: str) -> tuple[str, Question | None]:
    """Return the suite behind a suite's name, and its protocol; ``longbench_prompt`` is none of its own.

    Raises:
        ConfigError: as for ``get_suite``.
    """
    own, suite = _find(name)
    return own, suite.question


def name_under(suite: str, question: Question | None) -> str:
    """Return the name of a suite under a protocol: its own under the one that its samples are made in.

    Raises:
        ConfigError: the suite has no question to move; or as for ``get_suite``.
    """
    own = get_suite(suite).question
    if own is None and question is not None:
        raise ConfigError(f"is {question!r}, but the suite {suite} has no question that could stand elsewhere")
    return suite if question in (None, own) else f"{suite}_{question}"


def suite_tasks(suite: str) -> tuple[str, ...]:
    """Return the names of the tasks of one suite; raises as ``get_suite``."""
    return tuple(get_suite(suite).tasks)


def default_tasks(suite: str) -> tuple[str, ...]:
    """Return the tasks that a suite runs where a configuration names none; raises as ``get_suite``."""
    return get_suite(suite).default or suite_tasks(suite)


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, suite by suite."""
    return tuple(_suite_of_tasks())


def get_task(name: str, data: Data | None = None, suite: str | None = None) -> Task:
    """Return a task.

    Args:
        name: one of ``task_names()``.
        data: folders of real data by data set, for the tasks that read one.
        suite: the task's; all are searched where it is left out.

    Raises:
        ConfigError: no task has this name; the message gives the nearest one.
    """
    suites = _suite_of_tasks() if suite is None else dict.fromkeys(suite_tasks(suite), suite)
    if name not in suites:
        raise ConfigError(unknown_name("task", name, suites))
    found = get_suite(suites[name])
    task = found.tasks[name](data or {})
    task.name, task.suite, task.question = name, suites[name], found.question
    if task.chat and task.question == "decoded" and not isinstance(task, Reasked):
        # The question belongs to the user's turn, which the template would close before it.
        return Reasked(task, task.question, task.question)
    return task


def data_names() -> tuple[str, ...]:
    """Return the names of data sets that a configuration may place: those of the suites, and of head identification."""
    return tuple(sorted({"hotpotqa", *(name for suite in suite_names() for name in get_suite(suite).data)}))


def describe(suite: str) -> Mapping[str, Any]:
    """Return the sentences on a suite: ``summary`` with its protocol, and ``tasks`` by name; empty where it has none.

    Raises:
        ConfigError: no such suite.
    """
    own, question = folder_of(suite)
    path = SUITES.find(own) / "description.yaml"
    words: Mapping[str, Any] = _OWN.get(own, {})
    if path.is_file():
        words = read_yaml(path)
        if not isinstance(words, Mapping) or not isinstance(words.get("tasks", {}), Mapping):
            raise ConfigError(f"{path}: a mapping with `summary`, and `tasks` by name, is needed")
    if question is None or "summary" not in words:
        return words
    ending = "" if suite == own else f"_{question}"
    tasks = {f"{name}{ending}": text for name, text in words.get("tasks", {}).items()}
    return {**words, "summary": f"{words['summary']} {_PROTOCOLS[question]}", "tasks": tasks}


def _find(name: str) -> tuple[str, Suite]:
    names = _names()
    if name not in names:
        raise ConfigError(SUITES.unknown(name))
    own, question = names[name]
    suite = _load(own)
    return own, suite if question in (None, suite.question) else _under(suite, question)


def _load(own: str) -> Suite:
    if own in _OWN:
        return cast(Suite, import_module(f"{__package__}.{_OWN[own]['module']}").SUITES[own])
    suite = getattr(SUITES.load(own), "SUITE", None)
    if not (isinstance(suite, Suite) and isinstance(suite.tasks, Mapping) and suite.question in (None, *_PROTOCOLS)):
        needs = f"tasks by name, and as question None or one of {', '.join(_PROTOCOLS)}"
        raise ConfigError(f"{SUITES.find(own) / 'suite.py'}: SUITE must be a Suite, got {suite!r}; it needs {needs}")
    return suite


def _names() -> dict[str, tuple[str, Question | None]]:
    """Return every suite's name, under each protocol, with its name under its own and the protocol."""
    found: dict[str, tuple[str, Question | None]] = {}
    folders = SUITES.folders()
    for name in folders:
        question = _OWN[name].get("question") if name in _OWN else _load(name).question
        found[name] = (name, question)
        for other in _PROTOCOLS if question else ():
            if other == question:
                continue
            if (further := f"{name}_{other}") in folders:
                raise ConfigError(f"{folders[further]}: the name is that of {name} with `question: {other}`")
            found[further] = (name, other)
    return found


def _under(suite: Suite, question: Question) -> Suite:
    """Return a suite under the other protocol."""

    def reasked(own: str, data: Data) -> Task:
        task = suite.tasks[own](data)
        task.name = own  # which its random numbers go by: the texts are those of its own protocol
        return Reasked(task, suite.question, question)

    tasks = {f"{own}_{question}": partial(reasked, own) for own in suite.tasks}
    return replace(suite, tasks=tasks, default=tuple(f"{own}_{question}" for own in suite.default), question=question)


def _suite_of_tasks() -> dict[str, str]:
    """Return the suite of every task."""
    found: dict[str, str] = {}
    for suite in _names():
        for task in get_suite(suite).tasks:
            if task in found:
                raise ConfigError(f"task {task!r} is in two suites: {found[task]} and {suite}")
            found[task] = suite
    return found
