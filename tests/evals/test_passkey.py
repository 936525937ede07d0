"""Passkey: published examples rebuilt byte for byte, keys at their depth, contexts filled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.generators.ruler import NOISE as FILLER
from longdecode.evals.tasks.needles import QUESTION, passkey_text
from longdecode.evals.tasks.registry import get_task, suite_tasks


def test_published_examples_are_rebuilt_byte_for_byte(shared_data: Path) -> None:
    lines = (shared_data / "passkey" / "passkey_examples.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4
    for line in lines:
        example = json.loads(line)
        before, _, after = example["input"].partition("The pass key is")
        rebuilt = passkey_text(str(example["target"]), before.count(FILLER), after.count(FILLER))
        assert rebuilt.encode() == example["input"].encode()


@pytest.mark.parametrize("name", suite_tasks("passkey"))
@pytest.mark.parametrize("context", [777, 3000])
def test_keys_stand_at_their_depth_in_a_full_context(
    name: str, context: int, tokenizer: TextTokenizer, seed: int
) -> None:
    task = get_task(name)
    depth = int(name.rpartition("_")[2])
    many = task.samples(context, 3, seed, tokenizer)
    assert task.samples(context, 2, seed, tokenizer) == many[:2]
    assert len({sample.meta for sample in many}) == 3
    for sample in many:
        used = len(tokenizer.encode(sample.prompt)) + len(tokenizer.encode(sample.forced)) + sample.max_new_tokens
        assert context - len(FILLER) - 1 < used + 1 <= context + 1
        before, _, after = sample.prompt.partition(f"The pass key is {sample.meta}. Remember it.")
        lines = before.count(FILLER) + after.count(FILLER)
        assert abs(before.count(FILLER) - lines * depth / 100) <= 0.5
        assert sample.forced == QUESTION


def test_the_first_number_is_the_answer(tokenizer: TextTokenizer) -> None:
    task = get_task("passkey_depth_0")
    sample = task.samples(600, 1, 0, tokenizer)[0]
    assert task.score(sample, f" {sample.meta}. Remember 1", ()).value == 1
    assert task.score(sample, f"1 {sample.meta}", ()).value == 0
    assert task.score(sample, f"{sample.meta}0", ()).value == task.score(sample, "", ()).value == 0
