"""Generated problems: marks that tell right from wrong, and narratives that agree with themselves."""

from __future__ import annotations

import random

import pytest

from longdecode.evals.generators import lookup, narrative, prose


def test_marks_of_lookups_count_each_question_by_its_key(seed: int) -> None:
    items = lookup.longgen(random.Random(seed), 15, 2048).items
    assert lookup.marks(items, " ".join(items) + "\n") == (True,) * 15
    skipped = " ".join(items[1:]) + "\n"
    assert lookup.marks(items, skipped) == (False, *(True,) * 14)
    wrong_value = items[0][:-1] + ("0" if items[0][-1] != "0" else "1")
    assert lookup.marks(items, " ".join((wrong_value, *items))) == (False, *(True,) * 14), "first mention counts"
    assert lookup.marks(items, "\n" + " ".join(items)) == (False,) * 15, "only the first line counts"


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
