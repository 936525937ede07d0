"""Tasks: same data everywhere, lengths that fit, and marks checked against answers read off the prompt."""

from __future__ import annotations

import random
import re
from importlib import import_module
from pathlib import Path

import pytest

from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.evals.generators import narrative, prose
from longdecode.evals.tasks import registry
from longdecode.evals.tasks.base import Sample
from longdecode.evals.tasks.registry import get_task, suite_names, suite_tasks, task_names

WEIGHTS = Path(__file__).resolve().parents[2] / "models" / "miniature" / "weights"
BYTES = load_tokenizer(WEIGHTS)
OTHERS = ("_decoded", "_prompt", "_pg19")
GENERATED = [name for name in task_names() if name.startswith("mini_") and not name.endswith(OTHERS)]
LONGGEN = [*suite_tasks("mini_longgen"), *suite_tasks("mini_longgen_long")]
CONTEXT = 3072


def answers(sample: Sample) -> list[str]:
    """The items a reader of the prompt would give, found by regular expressions alone."""
    asked = (sample.prompt + sample.forced).rpartition("? ")[2].split()
    values = dict(re.findall(r"\[([a-z]{4})=(\d{4})\]", sample.prompt))
    pointers = dict(re.findall(r"\[([a-z]{4}>)([a-z]{4})\]", sample.prompt))
    return [f"{key}{pointers.get(key, '')}={values[pointers.get(key, key)]}" for key in asked]


def steps(sample: Sample) -> list[str]:
    """The walk a reader of the prompt would write, its end included."""
    links = {a: (b, int(n)) for a, b, n in re.findall(r"\[([a-z]{4})>([a-z]{4})\+(\d)\]", sample.prompt)}
    node, total, walk = sample.forced.strip().removeprefix("! "), 0, []
    while node in links:
        target, amount = links[node]
        total = (total + amount) % 10
        walk.append(f"{node}>{target}+{amount}={total}")
        node = target
    assert f"[{node}>stop]" in sample.prompt
    return [*walk, f"{node}>stop"]


@pytest.mark.parametrize("name", GENERATED)
def test_samples_depend_on_task_context_seed_and_index_alone(name: str, seed: int) -> None:
    task = get_task(name)
    few, many = task.samples(CONTEXT, 2, seed, BYTES), task.samples(CONTEXT, 4, seed, BYTES)
    assert few == many[:2] and len({sample.prompt for sample in many}) == 4
    assert task.samples(CONTEXT, 1, seed + 1, BYTES)[0].prompt != many[0].prompt
    assert [sample.index for sample in many] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("context", [CONTEXT, 4001])
def test_samples_fill_the_context(name: str, context: int, seed: int) -> None:
    for sample in get_task(name).samples(context, 3, seed, BYTES):
        assert len((sample.prompt + sample.forced).encode()) + sample.max_new_tokens == context
        assert (sample.prompt + sample.forced).isascii()


@pytest.mark.parametrize("name", [*suite_tasks("mini_recall"), *LONGGEN])
def test_lookups_are_marked_item_by_item(name: str, seed: int) -> None:
    task, rng = get_task(name), random.Random(seed)
    for sample in task.samples(CONTEXT, 3, seed, BYTES):
        right = answers(sample)
        assert task.score(sample, " ".join(right) + "\n", ()).parts == (1.0,) * len(right)
        assert task.score(sample, " ".join(right) + "\nand then more", ()).value == 1
        wrong_at = rng.randrange(len(right))
        wrong = [item[:-1] + str((int(item[-1]) + 1) % 10) if i == wrong_at else item for i, item in enumerate(right)]
        score = task.score(sample, " ".join(wrong) + "\n", ())
        assert [i for i, part in enumerate(score.parts) if part == 0] == [wrong_at]
        assert score.value == pytest.approx(1 - 1 / len(right))
        assert task.score(sample, " ".join(right[:-1]), ()).parts == (1.0,) * (len(right) - 1) + (0.0,)
        said_twice = " ".join([wrong[wrong_at], *right])
        assert task.score(sample, said_twice, ()).parts == score.parts, "the first mention counts"
        assert task.score(sample, " ".join(right[1:]), ()).parts == (0.0,) + (1.0,) * (len(right) - 1)
        assert task.score(sample, "", ()).value == 0 and task.score(sample, "\n" + " ".join(right), ()).value == 0
        assert len(" ".join(right) + "\n") < sample.max_new_tokens


@pytest.mark.parametrize("name", LONGGEN)
def test_longgen_asks_as_many_questions_as_its_name_says(name: str, seed: int) -> None:
    assert len(answers(get_task(name).samples(CONTEXT, 1, seed, BYTES)[0])) == int(name.rpartition("_")[2])


@pytest.mark.parametrize("name", suite_tasks("mini_reason"))
def test_chains_are_marked_step_by_step(name: str, seed: int) -> None:
    task = get_task(name)
    for sample in task.samples(CONTEXT, 3, seed, BYTES):
        walk = steps(sample)
        assert len(walk) == int(name.rpartition("_")[2]) + 1
        perfect = task.score(sample, " ".join(walk) + "\n", ())
        assert perfect.value == 1 and len(perfect.parts) == len(walk) - 1
        sums_lost = [step[:-1] + str((int(step[-1]) + 1) % 10) if i >= 3 else step for i, step in enumerate(walk[:-1])]
        lost = task.score(sample, " ".join([*sums_lost, walk[-1]]), ())
        assert lost.parts == tuple(float(i < 3) for i in range(len(walk) - 1))
        assert task.score(sample, " ".join(walk[1:]), ()).value == 0


def test_loss_is_the_mean_over_the_forced_bytes_and_over_eight_stretches(seed: int) -> None:
    task = get_task("mini_book_loss")
    sample = task.samples(1024, 1, seed, BYTES)[0]
    assert len(sample.forced) == 256 and sample.max_new_tokens == 0
    rng = random.Random(seed)
    nll = tuple(rng.expovariate(1) for _ in sample.forced)
    score = task.score(sample, "", nll)
    assert score.value == pytest.approx(sum(nll) / 256)
    assert score.parts == pytest.approx([sum(nll[i : i + 32]) / 32 for i in range(0, 256, 32)])


def test_writing_is_marked_on_restated_facts_only() -> None:
    task = get_task("mini_book_write")
    known = "Tavin lives in Kalford. Morel keeps a green lamp. Tavin works as a baker. "
    sample = Sample(0, known, "", 384, None, None)
    score = task.score(sample, "Tavin walked home to Kalford. Morel keeps a red lamp. Morel lives in Brunton. ", ())
    assert score.parts == (1.0, 0.0) and score.value == 0.5
    assert task.score(sample, "Morel lives in Brunton. Morel had a letter from Kalford. ", ()).parts == (0.0,)
    assert task.score(sample, "Tavin earns bread as a baker. Morel would not sell the gre", ()).parts == (1.0,)
    assert task.score(sample, "zzzz", ()).value == 0


def test_a_task_that_does_not_fit_is_unsupported(seed: int) -> None:
    contexts = {"mini_longgen_45": 600, "mini_longgen_90": 2048, "mini_book_loss": 256, "mini_book_write": 384}
    for name, context in contexts.items():
        with pytest.raises(UnsupportedCellError, match=name):
            get_task(name).samples(context, 1, seed, BYTES)


def test_real_books_are_held_out_windows(tmp_path: Path, seed: int) -> None:
    rng, sizes = random.Random(seed), {"12204": 900, "860": 4000, "1": 5000}
    books = {name: "".join(rng.choices("abcdefg hij\n", k=size)) for name, size in sizes.items()}
    (tmp_path / "test").mkdir()
    for name, text in books.items():
        (tmp_path / "test" / f"{name}.txt").write_text(text)
    task = get_task("mini_book_pg19", {"pg19": tmp_path})
    windows = [sample.prompt + sample.forced for sample in task.samples(800, 4, seed, BYTES)]
    assert [window in books["12204"] for window in windows] == [True, False, True, False]
    assert [window in books["860"] for window in windows] == [False, True, False, True]
    assert {len(window) for window in windows} == {800}
    assert all(sample.prompt + sample.forced in books["860"] for sample in task.samples(2000, 3, seed, BYTES))
    with pytest.raises(UnsupportedCellError, match="4001"):
        task.samples(4001, 1, seed, BYTES)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'mini_longgen_45'"):
        get_task("mini_longen_45")
    with pytest.raises(ConfigError, match="nearest valid name: 'mini_reason'"):
        suite_tasks("mini_reasons")
    assert {name for suite in suite_names() for name in suite_tasks(suite)} == set(task_names())


def test_the_registry_knows_module_and_protocol_of_every_suite() -> None:
    known = {name: (entry["module"], entry.get("question")) for name, entry in registry._OWN.items()}
    rooms = {module for module, _ in known.values()}
    suites = [(room, import_module(f"longdecode.evals.tasks.{room}").SUITES) for room in rooms]
    assert known == {name: (room, suite.question) for room, own in suites for name, suite in own.items()}
    others = {path.stem for path in Path(registry.__file__).parent.glob("*.py")} - rooms - {"registry"}
    assert not [name for name in others if hasattr(import_module(f"longdecode.evals.tasks.{name}"), "SUITES")]


def test_every_task_knows_its_own_name_and_suite() -> None:
    for suite in suite_names():
        for name in suite_tasks(suite):
            assert (get_task(name).name, get_task(name).suite) == (name, suite)


def test_a_narrative_agrees_with_itself_and_a_changed_fact_is_caught(seed: int) -> None:
    text, cut = narrative.narrative(random.Random(seed), 8192), 6144
    assert len(text) == 8192
    marks = narrative.check_statements(text[:cut], text[cut:])
    assert len(marks) > 10 and all(marks)
    known = narrative.retold(text)[-1]
    altered = text[: known.start] + "Nowhere" + text[known.start + len(known.value) :]
    assert narrative.check_statements(altered[:cut], altered[cut:]).count(False) == 1


def test_most_of_a_long_narrative_retells(seed: int) -> None:
    """The coupon collector: 96 facts, so the share of retold statements grows with the position."""
    text = narrative.narrative(random.Random(seed), 16384)
    retold = {statement.start for statement in narrative.retold(text)}
    told = [statement.start in retold for statement in narrative.statements(text)]
    quarter = len(told) // 4
    assert sum(told[:quarter]) < 0.8 * quarter < 0.9 * quarter < sum(told[-quarter:])


def test_hide_refuses_records_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="need 24 bytes; 20 are available"):
        prose.hide(random.Random(0), ["abcd=0123", "efgh=4567"], 20)
