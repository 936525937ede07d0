"""GPQA and LiveCodeBench: data in each form, letters and programs that are read, tests that are run or refused."""

from __future__ import annotations

import base64
import csv
import json
import os
import pickle
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fake_tokenizer import Words
from harm import Harm
from json_lines import read_rows, write_rows
from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.datasets import livecodebench as data
from longdecode.evals.datasets.livecodebench import CodeTest, prompt_text, read_problems
from longdecode.evals.datasets.reader import SOURCES
from longdecode.evals.sandbox import SandboxLimits, SandboxUnsupportedError
from longdecode.evals.scoring.choice_letter import chosen_letter
from longdecode.evals.scoring.code_tests import extract_code, run_tests, same_output, same_result
from longdecode.evals.tasks import code
from longdecode.evals.tasks.code import WINDOW
from longdecode.evals.tasks.registry import get_task

SHORT = SandboxLimits(cpu_seconds=1, wall_seconds=1.2, memory_bytes=300 << 20)

FILES = SOURCES["livecodebench"].files


def packed(tests: list[dict[str, str]]) -> str:
    """Private tests as the release holds them."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def row(number: int, private: str, **changes: Any) -> dict[str, Any]:
    public = json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}])
    return {
        "question_id": f"q{number}", "question_content": f"Add. é\u2028{number}", "starter_code": "",
        "contest_date": f"2024-{6 + number:02d}-01T00:00:00", "public_test_cases": public,
        "private_test_cases": private, "metadata": "{}",
    } | changes  # fmt: skip


@pytest.fixture
def release(tmp_path: Path) -> Path:
    more = [{"input": "2 2", "output": "4", "testtype": "stdin"}]
    called = {
        "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
        "metadata": json.dumps({"func_name": "add"}),
        "public_test_cases": json.dumps([{"input": "1\n[2]", "output": "[3]", "testtype": "functional"}]),
    }
    rows = {
        FILES[0]: [row(0, "[]")], FILES[1]: [row(9, "[]", contest_date="2023-05-01")], FILES[2]: [row(1, "[]")],
        FILES[3]: [row(2, json.dumps(more))], FILES[4]: [row(3, packed(more)), row(4, "[]", **called)],
    }  # fmt: skip
    for name, found in rows.items():
        write_rows(tmp_path / "livecodebench" / name, found)
    return tmp_path


def test_problems_of_the_window_and_their_tests(release: Path) -> None:
    problems = read_problems(release, WINDOW)
    assert [problem.question_id for problem in problems] == ["q2", "q3", "q4"] and len(read_problems(release)) == 6
    stdin = [CodeTest("1 2\n", "3\n"), CodeTest("2 2", "4")]
    assert [problem.tests() for problem in problems] == [stdin, stdin, [CodeTest("1\n[2]", "[3]")]]
    assert [len(problem.tests()) for problem in read_problems(release, WINDOW, public=True)] == [1, 1, 1]
    assert [problem.function for problem in problems] == [None, None, "add"]
    assert problems[0].prompt == prompt_text("Add. é\u20282", "") and "def add(" in problems[2].prompt
    assert str(release) not in repr(problems)  # the data's hash is the same wherever the files lie
    (file := release / "livecodebench" / FILES[3]).write_text(file.read_text().replace("1 2", "1 3"))  # same question
    with pytest.raises(DataUnavailableError, match="has changed"):
        problems[0].tests()


def test_prompts_of_the_public_slice_come_out_again(shared_data: Path) -> None:
    rows = read_rows(shared_data / "livecodebench_v5" / "qwq_livecodebench_v5.jsonl")
    kinds: Counter[bool] = Counter()
    for entry in rows:
        body = entry["prompt"].partition("\n\nQuestion: ")[2]
        question, found, rest = body.rpartition("\n\nYou will use the following starter code")
        if found:
            starter = rest.partition("```python\n")[2].removesuffix("\n```\n\n")
        else:
            question, starter = body.rpartition("\n\nRead the inputs from stdin")[0], ""
        assert prompt_text(question, starter) == entry["prompt"]
        assert WINDOW[0] <= entry["contest_date"][:10] <= WINDOW[1]
        kinds[bool(starter)] += 1
    assert kinds == {False: 175, True: 104}


def test_hostile_tests_are_refused(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harm = base64.b64encode(zlib.compress(pickle.dumps(Harm(tmp_path / "planted")))).decode()
    monkeypatch.setattr(data, "MOST_TEST_BYTES", 1 << 20)
    bomb = base64.b64encode(zlib.compress(bytes(2 << 20))).decode()
    nested = packed([{"input": "1", "output": "1"}] * 3)[:-8]
    refused = {harm: "the pickle names", bomb: "or take more than 1048576", nested: "cut off", "3": ""}
    for private, why in refused.items():
        (release / "livecodebench" / FILES[4]).write_text(json.dumps(row(3, private)) + "\n")
        with pytest.raises(DataUnavailableError, match=rf"tests of q3 cannot be read.*{why}"):
            read_problems(release, ("2024-09-01", "9"))[0].tests()
    assert not (tmp_path / "planted").exists()


def test_release_files_that_are_missing_or_broken(release: Path) -> None:
    (release / "livecodebench" / FILES[2]).write_text('{"contest_date": 3}\n')
    with pytest.raises(DataUnavailableError, match=r"test3.jsonl, line 1 has 3 as 'contest_date'.*data fetch code"):
        read_problems(release)
    (release / "livecodebench" / FILES[2]).write_text("")
    with pytest.raises(DataUnavailableError, match=r"test3.jsonl is empty; .*data fetch code"):
        read_problems(release)
    (release / "livecodebench" / FILES[2]).unlink()
    with pytest.raises(DataUnavailableError, match=r"test3\.jsonl cannot be read: FileNotFound"):
        read_problems(release)


def test_the_hub_gives_the_release_file_by_file(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def download(repo: str, name: str, *, repo_type: str, revision: str | None) -> str:
        asked.append((repo, name, repo_type))
        return str(release / "livecodebench" / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert [problem.question_id for problem in read_problems(Path("hub"))] == ["q0", "q9", "q1", "q2", "q3", "q4"]
    assert asked == [("livecodebench/code_generation_lite", name, "dataset") for name in FILES]


def test_the_last_closed_block_is_the_program() -> None:
    assert extract_code("a\n```python\nfirst\n```\nthen\n```\nx = 1\ny\n```\nend") == "x = 1\ny"
    assert extract_code("```python\ncut off") is None and extract_code("") is None and extract_code("```\n```") == ""


def test_outputs_are_equal_as_lines_or_numbers() -> None:
    assert same_output(" 1 2 \n3\n\n", "1 2\n3") and same_output("1.50 2", "1.5 2.0") and same_output("YES\n", "YES")
    assert not same_output("1 2 3", "1 2\n3") and not same_output("yes", "YES") and not same_output("", "0")
    assert same_result("[1, [2]]", "[1,[2]]") and not same_result("", "1") and not same_result("[" * 99_999, "[]")


@pytest.mark.usefixtures("contained")
def test_programs_pass_fail_and_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = [CodeTest("1 2", "3"), CodeTest("2 2", "4")]
    right = "a, b = map(int, input().split())\nprint(a + b)"
    assert run_tests(right, None, tests).passed
    main = "if __name__ == '__main__': print(reduce(add, map(int, input().split())))"
    # Names that contest sites import by themselves.
    assert run_tests("from __future__ import annotations\n" + main, None, tests).passed
    for processors in (1, 16):  # one by one, and eight side by side
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, count=processors: range(count))
        verdict = run_tests("print(3)", None, [*tests, CodeTest("x", "3"), *tests])
        assert (verdict.passed, verdict.cause, verdict.tests_passed) == (False, "wrong", 1)
    assert run_tests(right, None, tests * 6).tests_passed == 12
    for program, cause in (
        ("while True: pass", "timeout"), ("x = [0] * 10**9", "failed"), ("syntax error", "failed"), ("", "wrong"),
    ):  # fmt: skip
        assert run_tests(program, None, tests, SHORT if cause == "timeout" else SandboxLimits()).cause == cause
    assert run_tests(right, None, []).cause == "no tests"


@pytest.mark.usefixtures("contained")
def test_functions_are_called_and_cannot_see_what_is_expected() -> None:
    tests = [CodeTest('[1, 2]\n"x"', '[1, 2, "x"]')]
    source = "class Solution:\n  def join(self, a: List[int], b: str):\n    print('noise')\n    return (*a, b)"
    assert run_tests(source, "join", tests).passed and run_tests("def join(a, b): return a + [b]", "join", tests).passed
    assert run_tests(source, "other", tests).cause == "failed"
    assert run_tests(source.replace("(*a, b)", "{1}"), "join", tests).cause == "failed"
    peek = "import os\ndef join(a, b): return [str(os.listdir('/')), open('/program.py').read()]"
    assert run_tests(peek, "join", [CodeTest("1\n2", '"expected"')]).cause == "wrong"


@pytest.mark.usefixtures("contained")
def test_a_completion_is_marked_by_its_tests(release: Path) -> None:
    task = get_task("livecodebench_v5", {"code": release})
    samples = task.samples(300, 9, 0, Words())  # type: ignore[arg-type]
    assert len(samples) == 12 and task.metric == "avg@4"
    good = "Thinking.\n```python\nprint(sum(map(int, input().split())))\n```\n"
    scores = [task.score(samples[place], text, ()) for place, text in ((0, good), (4, "none"), (8, good))]
    assert [score.value for score in scores] == [1, 0, 0]
    assert [score.measures["answered"] for score in scores] == [1, 0, 1] and scores[0].measures["tests_passed"] == 2
    called = "```\nclass Solution:\n    def add(self, a, b):\n        return [a + b[0]]\n```"
    assert task.score(samples[8], called, ()).value == 1


def test_without_a_sandbox_the_cell_is_unsupported(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise SandboxUnsupportedError("bubblewrap (bwrap) is not on PATH: install it")

    monkeypatch.setattr(code, "require_sandbox", refuse)
    with pytest.raises(SandboxUnsupportedError, match="bwrap"):
        get_task("livecodebench_v5", {"code": release}).samples(300, 1, 0, Words())  # type: ignore[arg-type]


def test_gpqa_is_asked_with_choices_in_a_fixed_order(tmp_path: Path) -> None:
    folder = tmp_path / "diamond"
    folder.mkdir()
    names = ["Question", "Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3)), "Record ID"]
    with (folder / "gpqa_diamond.csv").open("w", newline="") as handle:
        csv.writer(handle).writerows([names, *([f"Q{i},\n?", "right", "w1", "w2", "w3\n", "r"] for i in range(40))])
    task = get_task("gpqa_diamond", {"gpqa": tmp_path})
    samples = task.samples(200, 40, 0, Words())  # type: ignore[arg-type]
    assert len(samples) == 160 and task.metric == "avg@4"
    golds = Counter()
    for sample in samples:
        assert f"({sample.meta}) right\n" in sample.prompt and all(f"({x}) " in sample.prompt for x in "ABCD")
        golds[sample.meta] += 1
        assert task.score(sample, f"... \\boxed{{{sample.meta}}}", ()).value == 1
    assert all(golds[letter] >= 16 for letter in "ABCD")
    assert task.score(samples[0], "", ()).measures == {"answered": 0.0}


def test_letters_are_read_from_the_box_or_the_words() -> None:
    for text, letter in (
        ("so \\boxed{B}", "B"), ("\\boxed{\\text{(C)}}", "C"), ("first \\boxed{A}, no: \\boxed{D) 3 m}", "D"),
        ("The answer is (B).", "B"), ("Answer: C", "C"), ("**Answer: A**", "A"), ("A nice day", None),
        ("\\boxed{42}", None), ("The answer is **D**", "D"), ("\\boxed{B", None),
        # Boxes
        ("\\boxed{\\textbf{B. 3 m}}", "B"), ("\\boxed{\\text{Option } D}", "D"), ("\\boxed{option (D)}", "D"),
        ("\\boxed{\\mathbf{\\text{(D)}}}", "D"), ("\\boxed D.", "D"), ("\\fbox{ B }", "B"), ("\\boxed{3 m (B)}", "B"),
        ("\\boxed{b}", "B"), ("\\boxed{\\text{B) }5 \\text{ A}}", "B"), ("\\boxed{\uff22}", "B"),
        ("\\boxed{D} at \\boxed{3.2}", "D"), ("\\boxed{A}? No: \\boxed{3.2}. The answer is B", "B"),
        # A letter that is a unit, a symbol or part of a formula
        ("energy \\boxed{E_1 \\ll E_2}. **Answer: D**", "D"), ("\\boxed{3.2 \\text{ A}}. So the answer is B", "B"),
        ("\\boxed{3.2 \\text{ A}}", None), ("\\boxed{A = 3}. The answer is (C)", "C"), ("\\boxed{C_6H_6}", None),
        ("\\boxed{D \\approx 5}", "D"), ("\\boxed{\\text{A and B}}", None),
        ("The answer is 3.2 A", None), ("The answer is C-H activation", None), ("The answer is E_1", None),
        # Words
        ("The correct option is D", "D"), ("answer is $\\mathbf{B}$", "B"), ("the answer is option (D)", "D"),
        ("The correct choice is: **(C) 3 eV**", "C"), ("**Final Answer:** $\\text{C}$", "C"),
        ("### Answer\n\n**D**", "D"),
        ("the answer is therefore (A)", "A"), ("The answer must be D.", "D"), ("ANSWER: \uff24", "D"),
        ("The answer is _B_", "B"), ("answer is \\(B\\)", "B"), ("Option D is correct", "D"),
        ("I choose option D.", "D"),
        ("It would therefore be (A), but the answer would then be C.", "C"),
        ("thinking\n\n**(D)**", "D"), ("D", "D"), ("The answer is not A", None),
        ("Answer: (B) or (C)", None), ("\\boxed{A, C}", None), ("The answer is A, B.", None),
        ("<answer>B</answer>", "B"),
        ("The answer is B, and A is not.", "B"), ("The answer is B\n\nC is wrong", "B"),
        ("The answer is B. Another option is A.", "B"), ("The answer is A. No: the answer is C.", "C"),
    ):  # fmt: skip
        assert chosen_letter(text) == letter, text
    for text in ("answer: " * 2000, "answer is " + " \n" * 20_000, "\\boxed{" + "(" * 20_000 + "}", "option " * 2000):
        assert chosen_letter(text) is None  # in no time
