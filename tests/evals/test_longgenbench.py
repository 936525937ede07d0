"""LongGenBench: published prompts byte for byte, published scores of real outputs; then data and answers gone wrong."""

from __future__ import annotations

import csv
import json
import random
import time
from pathlib import Path

import pytest

from fake_tokenizer import Words
from json_lines import read_rows, write_rows
from longdecode.engine.errors import DataUnavailableError, UnsupportedCellError
from longdecode.evals.scoring.longgenbench import marks_by_number, original_marks, scope_marks
from longdecode.evals.tasks.base import Sample
from longdecode.evals.tasks.longgenbench import _TEXTS, LongGenBench, questions_text, read_groups
from longdecode.evals.tasks.registry import suite_tasks

# Llama-3.1-8B-Instruct, full attention: github Linking-ai/SCOPE, results_longgenbench_4K/.../results.csv.
PUBLISHED = {"gsm8k": 53.2558, "mmlu": 54.4025}
DEMO = "lead\n\nQ: one?\n(A) x (B) y\nA: Because. The answer is (B).\n\nQ: two?\n(A) u (B) v\nA: So. The answer is (A)."


def sample(task: LongGenBench, place: int = 0, context: int = 9000) -> Sample:
    return task.samples(context, 99, 0, Words())[place]  # type: ignore[arg-type]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Seven rows of GSM8K, seven of each release of CSQA, and three subjects of MMLU."""

    sums = [{"question": f"What is {i} + 1?", "answer": f"{i}+1\n#### {i + 1:,}"} for i in range(997, 1004)]
    write_rows(tmp_path / "gsm8k/test.jsonl", sums)
    choices = [{"label": letter, "text": f"t{letter}"} for letter in "ABCDE"]
    flat = {"label": list("ABCDE"), "text": [f"t{letter}" for letter in "ABCDE"]}
    write_rows(
        tmp_path / "commonsense_qa/dev_rand_split.jsonl",
        [{"answerKey": "E", "id": "i", "question": {"choices": choices, "stem": f"stem {i}"}} for i in range(4)]
        + [{"answerKey": "A", "id": "i", "question": f"stem {i}", "choices": flat} for i in range(4, 7)],
    )
    for subject in ("anatomy", "virology", "security_studies"):
        stems = [f"{subject} {i}?" for i in range(4)]
        if subject == "virology":
            stems[2] = "a passage\n\nand a question?"
        path = tmp_path / "deep" / "test" / f"{subject}_test.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as handle:
            csv.writer(handle).writerows([stem, "None", "b", "c", "d", "ABCD"[i]] for i, stem in enumerate(stems))
    demos = dict.fromkeys(("anatomy", "virology", "security_studies"), DEMO)
    write_rows(tmp_path / "LongGenBench_MMLU_prompt.json", [demos])
    return tmp_path


def test_prompts_are_the_published_ones_byte_for_byte(shared_data: Path) -> None:
    for name, size in (("gsm8k", 30), ("gsm8k", 60), ("csqa", 40), ("csqa", 80)):
        published = read_rows(shared_data / "longgenbench" / "scope" / f"{name}_{size}.jsonl")
        groups = read_groups(shared_data, name, size)[: len(published)]
        assert [questions_text(group) for group in groups] == [row["prompt"] for row in published]


def test_mmlu_is_paired_by_row_where_the_release_is_shifted(shared_data: Path) -> None:
    for size, shifted in ((30, 100), (60, 220)):
        rows = read_rows(shared_data / "longgenbench" / "scope" / f"mmlu_{size}.jsonl")
        published = {row["task"].replace("_", " "): row for row in rows}
        groups = read_groups(shared_data, "mmlu", size)
        assert len(groups) == 52
        different = 0
        for group in groups:
            assert group.subject is not None
            release = published[group.subject]
            assert [gold for _, gold in group.questions] == release["answers"]
            bare = ["".join(text.split()) for text, _ in group.questions]
            theirs = ["".join(question.split()).replace("(A)nan", "(A)None") for question in release["questions"]]
            same = [ours == given for ours, given in zip(bare, theirs, strict=True)]
            # From its first question with a blank line on, a release's text is another row's.
            ends = next((place for place in range(size) if not any(same[place:])), size)
            # A choice that reads "NA" or "None" became "nan" in the release: nothing else differs before the shift.
            assert all(same[:ends]) or "nan" in "".join(theirs[:ends])
            different += size - ends
        assert different == shifted


@pytest.mark.parametrize(("name", "right", "original"), [("gsm8k", 851, (846, 1255)), ("mmlu", 878, (873, 1364))])
def test_real_outputs_score_as_published(name: str, right: int, original: tuple[int, int], shared_data: Path) -> None:
    """SCOPE's scorer gives the published score to four decimals; ours finds more, because nothing shifts."""
    outputs = read_rows(shared_data / "longgenbench" / "scorer_golden_4K_ALLKV_llama31_8b" / f"{name}.jsonl")
    scope, ours, theirs = [], [], []
    for output in outputs:
        golds = [answer.rpartition("####")[2].strip() for answer in output["answers"]]
        scope += scope_marks(output["pred"], golds)
        ours += marks_by_number(output["pred"], golds, 9 if name == "gsm8k" else 6)
        theirs += original_marks(output["pred"], golds)
    assert round(100 * sum(scope) / len(scope), 4) == PUBLISHED[name] and len(scope) == len(ours) == 30 * len(outputs)
    assert (sum(theirs), len(theirs)) == original and sum(mark is True for mark in ours) == right


def test_answers_count_by_number_wherever_they_stand() -> None:
    golds = ["18", "1,234", "5", "7", "-3", "2.50"]
    text = (
        "Here you go:\n\n**Answer_11**: same line, The answer is 5 apples in 3 days.\n\n"
        "Answer_9:\n9 x 2.\n\nThe answer is $18.\n"
        "Answer_10:\nno words 12 then 1,234\nAnswer_13: The answer is -3.\nAnswer 14:\nThe answer is 5 / 2 = 2.5\n"
        "Answer_9: The answer is 99.\nQuestion_12: The answer is 7.\nAnswer_15: The answer is 1."
    )
    # 12 was never answered: what stands under a question is no answer; 9 counts as first given.
    assert marks_by_number(text, golds, 9) == [True, True, True, None, True, True]
    assert marks_by_number("", golds, 9) == [None] * 6
    wrong = "Answer_9: The answer is 1/0. Answer_10: The answer is 1 234"
    assert marks_by_number(wrong, golds, 9)[:2] == [False, False]
    letters = "Answer_6: (A) is wrong. The answer is (B).\nAnswer_7: The answer is C\nAnswer_8:\nSurely (D), not (E)."
    assert marks_by_number(letters, ["B", "C", "E", "A"], 6) == [True, True, True, None]


@pytest.mark.parametrize(
    "said",
    [
        "9{,}500", "9,500", "9\\,500", "9\u202f500 km", "9\u2009500", "$\\mathbf{9{,}500}$ dollars", "\\$9{,}500",
        "\\text{9,500}", "\\boxed{\\textbf{9,500}}", "**9500**", "\uff19\uff15\uff10\uff10", "\\(9500\\)",
        "19 x 500 = 9,500", "9500 (5*1900)", "\\frac{19000}{2}",
    ],
)  # fmt: skip
def test_numbers_are_read_however_they_are_dressed(said: str) -> None:
    for sign, gold in (("", "9500"), ("-", "-9,500"), ("\u2212", "-9500"), ("\u2013", "-9500")):
        if not sign or said[0] in "9\uff19":
            assert marks_by_number(f"Answer_7: so 3.\nThe answer is {sign}{said}.", [gold], 7) == [True]


@pytest.mark.parametrize(
    "header",
    [
        "Answer6:", "Answer\\_6:", "Answer 6:", "Answer #6:", "Answer-6:", "**Answer 6:**", "**Answer_6**:",
        "### Answer 6\n", "## **Answer\\_6**\n", "*Answer 6*:", "_Answer 6:_", "__Answer_6:__", "- Answer_6:",
        "> **Answer 6**\n> ", "answer_6:", "ANSWER 6:", "6. Answer_6:", "Answer to Question 6:", "\uff21nswer_6\uff1a",
        "\\textbf{Answer\\_6:}", "Answer 6.", "Answer_{6}:",
    ],
)  # fmt: skip
def test_headers_are_read_however_they_are_written(header: str) -> None:
    text = f"Answer_5: The answer is 1.\n{header} 2 + 3.\nThe answer is 5.\n{header.replace('6', '7')} The answer is 8."
    assert marks_by_number(text, ["1", "5", "8"], 5) == [True] * 3


@pytest.mark.parametrize(
    "mention",
    [
        "As in Question_6 we halve 10.", "As in Answer_6 we halve 10.", "See Question_6: we halve 10.",
        "(Answer_6: 10.)", "Question_6 gave 10.", "We use\nQuestion_6 and halve.", "Answer_6 gave 10.\n",
        "By answer 6, 10.", "**Question 6** gave 10.", "Unlike Question_8 we halve.", "Halve. Question_8 will not.",
    ],
)  # fmt: skip
def test_a_mention_within_an_answer_cuts_nothing(mention: str) -> None:
    text = f"Answer_6:\nThe answer is 10.\nAnswer_7:\n{mention} The answer is 5.\nAnswer_8: The answer is 3."
    assert marks_by_number(text, ["10", "5", "3"], 6) == [True] * 3


def test_answers_on_one_line_and_questions_said_again() -> None:
    line = "Answer_6: The answer is 10 Answer_7: The answer is 5. Answer_8 The answer is 3"
    assert marks_by_number(line, ["10", "5", "3"], 6) == [True] * 3
    text = "Answer_6: It is 10. Question_7: 9 of 12? Answer_7: It is 5.\nQuestion_8\n1 of 4?\nAnswer_8: It is 3."
    assert marks_by_number(text, ["10", "5", "3"], 6) == [True] * 3
    letters = ("$\\mathbf{B}$", "\\text{(B)}", "_B_", "option (B)", "B.", "\\boxed{\\text{B}}", "\uff22")
    assert all(marks_by_number(f"Answer_6: The answer is {said}", ["B"], 6) == [True] for said in letters)


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("Which is wet?\n(A) sand (B) soup (C) salt (D) stone (E) silk", None),
        ("Which is wet?\nA) sand\nB) soup\nC) salt\nD) stone", None),
        ("Which is wet?\nA: sand B: soup C: salt. I say (B).", "B"),
        ("(A) sand (B) soup (C) salt (D) stone\n\n(B) soup", "B"),
        ("(A) sand (B) soup (C) salt (D) stone. (B)", "B"), ("(A) sand (B) soup (C) salt. The answer is (B).", "B"),
        ("(A) is dry, (B) is dry too, so (C) it must be.", "C"), ("Wet or not: (B) soup", "B"), ("B: soup", "B"),
        ("A higher share of water.", None), ("A", "A"), ("A is right.", "A"),
        ("At 15°C, in 300 B.P., by a C-H bond.", None),
    ],
)  # fmt: skip
def test_options_written_out_again_are_no_choice(said: str, letter: str | None) -> None:
    for gold in "ABCDE":
        wanted = None if letter is None else letter == gold
        assert marks_by_number(f"Answer_6:\n{said}\n\nAnswer_7: D.", [gold, "D"], 6) == [wanted, True]


def test_an_answer_behind_its_question_under_one_number_is_read() -> None:
    text = "Answer_6:\nWet?\n(A) sand (B) soup (C) salt\n\nAnswer_6: Soup is. The answer is (B).\n\nAnswer_6: (C)"
    assert marks_by_number(text, ["B"], 6) == [True]
    start = time.perf_counter()
    marks_by_number("Answer_6: " + "(A) x (B) y " * 20_000, ["C"], 6)
    assert time.perf_counter() - start < 2


def test_released_scorers_match_by_order() -> None:
    golds = ["18", "3", "1,234"]
    whole = "Answer_9:\nThe answer is 18.\n\nAnswer_10:\nThe answer is 3.\n\nAnswer_11:\nThe answer is 1,234."
    assert original_marks(whole, golds) == [True, True, False]  # its gold number is what follows the comma
    assert scope_marks(whole, golds) == [True, True, True]  # ... and here what stands before it
    lost = whole.replace("Answer_9:\nThe answer is 18", "Answer_9: The answer is $18")
    assert original_marks(lost, golds) == [False, False] and scope_marks(lost, golds) == [False] * 3
    assert marks_by_number(lost, golds, 9) == [True] * 3
    # Found in random text: whatever a model writes is marked, never an error.
    rng = random.Random(0)
    pieces = "Answer_ 9 10 answer_is answer is $ - , 1/0 (B) é Question_ .5 = 999999999999 B".split()
    pieces += [":\n", "\n\n", " ", "8" * 5000]
    for _ in range(300):
        text = "".join(rng.choices(pieces, k=30))
        for golds in (["18", "3"], ["A", "B"]):
            assert len(marks_by_number(text, golds, 9)) == 2
            assert len(original_marks(text, golds)) <= len(scope_marks(text, golds)) == 2


def test_groups_are_whole_and_in_order(data: Path) -> None:
    text = questions_text(read_groups(data, "gsm8k", 3)[1])
    assert "Question_9:\nWhat is 1000 + 1?\nQuestion_10:\n" in text and text.count("Answer_") == 8
    assert [gold for group in read_groups(data, "gsm8k", 3) for _, gold in group.questions] == [
        "998", "999", "1,000", "1,001", "1,002", "1,003",
    ]  # fmt: skip
    both = read_groups(data, "csqa", 7)[0].questions
    assert [gold for _, gold in both] == list("EEEEAAA")
    assert both[0][0] == "stem 0\n(A) tA (B) tB (C) tC (D) tD (E) tE\n" and both[6][0].startswith("stem 6\n(A) tA")
    demos = dict.fromkeys(("anatomy", "virology", *_TEXTS["dropped"]), DEMO)
    (data / "LongGenBench_MMLU_prompt.json").write_text(json.dumps(demos))
    groups = read_groups(data, "mmlu", 4)
    assert [group.subject for group in groups] == ["anatomy", "virology"]
    assert groups[0].demos[1] == ("two?\n(A) u (B) v", "So. The answer is (A).")
    assert groups[0].questions[1][0] == "anatomy 1?\n(A) None (B) b (C) c (D) d"


def test_a_sample_is_scored_question_by_question(data: Path) -> None:
    task = LongGenBench("gsm8k", 3, {"longgenbench": data})
    made = sample(task, 1)
    assert made.max_new_tokens == min(9000 - 3 - len(made.prompt.split()), 8192)
    score = task.score(made, "Answer_9:\nThe answer is 1001\n\nAnswer_11:\nThe answer is 1003", ())
    assert score.parts == (1.0, 0.0, 1.0) and score.value == pytest.approx(2 / 3)
    assert score.measures == {
        "answered": 2 / 3, "original_right": 0.0, "original_counted": 2.0, "scope_accuracy": 0.0,
    }  # fmt: skip
    with pytest.raises(UnsupportedCellError, match="leaves nothing to generate in a context of 100"):
        sample(task, context=100)
    assert suite_tasks("longgenbench")[:3] == tuple(f"longgenbench_gsm8k_{n}" for n in (15, 30, 45))


def test_too_few_questions_are_refused(data: Path) -> None:
    with pytest.raises(DataUnavailableError, match="data fetch longgenbench"):
        read_groups(data, "mmlu", 5)
    (data / "LongGenBench_MMLU_prompt.json").write_text("[3]")
    with pytest.raises(DataUnavailableError, match="cannot be read"):
        read_groups(data, "mmlu", 3)
    with pytest.raises(DataUnavailableError, match="7 questions, not 8"):
        read_groups(data, "csqa", 8)
