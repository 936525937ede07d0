"""LongBench's metrics: the published scores of real predictions, and each rule on cases worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.scoring.longbench import METRICS, first_line, rouge_l, score_answers
from longdecode.evals.tasks.base import Sample
from longdecode.evals.tasks.longbench import ENGLISH_EIGHT, PROTOCOLS, LongBench


@pytest.mark.parametrize("dataset", ENGLISH_EIGHT)
def test_real_predictions_get_their_published_score(dataset: str, shared_data: Path) -> None:
    folder = shared_data / "longbench" / "scorer_golden" / "llama2-7b-chat"
    published = json.loads((folder / "result.json").read_text())[dataset]
    task, scores = LongBench(dataset, {"longbench": None}), []
    for line in (folder / f"{dataset}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        sample = Sample(0, "", "", 1, None, (tuple(row["answers"]), row["all_classes"]))
        scores.append(task.score(sample, row["pred"], ()).value)
    assert len(scores) in (150, 200) and round(100 * sum(scores) / len(scores), 2) == published


def test_rouge_l_counts_different_words_of_the_union_over_sentences() -> None:
    # Lin 2004's example: w1 w2 and w1 w3 w5 in common with the reference's five words, four of them different.
    lin = 2 * (4 / 8) * (4 / 5) / (4 / 8 + 4 / 5)
    assert rouge_l("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5.", "w1 w2 w3 w4 w5.") == pytest.approx(lin, abs=1e-7)
    assert rouge_l("a a a b", "a b b") == pytest.approx(1.0, abs=1e-7)
    assert rouge_l("", "a b") == rouge_l("...", "a") == rouge_l("c d", "a b") == 0
    assert rouge_l("the cat sat", "The cat sat") == pytest.approx(2 / 3, abs=1e-7)


def test_question_answering_compares_bare_words() -> None:
    score = METRICS["qa_f1"]
    assert score("The Eiffel-Tower, in Paris!", "eiffeltower paris", None) == pytest.approx(0.8)
    assert score("an apple", "the apple", None) == 1 and score("", "x", None) == score("y", "x", None) == 0
    assert score_answers("qa_f1", "Rome", ("Paris", "Rome, Italy", "Rome")) == 1


def test_numbers_are_right_by_their_share() -> None:
    assert METRICS["count"]("7, 7 or 8", "7", None) == pytest.approx(2 / 3)
    assert METRICS["count"]("none", "7", None) == 0
    assert METRICS["retrieval"]("Paragraph 15 and 3", "Paragraph 15", None) == 0.5
    assert METRICS["retrieval"]("Paragraph 150", "Paragraph 15", None) == 0
    with pytest.raises(DataUnavailableError, match="no paragraph"):
        METRICS["retrieval"]("1", "the first", None)


def test_class_names_share_the_point_but_parts_of_the_right_one_are_free() -> None:
    score = METRICS["classification"]
    classes = ("Date", "Person", "Other number", "number", "Individual")
    assert score("Other number", "Other number", classes) == 1 and score("Date or Person", "Person", classes) == 0.5
    assert score("Individual", "Person", classes) == 0
    # Two free names in a row: the official loop skips the second, which then counts.
    assert score("ab c", "ab c", ("a", "b", "ab c")) == 0.5


def test_code_is_compared_by_its_first_line_of_code_in_whole_percents() -> None:
    score = METRICS["code_similarity"]
    assert score("\n```python\n# a comment\nreturn x\nmore", "return x", None) == 1
    assert score("abcd", "abcf", None) == 0.75 and score("abc", "abd", None) == 0.67
    assert score("# only a comment", "x", None) == 0


def test_a_choice_is_the_letter_said_last_or_first_of_all() -> None:
    score = METRICS["accuracy"]
    for text, letter in (
        ("The correct answer is (B).", "B"), (" **C**", "C"), ("(D) because A is wrong", "D"), ("B. It says so", "B"),
        ("The answer is A. No: the correct answer is (C)", "C"), ("Answer: **D**", "D"), ("A", "A"),
    ):  # fmt: skip
        assert [score(text, one, None) for one in "ABCD"] == [float(one == letter) for one in "ABCD"], text
    for text in ("", "A table shows this", "none of them", "E", "Both"):
        assert not any(score(text, one, None) for one in "ABCD"), text


def test_few_shot_tasks_are_marked_on_their_first_line() -> None:
    assert first_line("\n\nParis\n\nPassage: more") == "Paris"
    assert {name for name, protocol in PROTOCOLS.items() if protocol.first_line} == {"trec", "triviaqa", "samsum"}
    sample = Sample(0, "", "", 1, None, (("Paris",), None))
    assert LongBench("triviaqa", {"longbench": None}).score(sample, "\nParis\nParis is", ()).value == 1
    assert LongBench("hotpotqa", {"longbench": None}).score(sample, "\nParis\nParis is", ()).value < 1


def test_every_protocol_names_a_metric() -> None:
    assert {protocol.metric for protocol in PROTOCOLS.values()} == set(METRICS)
