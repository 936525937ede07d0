"""Read HumanEval and MBPP: functions asked for by a text, with the checks that they must pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent

from longdecode.evals.datasets.data_file import Row
from longdecode.evals.datasets.rows import RowSet, read_rows
from longdecode.evals.scoring.code_tests import code_blocks

HUMANEVAL = RowSet(
    "code", "humaneval", ("HumanEval.jsonl.gz", "HumanEval.jsonl"), "openai/openai_humaneval", None, "test"
)
_MBPP_SPLITS = "train+test+validation+prompt"
MBPP = RowSet(
    "code", "mbpp", ("sanitized-mbpp.json",), "google-research-datasets/mbpp", None, _MBPP_SPLITS, "sanitized"
)  # fmt: skip
_BODY = re.compile(r"\s*^(?: {2,}|\t)\S", re.MULTILINE)
"""The beginning of a bare function body: an indented line."""
_UNFENCED = re.compile(
    r"^(?:(?:from|import|def|class|async def)\s|@).*\n?"
    r"(?:(?:[ \t].*|[ \t]*|[#@)\]}\"'].*|(?:from|import|def|class|async|if|for|while|try|with)\b.*"
    r"|\w+\s*[=(.\[].*)(?:\n|\Z))*",
    re.MULTILINE,
)
"""A program among sentences: from its first definition or import to the line before a sentence."""
MBPP_FULL = RowSet("code", "mbpp", ("mbpp.jsonl",), "google-research-datasets/mbpp", None, _MBPP_SPLITS, "full")


@dataclass(frozen=True, slots=True)
class FunctionProblem:
    """One problem.

    Attributes:
        task_id: the set's.
        prompt: text for the model.
        names: functions and classes that the checks use, one of which a program must define.
        stub: head of the function, to be completed; empty where the program has to bring everything.
        checks: program that raises unless the function is right.
        reference: the set's own program, or the body of the stub.
    """

    task_id: str
    prompt: str
    names: tuple[str, ...]
    stub: str
    checks: str
    reference: str

    def program(self, completion: str) -> tuple[str, ...] | None:
        """Return the parts of the completion's program, to be run in one namespace; ``None`` where it holds none.

        The program is the first fenced block that defines what is asked for, else the first block, else the whole
        completion. One that defines it runs after the stub, whose imports and helpers it may use; one that does not is
        the stub's body.
        """
        names = "|".join(self.names)
        defines = re.compile(rf"^(?:(?:(?:async\s+)?def|class)\s+(?:{names})\b|(?:{names})\s*=[^=])", re.MULTILINE)
        blocks = [dedent(block) for block in code_blocks(completion)]
        unfenced = [] if blocks else [found[0] for found in _UNFENCED.finditer(completion)]
        code = next((block for block in [*blocks, *unfenced, completion] if defines.search(block)), None)
        if code is not None:
            return (f"{self.stub}\n    pass\n", code) if self.stub else (code,)
        body = blocks[0] if blocks else completion if _BODY.match(completion) else ""
        if not body.strip():
            return None
        return (f"{self.stub}\n{_indented(body)}\n",) if self.stub else (body,)


def humaneval(source: Path | None) -> list[FunctionProblem]:
    """Return HumanEval's 164 problems from ``<source>/humaneval``, or from the hub.

    Source: Chen et al. 2021 (arXiv 2107.03374), github openai/human-eval. The prompt's words are this project's.

    Raises:
        DataUnavailableError: the set is not here or cannot be read; the message says how to fetch it.
    """
    return _read(HUMANEVAL, source, _humaneval)


def mbpp(source: Path | None) -> list[FunctionProblem]:
    """Return the 427 sanitised problems of MBPP from ``<source>/mbpp``, or from the hub, in order of their number.

    Source: Austin et al. 2021 (arXiv 2108.07732), github google-research/google-research, mbpp. The prompt shows all
    checks, as the paper's does; its words are this project's.

    Raises:
        DataUnavailableError: as for ``humaneval``.
    """
    return sorted(_read(MBPP, source, _mbpp), key=lambda problem: int(problem.task_id))


def mbpp_full(source: Path | None) -> list[FunctionProblem]:
    """Return all 974 problems of MBPP, as ``mbpp`` does."""
    return sorted(_read(MBPP_FULL, source, _mbpp), key=lambda problem: int(problem.task_id))


def _read(place: RowSet, source: Path | None, problem: Callable[[Row], FunctionProblem]) -> list[FunctionProblem]:
    return [problem(row) for row in read_rows(place, source)]


def _humaneval(row: Row) -> FunctionProblem:
    stub, name = row.text("prompt"), row.text("entry_point")
    if not name.isidentifier() or re.search(rf"\bdef\s+{name}\b", stub) is None:
        raise row.fault(f"has {name!r} as 'entry_point', which is no function of its 'prompt'")
    prompt = (
        "Complete this Python function. Answer with one code block that holds the whole function and the imports that "
        f"it needs.\n\n```python\n{stub.strip()}\n```\n"
    )
    checks = f"{row.text('test')}\n\ncheck({name})\n"
    return FunctionProblem(row.answer("task_id"), prompt, (name,), stub, checks, row.text("canonical_solution"))


def _mbpp(row: Row) -> FunctionProblem:
    reference, number = row.text("code"), row.answer("task_id")
    shown = "\n".join(row.texts("test_list"))
    task = (row.optional_text("prompt") or row.text("text")).strip()
    prompt = (
        f"{task}\n\nWrite it in Python, in one code block, with the imports that it needs. These checks must "
        f"pass:\n\n```python\n{shown}\n```\n"
    )
    imports = row.texts("test_imports") if row.values.get("test_imports") else ()
    # Set-up code builds on the program's own classes, so that it comes after the program.
    checks = "\n".join([*imports, row.optional_text("test_setup_code") or "", shown, ""])
    defined = re.findall(r"^(?:def|class)\s+(\w+)", reference, re.MULTILINE)
    names = tuple(name for name in dict.fromkeys(defined) if re.search(rf"\b{name}\b", checks))
    if not names or not number.isdecimal():
        raise row.fault(f"is problem {number!r}, which has no number or checks nothing that its reference defines")
    return FunctionProblem(number, prompt, names, "", checks, reference)


def _indented(body: str) -> str:
    """Indent a function's body by four columns, whether all of it or its first line alone lacks them."""
    first, _, rest = body.strip("\n").partition("\n")
    lines = [line for line in rest.split("\n") if line.strip()]
    continued = lines and all(line.startswith(("    ", "\t")) for line in lines) and not first.rstrip().endswith(":")
    return f"    {first}\n{rest}" if continued and not first[:1].isspace() else indent(dedent(body.strip("\n")), "    ")
