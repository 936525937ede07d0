"""The generated problems: exact lengths, answers that can be read off the prompt, marks that tell right from wrong."""

from __future__ import annotations

import random
import re

import pytest

from longdecode.evals.generators import chain, lookup, narrative, prose

LENGTHS = (512, 1000, 2048, 4097, 16384)


def _records(prompt: str) -> dict[str, str]:
    """Every bracketed record of a prompt, read without the generator's own tables."""
    return dict(re.findall(r"\[([a-z]{4})[=>]([^\]]+)\]", prompt))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("variant", ["single", "multikey", "two_hop"])
def test_recall_is_exactly_long_and_answered_by_its_records(variant: lookup.Variant, length: int, seed: int) -> None:
    episode = lookup.recall(random.Random(seed), variant, length)
    assert len(episode.text) == length
    assert episode.text.isascii()
    records = _records(episode.prompt)
    for asked, item in zip(episode.question.split()[1:], episode.items, strict=True):
        if variant == "two_hop":
            assert item == f"{asked}{records[asked[:-1]]}={records[records[asked[:-1]]]}"
        else:
            assert item == f"{asked}={records[asked]}"
    assert episode.answer == " ".join(episode.items) + "\n"


@pytest.mark.parametrize("questions", [15, 30, 45])
def test_longgen_asks_distinct_keys_inside_the_prompt(questions: int, seed: int) -> None:
    episode = lookup.longgen(random.Random(seed), questions, 2048)
    asked = episode.prompt.rsplit("? ", 1)[1].split()
    assert len(set(asked)) == questions == len(episode.items)
    assert [item.split("=")[0] for item in episode.items] == asked
    assert len(episode.text) == 2048


def test_marks_of_lookups_count_each_question_by_its_key(seed: int) -> None:
    items = lookup.longgen(random.Random(seed), 15, 2048).items
    assert lookup.marks(items, " ".join(items) + "\n") == (True,) * 15
    skipped = " ".join(items[1:]) + "\n"
    assert lookup.marks(items, skipped) == (False, *(True,) * 14)
    wrong_value = items[0][:-1] + ("0" if items[0][-1] != "0" else "1")
    assert lookup.marks(items, " ".join((wrong_value, *items))) == (False, *(True,) * 14), "first mention counts"
    assert lookup.marks(items, "\n" + " ".join(items)) == (False,) * 15, "only the first line counts"


@pytest.mark.parametrize("length", [1024, 2048, 16384])
@pytest.mark.parametrize("steps", [8, 16])
def test_chain_can_be_walked_from_the_prompt(steps: int, length: int, seed: int) -> None:
    episode = chain.chain(random.Random(seed), steps, length)
    assert len(episode.text) == length
    records = _records(episode.prompt)
    node, total, walked = episode.question.split()[1], 0, []
    while records[node] != "stop":
        target, amount = records[node].split("+")
        total = (total + int(amount)) % 10
        walked.append(f"{node}>{target}+{amount}={total}")
        node = target
    assert tuple(walked) == episode.items
    assert len(walked) == steps
    assert episode.answer.endswith(f"{node}>stop\n")


def test_marks_of_chains_go_by_place(seed: int) -> None:
    items = chain.chain(random.Random(seed), 8, 1024).items
    assert chain.marks(items, " ".join(items)) == (True,) * 8
    assert chain.marks(items, " ".join(items[1:])) == (False,) * 8
    assert chain.marks(items, " ".join(items[:3])) == (True,) * 3 + (False,) * 5


def test_a_narrative_agrees_with_itself_and_a_changed_fact_is_caught(seed: int) -> None:
    episode = narrative.narrative(random.Random(seed), 8192, 2048)
    assert len(episode.text) == 8192
    marks = narrative.check_statements(episode.prompt, episode.answer)
    assert len(marks) > 10
    assert all(marks)
    known = narrative.retold(episode.text)[-1]
    altered = episode.text[: known.start] + "Nowhere" + episode.text[known.start + len(known.value) :]
    cut = len(episode.prompt)
    assert narrative.check_statements(altered[:cut], altered[cut:]).count(False) == 1


def test_a_fact_told_for_the_first_time_is_not_marked() -> None:
    assert narrative.check_statements("", "Bran lives in Holm. ") == ()
    assert narrative.check_statements("Bran lives in Holm. ", "Bran walked home to Holm. Bran lives in Rome. ") == (
        True,
        False,
    )


def test_most_of_a_long_narrative_retells(seed: int) -> None:
    """The coupon collector: 96 facts, so the share of retold statements grows with the position."""
    text = narrative.narrative(random.Random(seed), 16384, 0).prompt
    retold = {statement.start for statement in narrative.retold(text)}
    told = [statement.start in retold for statement in narrative.statements(text)]
    quarter = len(told) // 4
    assert sum(told[:quarter]) < 0.8 * quarter < 0.9 * quarter < sum(told[-quarter:])


def test_hide_refuses_records_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="need 24 bytes; 20 are available"):
        prose.hide(random.Random(0), ["abcd=0123", "efgh=4567"], 20)
