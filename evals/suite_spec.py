"""Settings of a suite; its key ``question`` makes one suite of the run for each protocol that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_args

from longdecode.engine.errors import ConfigError
from longdecode.evals import config_values as typed
from longdecode.evals.tasks.base import Question
from longdecode.evals.tasks.registry import SUITES, folder_of, name_under, suite_names, suite_tasks


@dataclass(frozen=True, slots=True)
class SuiteSpec:
    """The part of a suite that runs: contexts (tokens), samples of each task, samples decoded at once, tasks.

    ``question`` is where the question stands, or several of it: each is a suite of its own in the run
    (``with_protocols``). ``None`` is the suite's own protocol.
    """

    contexts: typed.Sizes
    samples: typed.Count
    batch: typed.Count = 1
    tasks: Annotated[typed.Names, typed.OrNull(tuple)] = ()
    question: Question | Annotated[tuple[Question, ...], typed.SOME, typed.Distinct] | None = None


def with_protocols(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's values with each suite under its protocols, wherever they name it.

    ``longbench: {question: [decoded, prompt]}`` becomes ``longbench`` and ``longbench_prompt``; variants
    that are restricted to ``longbench`` run on both.
    """
    suites = values.get("suites")
    if not isinstance(suites, Mapping):
        return dict(values)
    found: dict[Any, dict[Any, Any]] = {suite: _protocols(suite, entry) for suite, entry in suites.items()}

    def renamed(entry: Any) -> Any:
        named = entry.get("suites") if isinstance(entry, Mapping) else None
        if not isinstance(named, Sequence) or isinstance(named, str):
            return entry
        return {**entry, "suites": [name for suite in named for name in _names(found, suite)]}

    filled = {**values, "suites": {name: entry for under in found.values() for name, entry in under.items()}}
    if isinstance(methods := values.get("methods"), Mapping):
        filled["methods"] = {label: renamed(entry) for label, entry in methods.items()}
    return filled


def _names(found: Mapping[Any, Mapping[Any, Any]], suite: Any) -> Sequence[Any]:
    return list(found[suite]) if isinstance(suite, str) and suite in found else [suite]


def _protocols(suite: Any, entry: Any) -> dict[Any, Any]:
    """Return the entries of one suite by the names of its protocols; a suite that does not exist as it is."""
    key = f"suites.{suite}"
    if not isinstance(suite, str) or suite not in suite_names():
        return {suite: entry}
    if suite not in SUITES.folders():
        folder, question = folder_of(suite)
        raise typed.wrong(f"is the suite {folder} with `question: {question}`; write that", key)
    given = entry.get("question") if isinstance(entry, Mapping) else None
    if given is None:
        return {suite: entry}
    listed = tuple(given) if isinstance(given, list | tuple) else (given,)
    typed.require_known("protocol", listed or [given], get_args(Question), f"{key}.question")
    if len(set(listed)) < len(listed):
        raise typed.wrong(f"names a protocol twice: {given!r}", f"{key}.question")
    found = {}
    for question in cast(Sequence[Question], listed):
        try:
            name = name_under(suite, question)
        except ConfigError as error:
            raise typed.wrong(str(error), f"{key}.question") from None
        found[name] = {**entry, "question": question}
        if (
            (tasks := entry.get("tasks"))
            and name != suite
            and isinstance(tasks, Sequence)
            and not isinstance(tasks, str)
        ):
            typed.require_known(f"task of {suite}", tasks, suite_tasks(suite), f"{key}.tasks")
            found[name]["tasks"] = [f"{task}_{question}" for task in tasks]
    return found
