"""icl: every copy of a set read by its fields, rounds that hold each label once, contexts filled, labels marked."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest

from json_lines import write_rows
from longdecode.engine.errors import DataUnavailableError, UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.scoring.answer_text import exact_match
from longdecode.evals.tasks.base import Sample
from longdecode.evals.tasks.icl import SETS, ManyShot, label_question, read_texts
from longdecode.evals.tasks.registry import get_task

HUB = {
    "trec_coarse": {"text": "Who?", "coarse_label": 3, "fine_label": 0},
    "trec_fine": {"text": "Who?", "coarse_label": 0, "fine_label": 3},
    "banking77": {"text": "Who?", "label": 3, "label_text": "who"},
    "clinc150": {"text": "Who?", "intent": 3},
    "nlu": {"text": "Who?", "scenario": "x", "label": 3},
}
IDS = {
    "trec_coarse": "CogComp/trec", "trec_fine": "CogComp/trec", "banking77": "mteb/banking77",
    "clinc150": "clinc/clinc_oos", "nlu": "xingkunliuxtracta/nlu_evaluation_data",
}  # fmt: skip
SIZES = {  # labels; rows of train and test in the slices at hand
    "trec_coarse": (6, 5452, 500), "trec_fine": (50, 5452, 500), "banking77": (77, 770, 231),
    "clinc150": (150, 1500, 300), "nlu": (64, 576, 64),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """BANKING77 in the hub's fields: three labels of 2, 3 and 40 texts, and two texts of each to ask about."""
    for split, counts in (("train", ((0, 2), (1, 3), (2, 40))), ("test", ((0, 2), (1, 2), (2, 2), (9, 1)))):
        labels = [(label, i) for label, count in counts for i in range(count)]
        texts = [{"text": f"{split} {label} text {i}", "label": label} for label, i in labels]
        write_rows(tmp_path / "banking77" / f"{split}.jsonl", texts)
    return tmp_path


def examples(sample: Sample) -> list[tuple[str, str]]:
    """Text and number of every example, read off the prompt."""
    return re.findall(r"Text: (.*)\nLabel: (\d+)\n\n", sample.prompt)


@pytest.mark.parametrize("name", SETS)
def test_the_hubs_rows_are_read_by_their_fields(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def load(*given: Any, **named: Any) -> list[Any]:
        calls.append((given, named["split"]))
        return [HUB[name]] * 10

    monkeypatch.setattr(datasets, "load_dataset", load)
    for part, count in (("train", 9), ("test", 1)) if name == "nlu" else (("train", 10), ("test", 10)):
        rows = read_texts(name, part, Path("hub"))  # type: ignore[arg-type]
        assert len(rows) == count and set(rows) == {("Who?", "3")}
    splits = ["train", "train"] if name == "nlu" else ["train", "test"]
    assert calls == [((IDS[name], "plus" if name == "clinc150" else None), split) for split in splits]


@pytest.mark.parametrize("name", SETS)
def test_the_sets_at_hand_are_read_whole(name: str, shared_data: Path) -> None:
    train, test = (read_texts(name, part, shared_data / "icl") for part in ("train", "test"))  # type: ignore[arg-type]
    assert (len({label for _, label in train}), len(train), len(test)) == SIZES[name]
    assert {label for _, label in test} <= {label for _, label in train} and all(text for text, _ in (*train, *test))
    assert name != "nlu" or not set(test) & set(train)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("context", [16384, 32768])
def test_real_examples_hold_the_answer(name: str, context: int, shared_data: Path, tokenizer: TextTokenizer) -> None:
    """And fill the context."""
    task = get_task(f"icl_{name}", {"icl": shared_data / "icl"})
    shown_as = dict(read_texts(name, "train", shared_data / "icl"))  # type: ignore[arg-type]
    asked_as = dict(read_texts(name, "test", shared_data / "icl"))  # type: ignore[arg-type]
    for sample in task.samples(context, 2, 0, tokenizer):
        used = len(tokenizer.encode(sample.prompt)) + len(tokenizer.encode(sample.forced)) + sample.max_new_tokens
        assert context * 0.95 < used <= context
        shown = examples(sample)
        labels = {shown_as[text]: number for text, number in shown}
        counts = Counter(number for _, number in shown)
        assert len(labels) == SIZES[name][0] and max(counts.values()) - min(counts.values()) <= 1
        (text,) = re.fullmatch(r"Text: (.*)\nLabel:", sample.forced).groups()  # type: ignore[union-attr]
        assert labels[asked_as[text]] == sample.meta and task.score(sample, f" {sample.meta}\n\n", ()).value == 1


def test_rounds_hold_each_label_once_and_texts_begin_again(folder: Path, tokenizer: TextTokenizer, seed: int) -> None:
    for sample in get_task("icl_banking77", {"icl": folder}).samples(1500, 4, seed, tokenizer):
        shown = examples(sample)
        kinds = [text.split()[1] for text, _ in shown]
        assert len(shown) > 12 and all(text.startswith("train") for text, _ in shown)
        for start in range(0, len(shown) - 2, 3):
            assert sorted(kinds[start : start + 3]) == ["0", "1", "2"]
        assert len(set(zip(kinds, (number for _, number in shown), strict=True))) == 3
        first = [text for text, _ in shown if text.startswith("train 0")]
        assert first[:2] == first[2:4] and first[0] != first[1]


def test_samples_of_a_seed_ask_the_same_at_each_context(folder: Path, tokenizer: TextTokenizer, seed: int) -> None:
    """Samples depend on seed and index."""
    task = get_task("icl_banking77", {"icl": folder})
    many = task.samples(1500, 99, seed, tokenizer)
    assert len(many) == 6 and task.samples(1500, 2, seed, tokenizer) == many[:2]  # one asks for a label never shown
    assert [s.forced for s in task.samples(900, 99, seed, tokenizer)] == [s.forced for s in many]
    assert [s.forced for s in task.samples(1500, 99, seed + 1, tokenizer)] != [s.forced for s in many]
    assert len({tuple({text.split()[1]: number for text, number in examples(s)}.items()) for s in many}) > 1
    with pytest.raises(UnsupportedCellError, match="icl_banking77 does not fit 250"):
        task.samples(250, 1, seed, tokenizer)


def test_a_labels_number_says_nothing_about_its_name() -> None:
    texts = {str(i): [f"t{i}"] for i in range(8)}
    answers = Counter(label_question(random.Random(i), texts, 8, "t0", "0")[2] for i in range(400))
    assert set(answers) == set(map(str, range(8))) and max(answers.values()) < 100


def test_a_label_is_the_first_line() -> None:
    for right in ("7", " 7\n\nText: next", "Label: 7", "\n7.", " label:7 "):
        assert exact_match(right, "7") == 1
    for wrong in ("", "17", "7 8", "8\n7", "Text: 7"):
        assert exact_match(wrong, "7") == 0


def test_rows_of_another_form_are_refused(folder: Path) -> None:
    for key, said in {"intent": "line 1 lacks 'category'", "label": "no text has an example's label"}.items():
        (folder / "banking77" / "train.jsonl").write_text(f'{{"text": "a", "{key}": 99}}\n')
        with pytest.raises(DataUnavailableError, match=said):
            ManyShot("banking77", {"icl": folder}).asked  # noqa: B018
