"""LiveCodeBench's problems, and their tests, which stay in the files until a program is marked: they are gigabytes.

Source: Jain et al. 2024 (LiveCodeBench, arXiv 2403.07974); github LiveCodeBench/LiveCodeBench for the fields; github
QwenLM/QwQ, eval, for the prompt's words.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longdecode.evals.config_values import read_yaml
from longdecode.evals.datasets.reader import SOURCES, HubId, Row, hub_file, json_rows

MOST_TEST_BYTES = 1 << 30
"""Most bytes that one problem's tests may take unpacked."""
_RELEASE = SOURCES["livecodebench"]
_PROMPT: Mapping[str, str] = read_yaml(Path(__file__).with_suffix(".yaml"))


@dataclass(frozen=True, slots=True)
class CodeTest:
    """One test: what the program is given, and what it must return."""

    given: str
    expected: str


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """One problem: prompt, name of the function asked for (``None``: standard input), and the place of its tests.

    ``public``: the statement's samples are its only tests.
    """

    question_id: str
    prompt: str
    function: str | None
    tests_hash: int = field(repr=False)
    file: Path = field(repr=False, compare=False)
    offset: int = field(repr=False, compare=False)
    public: bool = False

    def tests(self) -> list[CodeTest]:
        """Read the public and then the private tests.

        Raises:
            DataUnavailableError: the file has changed, or holds tests that are no tests.
        """
        with _RELEASE.reading(f"{self.file}: the tests of {self.question_id} cannot be read"):
            with self.file.open("rb") as handle:
                handle.seek(self.offset)
                row = json.loads(handle.readline())
            if _tests_hash(row) != self.tests_hash:
                raise ValueError("the file has changed since its problems were read")
            public = row["public_test_cases"]
            tests = json.loads(public) if isinstance(public, str) else public
            tests = tests + _private("[]" if self.public else row.get("private_test_cases", "[]"))
            return [CodeTest(str(test["input"]), str(test["output"])) for test in tests]


def _tests_hash(row: Mapping[str, Any]) -> int:
    return hash((str(row.get("public_test_cases")), str(row.get("private_test_cases"))))


def read_problems(source: Path | None, window: tuple[str, str] = ("", "9"), public: bool = False) -> list[CodeProblem]:
    """Return the problems of release_v5 whose contests fell into a window, in the release's order.

    Args:
        source: a folder whose ``livecodebench`` holds the release's five files, or ``hub``.
        window: first and last date, ``YYYY-MM-DD``.
        public: test by the statements' samples alone.

    Raises:
        DataUnavailableError: a file is missing or cannot be read; the message says how to fetch it.
    """
    first, last = window
    place = _RELEASE.locate(source)
    found = []
    for name in _RELEASE.files:
        file = hub_file(_RELEASE, place, name) if isinstance(place, HubId) else place / _RELEASE.folder / name
        with _RELEASE.reading(f"{file} cannot be read"), file.open("rb") as handle:
            rows = json_rows(_RELEASE, handle, str(file))
            found += [_problem(row, file, public) for row in rows if first <= row.text("contest_date")[:10] <= last]
    return found


def prompt_text(question: str, starter: str) -> str:
    """Return a problem's prompt: the question, and either the starter code or the order to read standard input."""
    end = f"{_PROMPT['starter']}{starter}\n```\n\n" if starter else _PROMPT["stdin"]
    return f"{_PROMPT['head']}{question}\n\n{end}"


def _problem(row: Row, file: Path, public: bool) -> CodeProblem:
    with _RELEASE.reading(f"{row.where} has 'metadata' that is no JSON object"):
        function = json.loads(row.text("metadata")).get("func_name")
    prompt = prompt_text(row.text("question_content"), row.text("starter_code"))
    return CodeProblem(row.text("question_id"), prompt, function, _tests_hash(row.values), file, row.offset, public)


class _Texts(pickle.Unpickler):
    """Reads a pickle that holds nothing but text: naming a class or function is refused, so that none can be run."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the pickle names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("the pickle refers to something outside it")


def _private(text: str) -> list[dict[str, Any]]:
    """Return private tests: plain JSON, or JSON in a pickle, compressed, in base64."""
    try:
        plain = json.loads(text)
    except ValueError:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(base64.b64decode(text, validate=True), MOST_TEST_BYTES)
        if not unpacker.eof:
            raise ValueError(f"they are cut off, or take more than {MOST_TEST_BYTES} bytes unpacked") from None
        plain = json.loads(_Texts(io.BytesIO(raw)).load())
    return list(plain)
