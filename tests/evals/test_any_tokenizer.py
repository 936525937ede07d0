"""Generated suites on bytes are what they were; on subwords they are told in words and fill the context."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from fake_tokenizer import subwords
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.evals.fingerprint import hash_texts
from longdecode.evals.generators import chain, lookup, prose
from longdecode.evals.generators.lookup import WORDS
from longdecode.evals.tasks.fitting import has_tokens, window
from longdecode.evals.tasks.registry import get_task

MINIATURE = Path(__file__).resolve().parents[2] / "models" / "miniature" / "weights"
# Prompt, forced text, expected items and length of sample 2 at seed 0, as the records of results/h200 were made from.
BEFORE = {
    ("mini_recall_single", 2048): "5e240dec450ecdc1", ("mini_recall_single", 16384): "939e83a958afa08a",
    ("mini_recall_multikey", 2048): "02378291dfcc6811", ("mini_recall_multikey", 16384): "82ea2201858b97a1",
    ("mini_recall_two_hop", 2048): "52c8f966ea88385d", ("mini_recall_two_hop", 16384): "db775113186c265c",
    ("mini_longgen_45", 2048): "e7e86e9c2441e45b", ("mini_longgen_45", 16384): "b28dbfc67cb78fa1",
    ("mini_reason_8", 2048): "86942056bcb0b985", ("mini_reason_8", 16384): "a0d67480bfa503f9",
    ("mini_book_loss", 2048): "b45dcef21663f009", ("mini_book_loss", 16384): "3eb6ae27f02351c5",
    ("mini_book_write", 2048): "84d3b72707b1aa33", ("mini_book_write", 16384): "63f5c914ad196cac",
}  # fmt: skip


FILLED = (
    *sorted({task for task, _ in BEFORE}), "passkey_depth_25", "json_kv", "json_kv_prompt", "ruler_niah_single_1",
    "ruler_niah_multikey_3_decoded", "ruler_vt", "ruler_fwe", "tuning_chain_12",
)  # fmt: skip


@pytest.fixture(scope="module", name="subwords")
def learned_subwords() -> TextTokenizer:
    return subwords()


@pytest.mark.parametrize(("task", "context"), BEFORE)
def test_bytes_are_as_they_were(task: str, context: int) -> None:
    sample = get_task(task).samples(context, 3, 0, load_tokenizer(MINIATURE))[2]
    made = hash_texts([sample.prompt, sample.forced, repr(sample.meta), str(sample.max_new_tokens)])
    assert made.startswith(BEFORE[task, context])


@pytest.mark.parametrize("task", FILLED)
def test_subwords_fill_the_context(task: str, subwords: TextTokenizer) -> None:
    first, second = get_task(task).samples(4096, 2, 0, subwords)
    assert first.prompt != second.prompt
    for sample in (first, second):
        total = len(subwords.prompt_ids(sample.prompt)) + len(subwords.encode(sample.forced)) + sample.max_new_tokens
        assert 4096 * 0.93 < total <= 4096 and sample == get_task(task).samples(4096, 2, 0, subwords)[sample.index]
    with pytest.raises(UnsupportedCellError):
        get_task(task).samples(64, 1, 0, subwords)


@pytest.mark.parametrize("task", FILLED)
def test_bytes_after_a_first_token_fill_the_context(task: str) -> None:
    inner = Tokenizer.from_file(str(MINIATURE / "tokenizer.json"))
    inner.post_processor = processors.TemplateProcessing(single="<|first|> $A", special_tokens=[("<|first|>", 300)])
    tokenizer = TextTokenizer(inner)
    assert tokenizer.byte_level and tokenizer.first_ids == (300,)
    (sample,) = get_task(task).samples(4096, 1, 0, tokenizer)
    prompt = tokenizer.prompt_ids(sample.prompt)
    assert prompt[0] == 300 and 4096 * 0.93 < len(prompt) + len(sample.forced) + sample.max_new_tokens <= 4096


def test_ninety_answers_in_words_fill_the_context_and_are_marked(subwords: TextTokenizer) -> None:
    task = get_task("mini_longgen_90")
    (sample,) = task.samples(6144, 1, 0, subwords)
    total = len(subwords.prompt_ids(sample.prompt)) + len(subwords.encode(sample.forced)) + sample.max_new_tokens
    assert 6144 * 0.93 < total <= 6144
    answer = WORDS.answer(sample.meta)
    assert len(subwords.encode(answer)) < sample.max_new_tokens and len(sample.meta) == 90
    assert task.score(sample, answer, ()).parts == (1.0,) * 90
    assert task.score(sample, WORDS.answer(sample.meta[:30]), ()).parts == (1.0,) * 30 + (0.0,) * 60


@pytest.mark.parametrize("variant", ["single", "multikey", "two_hop"])
def test_look_ups_in_words_are_answered_by_their_records(variant: lookup.Variant) -> None:
    episode = lookup.recall(random.Random(3), variant, 4000, wording=WORDS)
    assert len(episode.text) == 4000 and lookup.marks(episode.items, episode.answer) == (True,) * len(episode.items)
    for item in episode.items:
        asked, _, value = item.partition(" is ")
        key, _, target = asked.partition(" as ")
        assert f"[The number of {target or key} is {value}.]" in episode.prompt
        assert not target or f"[The number of {key} is that of {target}.]" in episode.prompt
    assert lookup.marks(episode.items, episode.answer.replace(value, "none"))[-1] is False


def test_marks_in_words_go_by_key_and_chains_by_place() -> None:
    items = lookup.longgen(random.Random(0), 15, 9000, wording=WORDS).items
    assert lookup.marks(items, WORDS.answer(items[1:])) == (False, *(True,) * 14)
    episode = chain.chain(random.Random(0), 4, 4000, wording=WORDS)
    assert chain.marks(episode.items, episode.answer) == (True,) * 4
    assert chain.marks(episode.items, WORDS.answer(episode.items[1:])) == (False,) * 4


def test_a_window_is_cut_where_both_sides_keep_their_tokens(subwords: TextTokenizer) -> None:
    text = prose.filler(random.Random(5), 30_000)
    for seed in range(4):
        prompt, tail = window(text, random.Random(seed), 1000, 100, subwords)
        whole = subwords.encode(prompt + tail)
        assert whole == subwords.encode(prompt) + subwords.encode(tail) and prompt + tail in text
        assert 985 <= len(subwords.encode(prompt)) <= 1000 and 85 <= len(subwords.encode(tail)) <= 100
    assert has_tokens(text, 1100, subwords) and not has_tokens(text, 100_000, subwords)
