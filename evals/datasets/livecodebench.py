"""LiveCodeBench's problems, and their tests, which stay in the files until a program is marked: they are gigabytes.

Source: Jain et al. 2024 (LiveCodeBench, arXiv 2403.07974); github LiveCodeBench/LiveCodeBench for the fields; github
QwenLM/QwQ, eval, for the prompt's words.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pickle
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.datasets.data_file import Row, json_rows, one_line
from longdecode.evals.datasets.rows import FROM_HUB, RowSet, read_rows

HUB_ID = "livecodebench/code_generation_lite"
FILES = ("test.jsonl", "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl")
"""The files that make release_v5, 880 problems."""
MOST_TEST_BYTES = 1 << 30
"""Most bytes that one problem's tests may take unpacked."""
FOLDER = "livecodebench"
PUBLIC_FILE = Path("livecodebench_public_tests", "lcb_v5_public_tests.derived.jsonl")
_PROMPTS = RowSet("code", "livecodebench_v5", ("qwq_livecodebench_v5.jsonl",), HUB_ID, None, "test")
_PROMPTS_FILE = Path(_PROMPTS.folder, _PROMPTS.files[0])
_FETCH = f"hf download --repo-type dataset {HUB_ID} {' '.join(FILES)} --local-dir code/{FOLDER}"
_HEAD = (
    "You will be given a question (problem specification) and will generate a correct Python program that matches the "
    "specification and passes all tests.\n\nQuestion: "
)
_STDIN = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on the sample "
    "inputs). Enclose your code within delimiters as follows. Ensure that when the python program runs, it reads the "
    "inputs, runs the algorithm and writes output to STDOUT.\n```python\n# YOUR CODE HERE\n```\n\n"
)
_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your code within "
    "delimiters.\n```python\n"
)


@dataclass(frozen=True, slots=True)
class CodeTest:
    """One test: what the program is given, and what it must return."""

    given: str
    expected: str


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """One problem: prompt, name of the function asked for (``None``: standard input), and the place of its tests."""

    question_id: str
    prompt: str
    function: str | None
    row_sha256: str
    file: Path = field(repr=False, compare=False)
    offset: int = field(repr=False, compare=False)

    def tests(self) -> list[CodeTest]:
        """Read the public and then the private tests.

        Raises:
            DataUnavailableError: the file has changed, or holds tests that are no tests.
        """
        with self.file.open("rb") as handle:
            handle.seek(self.offset)
            line = handle.readline()
        if hashlib.sha256(line).hexdigest() != self.row_sha256:
            raise _unavailable(f"{self.file} has changed since its problems were read")
        try:
            row = json.loads(line.decode("utf-8-sig"))
            public = row["public_test_cases"]
            tests = (json.loads(public) if isinstance(public, str) else public) + _private(
                row.get("private_test_cases", "[]")
            )
            return [CodeTest(str(test["input"]), str(test["output"])) for test in tests]
        except (ValueError, KeyError, TypeError, EOFError, RecursionError, pickle.UnpicklingError, zlib.error) as error:
            why = f"the tests of {self.question_id} cannot be read: {one_line(error)}"
            raise _unavailable(f"{self.file}: {why}") from error


def read_problems(source: Path | None, first_day: str = "", last_day: str = "9") -> list[CodeProblem]:
    """Return the problems of release_v5 whose contests fell into a window, in the release's order.

    Args:
        source: a folder whose ``livecodebench`` holds the release's five files, or ``hub``.
        first_day: first date, ``YYYY-MM-DD``.
        last_day: last date.

    Raises:
        DataUnavailableError: a file is missing or cannot be read; the message says how to fetch it.
    """
    if source is None:
        raise _unavailable("the configuration's data.code names no folder")

    def problem(row: Row, file: Path) -> CodeProblem | None:
        return _problem(row, file) if first_day <= row.text("contest_date")[:10] <= last_day else None

    return [found for file in _files(source) for found in _problems(file, problem)]


def read_public_problems(source: Path | None) -> list[CodeProblem]:
    """Return the 279 problems of release_v5's window with public tests alone, derived from the statements' samples.

    Args:
        source: a folder with the tests (``PUBLIC_FILE``) and QwQ's published prompts (``livecodebench_v5``).

    Raises:
        DataUnavailableError: a file is missing or cannot be read.
    """
    if source is None:
        raise _unavailable("the configuration's data.code names no folder")
    if missing := [str(name) for name in (PUBLIC_FILE, _PROMPTS_FILE) if not (source / name).is_file()]:
        raise DataUnavailableError(
            f"data.code is {source}, which lacks {' and '.join(missing)}: tests made of the statements' samples, which "
            "no repository publishes, and prompts (github QwenLM/QwQ, eval/data/livecodebench_v5.jsonl); the task "
            "livecodebench_v5 has the release's own tests"
        )
    prompts = {row.text("question_id"): row.text("prompt") for row in read_rows(_PROMPTS, source)}

    def problem(row: Row, file: Path) -> CodeProblem:
        name = row.text("question_id")
        if name not in prompts:
            raise row.fault(f"is problem {name!r}, which {_PROMPTS_FILE} lacks")
        return _made(row, file, prompts[name], row.optional_text("func_name"))

    return _problems(source / PUBLIC_FILE, problem)


def prompt_text(question: str, starter: str) -> str:
    """Return a problem's prompt: the question, and either the starter code or the order to read standard input."""
    return f"{_HEAD}{question}\n\n" + (f"{_STARTER}{starter}\n```\n\n" if starter else _STDIN)


def _problems(file: Path, problem: Callable[[Row, Path], CodeProblem | None]) -> list[CodeProblem]:
    """Return what ``problem`` makes of a file's rows, those left out of which it makes none."""
    try:
        with file.open("rb") as handle:
            made = [problem(row, file) for row in json_rows(handle, str(file), _unavailable)]
    except OSError as error:
        raise _unavailable(f"{file} cannot be read: {one_line(error)}") from error
    return [found for found in made if found is not None]


def _problem(row: Row, file: Path) -> CodeProblem:
    try:
        function = json.loads(row.text("metadata")).get("func_name")
    except (ValueError, AttributeError, RecursionError) as error:
        raise row.fault(f"has 'metadata' that is no JSON object: {one_line(error)}") from error
    prompt = prompt_text(row.text("question_content"), row.text("starter_code"))
    return _made(row, file, prompt, function)


def _made(row: Row, file: Path, prompt: str, function: str | None) -> CodeProblem:
    return CodeProblem(row.text("question_id"), prompt, function, hashlib.sha256(row.raw).hexdigest(), file, row.offset)


def _files(source: Path) -> list[Path]:
    if str(source) != FROM_HUB or source.is_dir():
        files = [source / FOLDER / name for name in FILES]
        if missing := [file.name for file in files if not file.is_file()]:
            raise _unavailable(f"{source / FOLDER} lacks {', '.join(missing)}")
        return files
    from huggingface_hub import hf_hub_download

    try:
        return [Path(hf_hub_download(HUB_ID, name, repo_type="dataset")) for name in FILES]
    except Exception as error:  # the hub's errors, those of its transport and those of the file system share no base
        raise _unavailable(f"{HUB_ID} could not be fetched: {type(error).__name__}: {error}") from error


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


def _unavailable(why: str) -> DataUnavailableError:
    return DataUnavailableError(f"{why}; fetch the set with `{_FETCH}` (about 4 GB) and set data.code to code")
