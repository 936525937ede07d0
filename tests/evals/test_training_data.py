"""Head roles are trained on no question, book or wording that is scored."""

from __future__ import annotations

import random
from pathlib import Path

from longdecode.engine.tokenizer import load_tokenizer
from longdecode.evals.datasets.books import UNSEEN
from longdecode.evals.tasks.continuation import TUNING_BOOKS
from longdecode.evals.tasks.longbench import read_v1_rows
from longdecode.evals.tasks.registry import get_task
from longdecode.training.roles.data.hotpotqa import HotpotQuestion, unasked
from longdecode.training.roles.data.passkey import Passkey, generated_haystack


def test_questions_of_hotpotqa_are_not_those_of_longbench(shared_data: Path) -> None:
    folder, other = shared_data / "longbench_en", HotpotQuestion("Who asks nobody?", "", (), ())
    asked = [row.text("input") for row in read_v1_rows(folder, "hotpotqa", 999)]
    same = [HotpotQuestion(text.upper(), "", (), ()) for text in asked]
    assert len(same) > 20 and unasked([*same, other], folder) == [other]


def test_training_books_are_no_books_that_tasks_read(shared_data: Path) -> None:
    lines = (shared_data / "TRAINING_BOOKS.md").read_text(encoding="utf-8").splitlines()
    ids = {book for line in lines if line[:2] in ("A\t", "B\t") for book in line.split("\t")[1].split(",")}
    scored = {path.stem for path in (shared_data / "pg19_books" / "test").glob("*.txt")}
    assert len(ids) > 150 and len(scored) == 20 and not ids & {*scored, *UNSEEN, *TUNING_BOOKS}


def test_passkeys_of_training_are_worded_otherwise_than_scored_ones(byte_checkpoint: Path) -> None:
    tokenizer = load_tokenizer(byte_checkpoint)
    sample = Passkey(tokenizer, generated_haystack(tokenizer), 1).sample(random.Random(0), 900)
    question = tokenizer.decode(sample.targets).strip().partition("? ")[0]
    (needle,) = (line[:30] for line in tokenizer.decode(sample.context).splitlines() if "passkey" in line)
    for name in ("passkey_depth_50", "ruler_niah_multikey_2", "ruler_vt"):
        (scored,) = get_task(name).samples(2048, 1, 0, tokenizer)
        assert len(question) > 20 and question not in scored.prompt + scored.forced and needle not in scored.prompt
