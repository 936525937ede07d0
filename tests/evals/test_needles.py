"""One value in a haystack: passkeys and json_kv, published examples rebuilt, needles at depth, contexts filled."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fake_tokenizer import pieces
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.evals.generators.ruler import NOISE as FILLER
from longdecode.evals.scoring.answer_text import substring_exact_match
from longdecode.evals.tasks.base import Sample
from longdecode.evals.tasks.needles import PLACES, QUESTION, ask, passkey_text
from longdecode.evals.tasks.registry import get_task, suite_tasks

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


@pytest.fixture(params=["bytes", "pieces"])
def tokenizer(request: pytest.FixtureRequest, byte_checkpoint: Path) -> TextTokenizer:
    """Bytes, or pieces of at most four characters behind a begin-of-text token."""
    return load_tokenizer(byte_checkpoint) if request.param == "bytes" else pieces()


def table_of(sample: Sample) -> dict[str, str]:
    """The object of a prompt, in its order."""
    return json.JSONDecoder().raw_decode(sample.prompt)[0]


def test_the_answer_is_the_value_of_the_asked_key_at_its_depth(tokenizer: TextTokenizer, seed: int) -> None:
    for sample in get_task("json_kv").samples(4096, 2 * PLACES, seed, tokenizer):
        table = table_of(sample)
        assert all(re.fullmatch(UUID, text) for pair in table.items() for text in pair)
        (key,) = re.findall(UUID, sample.forced)
        assert table[key] == sample.meta and sample.prompt.count(key) == sample.prompt.count(sample.meta) == 1
        others = len(table) - 1
        assert abs(list(table).index(key) - others * (sample.index % PLACES) / (PLACES - 1)) <= 0.5


def test_two_other_keys_are_answered_first_as_the_asked_one_is_to_be(tokenizer: TextTokenizer, seed: int) -> None:
    (sample,) = get_task("json_kv").samples(2048, 1, seed, tokenizer)
    table, (key,) = table_of(sample), re.findall(UUID, sample.forced)
    shape = re.escape(sample.forced).replace(re.escape(key), f"({UUID})")
    shown = re.findall(rf"{shape} ({UUID})\n\n", sample.prompt)
    assert len(shown) == 2 and len({name for name, _ in shown} | {key}) == 3
    assert all(table[name] == value for name, value in shown)


def test_published_objects_have_the_form_of_ours(shared_data: Path, tokenizer: TextTokenizer, seed: int) -> None:
    (ours,) = get_task("json_kv").samples(4096, 1, seed, tokenizer)
    files = sorted((shared_data / "kv_retrieval").glob("*.jsonl"))
    examples = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(examples) == 15
    for example in examples:
        table = dict(map(tuple, example["ordered_kv_records"]))
        made, question, value = ask(table, example["key"], [key for key in table if key != example["key"]][:2])
        assert value == example["value"] == table[example["key"]]
        for prompt in (made, ours.prompt):  # one pair a line, version-4 identifiers as keys and values
            lines = prompt.partition("\n}")[0].splitlines()
            assert lines[0] == "{" and all(re.fullmatch(rf'"{UUID}": "{UUID}",?', line) for line in lines[1:])
        assert table_of(Sample(0, made, question, 1, None, None)) == table
        assert re.sub(UUID, "", question) == re.sub(UUID, "", ours.forced)


def test_a_value_is_marked_wherever_it_stands(tokenizer: TextTokenizer, seed: int) -> None:
    task = get_task("json_kv")
    first, second = task.samples(2048, 2, seed, tokenizer)
    for right in (f" {first.meta}", f'"{first.meta.upper()}",\nKey: the next', first.meta.replace("-", "")):
        assert task.score(first, right, ()).value == 1
    for wrong in ("", first.meta[:-1], second.meta, f"{first.meta[:18]} {first.meta[18:]}"):
        assert task.score(first, wrong, ()).value == 0


def test_marks_ignore_case_punctuation_articles_and_blanks() -> None:
    assert substring_exact_match("It is  the (Quartz) heron!", "a quartz, Heron") == 1
    assert substring_exact_match("It is a heron of quartz.", "quartz heron") == 0
    assert substring_exact_match("theheron", "the heron") == 1
    assert substring_exact_match("another heron", "other the heron") == 1
    assert substring_exact_match("an other heron", "another heron") == 0


def test_a_context_too_short_is_unsupported(tokenizer: TextTokenizer) -> None:
    with pytest.raises(UnsupportedCellError, match="json_kv does not fit 300"):
        get_task("json_kv").samples(300, 1, 0, tokenizer)


def test_published_passkeys_are_rebuilt_byte_for_byte(shared_data: Path) -> None:
    lines = (shared_data / "passkey" / "passkey_examples.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4
    for line in lines:
        example = json.loads(line)
        before, _, after = example["input"].partition("The pass key is")
        rebuilt = passkey_text(str(example["target"]), before.count(FILLER), after.count(FILLER))
        assert rebuilt.encode() == example["input"].encode()


@pytest.mark.parametrize("name", suite_tasks("passkey"))
@pytest.mark.parametrize("context", [777, 3000])
def test_keys_stand_at_their_depth_in_a_context(name: str, context: int, tokenizer: TextTokenizer, seed: int) -> None:
    task, depth = get_task(name), int(name.rpartition("_")[2])
    many = task.samples(context, 3, seed, tokenizer)
    assert task.samples(context, 2, seed, tokenizer) == many[:2] and len({sample.meta for sample in many}) == 3
    for sample in many:
        used = len(tokenizer.encode(sample.prompt)) + len(tokenizer.encode(sample.forced)) + sample.max_new_tokens
        assert context - len(FILLER) - 1 < used + 1 <= context + 1
        before, _, after = sample.prompt.partition(f"The pass key is {sample.meta}. Remember it.")
        lines = before.count(FILLER) + after.count(FILLER)
        assert abs(before.count(FILLER) - lines * depth / 100) <= 0.5 and sample.forced == QUESTION


def test_the_first_number_is_the_answer(tokenizer: TextTokenizer) -> None:
    task = get_task("passkey_depth_0")
    sample = task.samples(600, 1, 0, tokenizer)[0]
    assert task.score(sample, f" {sample.meta}. Remember 1", ()).value == 1
    assert task.score(sample, f"1 {sample.meta}", ()).value == 0
    assert task.score(sample, f"{sample.meta}0", ()).value == task.score(sample, "", ()).value == 0
