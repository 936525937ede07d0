"""Marking mathematics: the data sets' own answers, OlympiadBench's own examples, near misses, and the deadline."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fake_tokenizer import Words
from json_lines import read_rows
from longdecode.engine.errors import ScoreTimeoutError
from longdecode.evals.sandbox import SandboxUnsupportedError, require_sandbox
from longdecode.evals.scoring import math_checker
from longdecode.evals.scoring.answer_text import final_answer, integer_answer
from longdecode.evals.scoring.math_checker import AnswerRule, CheckerError, MathChecker
from longdecode.evals.tasks.math import MathTask, Problem

TOWER = "10^{10^{10^{10}}}"
OFFICIAL = AnswerRule(absolute=(1e-8,))


@pytest.fixture
def checker() -> MathChecker:
    return math_checker.shared_checker()


def problems(task: MathTask) -> list[Problem]:
    return [problem for _, problem in task.problems()]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{1} and then \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("$\\boxed {42}$", "42"),
        ("\\fbox{7}", "7"),
        ("\\boxed{a \\text{ if } \\{x\\}}", "a \\text{ if } \\{x\\}"),
        ("\\boxed{x = \\boxed{3}}", "x = \\boxed{3}"),
        ("\\boxed{12} wait, \\boxed{1", "12"),  # cut off within the last box
        ("the answer is 12", None),
        ("\\boxed 73", "73"),
        ("$\\boxed 73$.", "73"),
        ("So \\(\\boxed\\frac{1}{2}\\).", "\\frac{1}{2}"),
        ("**\\boxed -3.** Done", "-3"),
        ("\\boxed{12}, in a \\boxed environment, as in \\boxed{}", "12"),  # mentions
        ("\\framebox[2cm]{5}", "5"),
        ("\\boxed{\\{1\\}} \\\\\\boxed{\\{2} \\boxed{{3}", "\\{2"),  # escaped braces, and one that is not closed
        ("", None),
    ],
)
def test_the_last_closed_box_is_the_answer(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize("loop", ["\\boxed{", "\\boxed{\\text{", "\\boxed[", "\\boxed[a]{", "\\boxed 1{"])
def test_a_loop_of_open_boxes_is_read_in_time(loop: str) -> None:
    start = time.perf_counter()
    final_answer("\\boxed{7} " + loop * 20_000)
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("073", 73), ("$25$", 25), ("\\textbf{(073)}", 73), ("204.", 204), ("1{,}000", 1000), ("1,000", 1000),
        ("-7", -7), ("0", 0), ("2,4", None), ("2\\,4", None), ("m+n", None), ("\u22127", -7),
        ("\uff17\uff13", 73), ("1\\,000", 1000), ("1\u202f000", 1000), ("1,\\!000", 1000),
        ("\\text{\\textbf{(073)}}", 73), ("{73}", 73), ("\\frac{8}{2}", None), ("3.5", None), ("9" * 5000, None),
    ],
)  # fmt: skip
def test_integers_are_read_as_contests_print_them(text: str, value: int | None) -> None:
    assert integer_answer(text) == value


def test_every_gold_solution_is_marked_right(shared_data: Path) -> None:
    """All problems of AIME, MATH500 and Minerva by what their own sources write; no exception."""
    halves = [read_rows(shared_data / f"aime25/test2025-{half}.jsonl") for half in ("I", "II")]
    boxes = {
        name: [final_answer(row["solution"]) for row in read_rows(shared_data / name / "test.jsonl")]
        for name in ("aime24", "math500")
    }
    answers = boxes | {
        "aime25": [row["answer"] for half in halves for row in half],
        "minerva": [row["answer"] for row in read_rows(shared_data / "minerva_math/test_qa_LIMO.jsonl")],
    }
    wrong = []
    for name, given in answers.items():
        task = MathTask(name, {"math": shared_data})
        for problem, answer in zip(problems(task), given, strict=True):
            if answer is None or not task.is_right(problem, answer):
                wrong.append((name, problem.gold, answer))
    counts = {"aime24": 30, "math500": 500, "aime25": 30, "minerva": 272}
    assert {name: len(given) for name, given in answers.items()} == counts and not wrong


def test_olympiadbench_answers_written_otherwise_are_marked_right(shared_data: Path) -> None:
    """Its solutions box nothing, so a third of the gold answers is boxed here, with other fractions and spaces.

    One of the 675 is no mathematics, ``t(0,4]``, and matches itself alone.
    """
    task = MathTask("olympiadbench", {"math": shared_data})
    assert len(problems(task)) == 675
    for problem in problems(task)[::3]:
        if problem.gold == "$t(0,4]$":
            continue
        spaced = problem.gold.replace("\\frac", "\\dfrac").replace(",", " , ")
        answer = final_answer(f"Hence $\\boxed{{{spaced}}}$.")
        assert answer is not None and task.is_right(problem, answer), problem.gold


def test_another_problems_answer_is_marked_wrong(shared_data: Path) -> None:
    """Golds of neighbouring problems are different as a rule; where they are alike they are alike as text."""
    for name in ("math500", "minerva", "olympiadbench"):
        task, right = MathTask(name, {"math": shared_data}), []
        for one, other in list(zip(problems(task), problems(task)[1:], strict=False))[:40]:
            if task.is_right(one, other.gold):
                right.append((one.gold, other.gold))
        assert all(len({gold.rpartition("=")[2].strip("$. ") for gold in pair}) == 1 for pair in right), right


def test_olympiadbench_examples(shared_data: Path, checker: MathChecker) -> None:
    """34 of the 35 triples; on the last, a tower of exponents, the comparison does not end and nothing is claimed."""
    undecided, differing, asked = [], [], 0
    for example in json.loads((shared_data / "olympiadbench/scoring_examples.json").read_text()):
        for given in example["Ans"]:
            asked += 1
            stated = given.get("precision", 1e-8)
            precision = tuple(map(float, stated if isinstance(stated, list) else [stated]))
            one = MathChecker(1.0) if example["GT"] == TOWER else checker
            try:
                equal = one.equal(example["GT"], given["answer"], AnswerRule(absolute=precision))
            except ScoreTimeoutError:
                undecided.append((example["GT"], given["answer"]))
            else:
                if equal != given["equal"]:
                    differing.append((example["GT"], given))
            if one is not checker:
                one.close()
    assert (asked, differing, undecided) == (36, [], [(TOWER, "10^{10}")])


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        ("1.6", "1.6 \\mathrm{~cm}", True), ("7.2", "7.2\\,\\mathrm{m}\\,\\mathrm{s}^{-1}", True),
        ("41.8", "41.8^{\\circ}", True), ("4.5e33", "4.5 \\times 10^{33} \\text{ erg/s}", True),
        ("4e33", "4 \\times 10^{32}", False), ("1.6", "1.60004", True), ("1.6", "1.61", False), ("3", "3x", False),
        ("3", "3\\pi", False), ("1000", "1,000", True), ("-1./3", "-\\frac{1}{3}", True), ("-3./2", "-1.5", True),
        ("np.arcsin(10/13)", "\\arcsin\\frac{10}{13}", True), ("0.5", "\\frac{1}{2}", True),
        ("np.arcsin(10/13)", "\\arccos\\frac{10}{13}", False),
    ],
)  # fmt: skip
def test_minerva_compares_numbers_and_drops_units(gold: str, answer: str, equal: bool, checker: MathChecker) -> None:
    assert checker.equal(gold, answer, AnswerRule(relative=1e-4, drop_units=True)) is equal


@pytest.mark.parametrize(
    ("gold", "answer", "absolute", "equal"),
    [
        ("1, 2, 2", "2, 1, 1", (1e-8,), False),
        ("1, 2", "1, 2, 3", (1e-8,), False),
        ("0.5, 0.9", "0.8, 0.6", (0.3, 0.05), False),  # 0.6 is the first one's, and 0.8 is not within 0.05 of 0.9
        ("0.5, 0.9", "0.88, 0.6", (0.3, 0.05), True), ("\\pm 2", "2, -2", (1e-8,), True),
        ("\\frac{1}{3}", "0.3333", (1e-8,), False), ("\\frac{1}{3}", "0.3333", (1e-3,), True),
    ],
)  # fmt: skip
def test_several_values_are_paired_off_within_their_tolerances(
    gold: str, answer: str, absolute: tuple[float, ...], equal: bool, checker: MathChecker
) -> None:
    assert checker.equal(gold, answer, AnswerRule(absolute=absolute)) is equal


def test_what_does_not_end_is_given_up_and_the_next_is_marked() -> None:
    with contextlib.closing(MathChecker(deadline_seconds=0.5)) as impatient:
        for answer in (TOWER, "\\sum_{n=1}^{10^{12}} \\frac{1}{n^{3.1}}", "(" * 2000 + "1" + ")" * 2000):
            assert impatient.equal("2", "4/2")
            began = time.monotonic()
            with pytest.raises(ScoreTimeoutError, match=r"0\.5 s"):
                impatient.equal("7", answer, OFFICIAL)
            assert time.monotonic() - began < 20
        assert impatient.equal("2", "\\sqrt{4}")
        assert not impatient.equal("2", "3")


def test_an_answer_is_read_and_never_run(tmp_path: Path) -> None:
    checker, mark = MathChecker(deadline_seconds=0.5), tmp_path / "mark"
    for answer in (
        f"__import__('os').system('touch {mark}')", f"open('{mark}', 'w')", f"exec(\"open('{mark}', 'w')\")",
        f"\\input{{{mark}}}", f"\\write18{{touch {mark}}}", f"`touch {mark}`", "lambda: 7", "\ud800", "\\boxed{" * 999,
        "[1]*10**10", "10^{10^{10}}!", "\x00\x1b[2J", "{" * 5000 + "}" * 5000,
    ):  # fmt: skip
        with contextlib.suppress(ScoreTimeoutError):
            assert not checker.equal("7", answer)
    checker.close()
    assert not mark.exists()


def worker_of(checker: MathChecker) -> int:
    """Id of the process that serves: within the sandbox it is the last of its line."""
    assert checker.equal("1", "1") and checker._worker is not None
    return innermost(checker._worker.pid)


def innermost(pid: int) -> int:
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[-1])
    return pid


def test_a_worker_that_dies_is_replaced_and_the_question_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(MathChecker()) as one:
        os.kill(worker_of(one), signal.SIGKILL)
        assert one.equal("1", "1") and not one.equal("1", "2")
        one.close()
        started = math_checker._started

        def doomed() -> Any:
            worker = started()
            os.kill(innermost(worker.pid), signal.SIGKILL)
            return worker

        monkeypatch.setattr(math_checker, "_started", doomed)
        with pytest.raises(ScoreTimeoutError, match="ended twice"):
            one.equal("1", "1")
    monkeypatch.undo()
    monkeypatch.setattr(math_checker, "_SOURCE_ROOT", Path("/usr/share"))
    with contextlib.closing(MathChecker()) as lost, pytest.raises(CheckerError, match="does not start"):
        lost.equal("1", "1")


def test_memory_is_bounded() -> None:
    with contextlib.closing(MathChecker(deadline_seconds=5)) as one:
        limits = Path(f"/proc/{worker_of(one)}/limits").read_text()
        assert next(line for line in limits.splitlines() if "address space" in line).split()[3:5] == ["1073741824"] * 2
        with pytest.raises(ScoreTimeoutError, match=r"MemoryError|processor time"):
            one.equal("7", "2^{2^{2^{40}}}", OFFICIAL)
        assert one.equal("2", "\\sqrt{4}")


def test_the_worker_has_no_network_and_no_files_of_the_host() -> None:
    try:
        require_sandbox()
    except SandboxUnsupportedError:
        pytest.skip("no bubblewrap here: the worker is an ordinary process with limits")
    with contextlib.closing(MathChecker()) as one:
        pid = worker_of(one)
        routes = Path(f"/proc/{pid}/net/dev").read_text()
        assert [line.split(":")[0].strip() for line in routes.splitlines()[2:]] == ["lo"]
        assert [path.name for path in (Path(f"/proc/{pid}/root") / "etc").iterdir()] == ["ld.so.cache"]


def test_marking_needs_no_more_than_the_last_box(shared_data: Path) -> None:
    task = MathTask("aime24", {"math": shared_data})
    sample = next(s for s in task.samples(100_000, 30, 0, Words()) if s.meta.gold == "025")
    for text, mark in (("\\boxed{25}", 1), ("\\boxed{025}", 1), ("\\boxed{50/2}", 1), ("\\boxed{26}", 0), ("25", 0)):
        assert task.score(sample, f"I think {text}.", ()).value == mark
