"""HumanEval, MBPP and contest programs: data in each form, programs read out of completions, checks that are run.

``LONGDECODE_TEST_WHOLE=1`` runs every reference solution (three minutes); else twelve of a set run.
"""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from fake_tokenizer import Words
from json_lines import read_rows, write_rows
from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.datasets.livecodebench import CodeTest
from longdecode.evals.sandbox import SandboxLimits
from longdecode.evals.scoring.code_tests import code_blocks, run_checks, run_tests
from longdecode.evals.tasks import code
from longdecode.evals.tasks.code import NO_PROGRAM, FunctionProblem, mark, read_functions
from longdecode.evals.tasks.registry import get_task

WHOLE = bool(os.environ.get("LONGDECODE_TEST_WHOLE"))
SETS = {"humaneval": 164, "mbpp": 427, "mbpp_full": 974}
STUB = 'import math\n\n\ndef half(n: int) -> int:\n    """Half of n."""\n'
HUMANEVAL = {
    "task_id": "HumanEval/0", "prompt": STUB, "entry_point": "half", "canonical_solution": "    return n // 2\n",
    "test": "def check(candidate):\n    assert candidate(8) == 4\n    assert candidate(3) == 1\n",
}  # fmt: skip
HALF = "import math\ndef half(n):\n  return n // 2"
MBPP = {"task_id": 9, "code": HALF, "test_list": ["assert half(8) == math.floor(4)"]}
SANITIZED = MBPP | {"source_file": "f", "prompt": "Halve it.", "test_imports": ["import math"]}
FULL = MBPP | {
    "text": "Halve it.", "test_setup_code": "eight = half(16)\nimport math", "challenge_test_list": [],
    "test_list": ["assert half(eight) == 4"],
}  # fmt: skip


def problem(row: dict[str, Any], folder: Path) -> FunctionProblem:
    """Read one row as the only one of its set."""
    name = "humaneval" if "prompt" in row and "entry_point" in row else "mbpp" if "test_imports" in row else "mbpp_full"
    file = {"humaneval": "HumanEval.jsonl", "mbpp": "sanitized-mbpp.json", "mbpp_full": "mbpp.jsonl"}[name]
    (folder / name.removesuffix("_full")).mkdir(exist_ok=True)
    (folder / name.removesuffix("_full") / file).write_text(json.dumps([row] if file.endswith("json") else row))
    (found,) = read_functions(name, folder)
    return found


@pytest.mark.parametrize("name", SETS)
def test_the_sets_are_read_whole(name: str, shared_data: Path) -> None:
    if not (shared_data / name.removesuffix("_full")).is_dir():
        pytest.skip(f"no {name} in {shared_data}")
    problems = read_functions(name, shared_data)
    assert len(problems) == len({one.task_id for one in problems}) == SETS[name]
    for one in problems:
        shown = one.stub.strip() or one.checks.strip().split("\n")[-1]
        assert shown in one.prompt and one.reference not in one.prompt


@pytest.mark.usefixtures("contained")
@pytest.mark.parametrize("name", SETS)
def test_reference_solutions_pass_and_early_exits_do_not(name: str, shared_data: Path) -> None:
    if not (shared_data / name.removesuffix("_full")).is_dir():
        pytest.skip(f"no {name} in {shared_data}")
    failed = []
    for number, one in enumerate(read_functions(name, shared_data)[:: 1 if WHOLE else SETS[name] // 11]):
        verdict = mark(one, f"Like this:\n```python\n{one.stub}{one.reference}\n```\nDone.")
        failed += [(one.task_id, verdict)] if not verdict.passed else []
        if number % 12 == 0:
            body = mark(one, f"```python\ndef {one.names[0]}(*given, **named):\n    raise SystemExit(0)\n```")
            assert not body.passed
    assert failed == []


@pytest.mark.usefixtures("contained")
def test_a_function_is_found_however_it_is_written(tmp_path: Path) -> None:
    asked, whole = problem(HUMANEVAL, tmp_path), "def half(n):\n    return n // 2"
    for completion, passed in (
        (f"```python\n{whole}\n```", True),
        (f"First an example:\n```\nprint(half(3))\n```\nthen\n```py\n{whole}\n```\nand\n```\nhalf(2)\n```", True),
        (whole, True),
        (f"```python\n{whole}", True),  # the block is not closed
        (f"1. So:\n   ```python\n   {whole.replace(chr(10), chr(10) + '   ')}\n   ```", True),
        ("```python\nhalf = lambda n: n // 2\n```", True),
        ("```python\nimport functools\n\n@functools.cache\ndef half(n):\n    return n // 2\n```", True),
        ("```python\r\ndef half(n):\r\n    return n // 2\r\n```\r\n", True),
        ("    return n // 2\n", True),
        ("\n    return n // 2\n", True),
        ("```python\n    return n // 2\n```", True),
        ("```python\nreturn n // 2\n```", True),
        ("```python\nm = n\n    return m // 2\n```", True),  # the first line lost its indentation
        ("```python\nif n > 3:\n    return n // 2\nreturn 1\n```", True),
        ("```python\nreturn math.floor(n / 2)\n```", True),  # the stub's imports are there
        ("```python\ndef half(n):\n    return math.floor(n / 2)\n```", True),
        (f"```python\nfrom __future__ import annotations\n{whole}\n```", True),
        (f"```python\n{whole}\nif __name__ == '__main__':\n    raise SystemExit('asked')\n```", True),
        (f"```python\n{whole}\nprint('noise')\n```", True),
        ("```python\ndef half(n):\n    return n\n```", False),
        ("```python\ndef half(n):\n    exit()\n```", False),
        ("```python\nimport os\nos._exit(0)\n```", False),
        ("```python\ndef half(n) return\n```", False),
        ("```python\ndef halve(n):\n    return n // 2\n```", False),
    ):
        assert mark(asked, completion).passed is passed, completion
    for completion in ("", "I cannot.", "```python\n```", " Sure, half of n is n // 2."):
        assert mark(asked, completion) == NO_PROGRAM, completion


@pytest.mark.usefixtures("contained")
def test_mbpp_s_set_up_comes_after_the_program_and_imports_before_its_checks(tmp_path: Path) -> None:
    for row in (SANITIZED, FULL):
        asked = problem(row, tmp_path)
        assert asked.names == ("half",) and "assert half(" in asked.prompt and "Halve it." in asked.prompt
        right = mark(asked, "```python\ndef half(n):\n    return n // 2\n```")
        wrong = mark(asked, "```python\ndef half(n):\n    return n / 3\n```")
        assert right.passed and wrong.cause == "failed" and mark(asked, "It is n // 2.") == NO_PROGRAM
    loop = run_checks(("while True: pass",), "", SandboxLimits(cpu_seconds=1, wall_seconds=1.2))
    assert (loop.passed, loop.cause, loop.tests_passed) == (False, "timeout", 0)


def test_a_program_is_found_in_any_fence_and_in_none(tmp_path: Path) -> None:
    code = "import math\n\n\ndef half(n):\n    return math.floor(n / 2)\n\n\nprint(half(4))\n"
    asked = [problem(row, tmp_path) for row in (HUMANEVAL, SANITIZED)]
    for text in (
        f"~~~python\n{code}~~~\n", f"````python\n{code}````\n",
        f"Here it is:\n\n{code}\nThis halves it. Then it prints.\n",
        f"{code}\nNote that half(5) is 2.", code, f"1. So:\n   ```\n{indent(code, '   ')}   ```\n",
    ):  # fmt: skip
        assert [one.program(text)[-1].strip() for one in asked] == [code.strip()] * 2  # type: ignore[index]
    quoted = code.replace("    return", '    """As\n    ```\n    half(4)\n    ```\n    """\n    return')
    assert code_blocks(f"```python\n{quoted}```\nDone.") == [quoted]
    start = time.perf_counter()
    assert asked[1].program("def x\n\t\n" * 20_000 + "!" * 9) is None and time.perf_counter() - start < 2


def test_blocks_are_read_whole() -> None:
    assert code_blocks("a\n```python\nx\n\ny\n```\nb\n```\nz") == ["x\n\ny\n", "z"]
    assert code_blocks("use `x` or ```x``` here") == [] and code_blocks("```\n```") == [""]


def test_packed_and_plain_files_and_the_hub_s_fields_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    plain = problem(HUMANEVAL, tmp_path)
    (tmp_path / "humaneval" / "HumanEval.jsonl").unlink()
    (tmp_path / "humaneval" / "HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps(HUMANEVAL).encode()))
    assert read_functions("humaneval", tmp_path) == [plain]
    (tmp_path / "humaneval" / "HumanEval.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(DataUnavailableError, match=r"cannot be read.*data fetch code.*data\.code to data/code"):
        read_functions("humaneval", tmp_path)
    asked = []

    def load(source: str, config: str | None, *, split: str, revision: str | None) -> list[dict[str, Any]]:
        asked.append((source, config, split))
        return [HUMANEVAL] if "humaneval" in source else [SANITIZED | {"task_id": n} for n in (11, 2)]

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.chdir(tmp_path)
    assert read_functions("humaneval", Path("hub")) == [plain]
    assert [one.task_id for one in read_functions("mbpp", Path("hub"))] == ["2", "11"]
    mbpp = ("google-research-datasets/mbpp", "sanitized", "train+test+validation+prompt")
    assert asked == [("openai/openai_humaneval", None, "test"), mbpp]


def test_a_function_that_nothing_can_define_is_refused_by_line(tmp_path: Path) -> None:
    for name in ("half(", "", "third"):
        with pytest.raises(DataUnavailableError, match=r"line 1 has .* as 'entry_point'"):
            problem(HUMANEVAL | {"entry_point": name}, tmp_path)
    for wrong, number in (({"task_id": "\u00b2"}, "\u00b2"), ({"test_list": ["assert other()"]}, "9")):
        with pytest.raises(DataUnavailableError, match=f"row 1 is problem '{number}'"):
            problem(SANITIZED | wrong, tmp_path)


def test_functions_are_asked_greedily_in_a_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "require_sandbox", lambda: None)
    rows = [HUMANEVAL | {"task_id": f"HumanEval/{n}"} for n in range(9)]
    write_rows(tmp_path / "humaneval" / "HumanEval.jsonl", rows)
    task = get_task("humaneval", {"code": tmp_path})
    assert task.chat and task.stop_at_eos
    assert (task.temperature, task.metric, task.samples_per_problem) == (0, "accuracy", 1)
    some = task.samples(4096, 4, 7, Words())  # type: ignore[arg-type]
    assert len({sample.meta.task_id for sample in some}) == 4 and {sample.max_new_tokens for sample in some} == {1024}
    assert [s.meta for s in some] == [s.meta for s in task.samples(9000, 4, 7, Words())]  # type: ignore[arg-type]
    assert task.score(some[0], "no program", ()).measures["answered"] == 0


@pytest.mark.usefixtures("contained")
def test_published_solutions_get_their_known_verdicts(shared_data: Path) -> None:
    """Contest programs of a model, on the samples that the problems' statements hold."""
    folder = shared_data / "livecodebench_public_tests"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    problems = {row["question_id"]: row for row in read_rows(folder / "lcb_v5_public_tests.derived.jsonl")}
    for row in read_rows(folder / "o1_mini_candidates.sample.jsonl")[:: 1 if WHOLE else 6]:
        problem = problems[row["question_id"]]
        tests = [CodeTest(test["input"], test["output"]) for test in problem["public_test_cases"]]
        verdict = run_tests(row["code"], problem["func_name"], tests)
        passed = [*row["public_tests_passed"], False]
        assert (verdict.tests_passed, verdict.passed) == (passed.index(False), all(row["public_tests_passed"]))
