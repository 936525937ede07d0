"""The README's numbers are those of the committed results, and its claims on speed name their batch."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from longdecode.reporting import readme, readme_papers
from longdecode.reporting.results import Results, load_results

ROOT = Path(__file__).parents[2]


def results_of(profile: str) -> Results:
    folder = ROOT / "results" / profile
    return load_results(folder / "config.yaml", folder)


@pytest.fixture(scope="module")
def committed() -> Results:
    return results_of("h200")


@pytest.fixture(scope="module")
def real() -> Results:
    return results_of("real")


@pytest.fixture(scope="module")
def bodies(committed: Results, real: Results) -> Iterator[None]:
    """Write each region once, for all texts that the regions go into."""

    def once(write: Callable[..., str]) -> Callable[..., str]:
        written: list[str] = []

        def kept(*given: Any) -> str:
            assert all(any(results is known for known in (committed, real)) for results in given)
            if not written:
                written.append(write(*given))
            return written[0]

        return kept

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(readme, "REGIONS", {name: once(write) for name, write in readme.REGIONS.items()})
        for name in ("real_answer", "real_table", "papers"):
            patch.setattr(readme, name, once(getattr(readme, name)))
        # The line on RetroAttention reads the same results for each of its three lists.
        patch.setattr(readme_papers, "load_results", functools.cache(load_results))
        # Any edit of a kernel makes evidence older; that must not fail a test.
        written = (ROOT / "README.md").read_text(encoding="utf-8").split("<!-- from results: older -->\n")[1]
        patch.setattr(readme, "older", lambda *loaded: written.split("\n<!-- end -->")[0])
        yield


@pytest.mark.usefixtures("bodies")
def test_the_readme_says_what_the_results_say(committed: Results, real: Results) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.rendered(text, committed, real) == text, "run: python -m longdecode.reporting.readme"


@pytest.mark.usefixtures("bodies")
def test_a_stale_number_is_replaced(committed: Results, real: Results) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    step = committed.speed.ok(readme.MODEL).query("label == 'full' and context == 131072 and batch == 1")  # type: ignore[union-attr]
    shown = f"| {step['median_us'].iloc[0] / 1e3:.2f} |"
    assert shown in text and readme.rendered(text.replace(shown, "| 1.23 |"), committed, real) == text


@pytest.mark.usefixtures("bodies")
def test_a_missing_region_is_refused(committed: Results, real: Results) -> None:
    with pytest.raises(readme.ReadmeError, match="from results: figure"):
        readme.rendered("nothing", committed, real)


def test_every_ratio_over_flash_attention_names_its_batch(committed: Results) -> None:
    (claim,) = [text for text in readme.speed_claims(committed).replace("\n", " ").split(". ") if "flash" in text]
    assert [f"at batch {batch}" in claim for batch in (1, 4, 8)] == [True] * 3


def test_a_method_that_was_not_tuned_is_not_compared(committed: Results) -> None:
    tuned = "reselect_layer" in committed.params("tidal")
    assert ("tidal" in readme.figure_reading(committed)) == tuned


def test_lychees_line_has_the_bytes_that_its_budget_reads(committed: Results) -> None:
    rows = committed.summary[(committed.summary["suite"] == "mini_longgen") & (committed.summary["task"] == "all")]
    read = rows.assign(bytes=rows["kv_bytes_per_step"] + rows["metadata_bytes_per_step"])
    lychee = read[(read["method"] == "lychee") & (read["budget"] == "0.1")].set_index("context")["bytes"]
    full = read[read["method"] == "full"].set_index("context")["bytes"]
    line = readme.paper_lychee(committed)
    for context in (lychee.index.min(), lychee.index.max()):
        assert f"at {context:,} tokens ({100 * lychee[context] / full[context]:.0f} % of Full's bytes)" in line


def test_lychees_line_has_a_suite_that_its_heads_were_not_identified_on(committed: Results) -> None:
    rows = committed.summary[(committed.summary["suite"] == "mini_reason") & (committed.summary["method"] == "lychee")]
    rows = rows[(rows["budget"] == "0.1") & (rows["task"] == "mini_reason_16")]
    said = readme.paper_lychee(committed).replace("−", "-").split("`mini_reason`")[1]
    assert len(rows) == 2
    for _, row in rows.iterrows():
        assert f"{100 * row['diff_to_full']:+.1f} at {row['context']:,} tokens".replace("+0.0", "0.0") in said


def test_a_step_of_another_run_is_marked(committed: Results) -> None:
    """The milliseconds of such a row are not to be divided by those of the table's Full."""
    table = readme.speed_table(committed)
    steps = pd.read_csv(ROOT / "results/h200/speed.csv", low_memory=False)
    steps = steps[(steps["model"] == readme.MODEL) & (steps["stage"] == "step") & (steps["batch"] == 1)]
    steps = steps[steps["context"] == 131072].drop_duplicates("label").set_index("label")
    for label, name in readme.NAMES.items():
        if f"| {name} " in table:
            other = steps["revision"][label] != steps["revision"]["full"]
            assert (f"| {name} † |" in table) == other, label
            assert not other or steps["revision"][label][:7] in table.splitlines()[-1]


def test_nosas_line_gives_the_rival_the_same_means_and_both_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    table = pd.read_csv("results/offload/speed.csv")
    steps = table[(table["bench"] == "offload") & (table["stage"] == "step") & (table["status"] == "ok")]
    at = steps.drop_duplicates(["context", "label"]).set_index(["context", "label"])["ratio"]
    line = readme_papers.paper_nosa()
    for name, label in (("", "nosa_offload"), ("InfLLM-V2 ", "infllm2_offload"), ("ShadowKV ", "shadowkv")):
        assert f"{name}{at[65536, label]:.2f} and {at[16384, label]:.2f}" in line
    assert f"{at[65536, 'nosa_overlap32']:.2f}, InfLLM-V2 {at[65536, 'infllm2_overlap32']:.2f}" in line
    assert f"our forks' hit rates {at[65536, 'nosa_fork']:.2f} and {at[65536, 'nosa_fork32']:.2f} without" in line


def test_nosas_line_has_the_forks_own_times_at_both_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the line: NOSA, InfLLM-V2, ShadowKV; then the first two with spare slots and overlap."""
    monkeypatch.chdir(ROOT)
    table = pd.read_csv("results/offload/speed.csv")
    own = table[(table["bench"] == "own_choices") & table["budget"].isin(["full", "4096"])]
    rates = own[own["op_sizes"] == "prompts=whole"].set_index(["label", "context"])["tokens_per_s"]
    said = readme_papers.paper_nosa().split("by their own choices, at 64K and 16K: ")[1].split(" | ")[0]
    found = [float(number) for number in re.findall(r"\d+\.\d\d", said)]
    labels = ("nosa_offload", "infllm2_offload", "shadowkv", "nosa_overlap32", "infllm2_overlap32")
    wanted = [rates[f"own_{name}", at] / rates["full", at] for name in labels for at in (65536, 16384)]
    assert found == pytest.approx(wanted, abs=0.02)


def test_nosas_line_says_what_its_importances_cost_long_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    table = pd.read_csv("results/nosa/summary.csv", low_memory=False)
    rows = table[table["task"] == "mini_longgen_45"].set_index(["model", "method"])["value"]
    said = readme_papers.paper_nosa().split("45 answers in one text: ")[1]
    own, bare = rows["fork-nosa", "nosa"], rows["fork-nosa", "nosa_no_importance"]
    assert said.startswith(f"{100 * own:.1f} % ({100 * bare:.1f} % without importances)")
    assert readme_papers._long_answers(table[table["method"] != "nosa_no_importance"]) == ""


@pytest.mark.parametrize(
    ("profile", "start", "end"),
    [("nosa-fresh", "On fresh prompts ", "With 1,800 steps"), ("nosa-long", "With 1,800 steps of training ", " | ")],
)
def test_nosas_line_has_its_lead_suite_by_suite(
    profile: str, start: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    table = pd.read_csv(f"results/{profile}/summary.csv", low_memory=False)
    means = table[table["status"] == "ok"].set_index(["task", "model", "method"])
    said = readme_papers.paper_nosa().replace("\u2212", "-").split(start)[1].split(end)[0]
    for tasks, name in (
        (("mini_recall_multikey", "mini_recall_two_hop"), "`mini_recall`"),
        (("ruler_niah_multikey_2", "ruler_niah_multivalue"), "RULER"),
        (("mini_longgen_45",), "long answers"),
    ):
        gaps = [
            means["value"][task, "fork-nosa", "nosa"] - means["value"][task, "fork-full", "infllm2"] for task in tasks
        ]
        lead = f"{100 * sum(gaps) / len(gaps):+.1f} points ["
        assert lead in said and said.split(lead)[1].split("] on ")[1].startswith(name)
    loss = means["loss"]["pg19_long_forced_1024"]
    assert f"{loss['fork-nosa', 'nosa'] - loss['fork-full', 'infllm2']:+.3f} nats" in said


def test_tokenswifts_line_quotes_several_books_beside_the_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    table = pq.read_table("results/tokenswift/generation/books.parquet").to_pylist()
    times: dict[tuple[str, int], dict[str, float]] = {}
    for row in table:
        times.setdefault((row["task"], row["sample_index"]), {})[row["label"]] = dict(row["measures"])["ms_per_token"]
    line = readme_papers.paper_tokenswift()
    for task in ("minp", "minp_plain"):
        ratios = [each["full"] / each["tokenswift_lean"] for (name, _), each in times.items() if name == task]
        assert f"{sum(ratios) / len(ratios):.2f} [" in line.split(" books, ")[-1]


def test_tokenswifts_line_has_print_s_rivals_at_the_same_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    said = readme_papers.paper_tokenswift()
    for run, label, name in (
        ("rivals_long", "medusa_2pass", "Medusa in two passes"),
        ("triforce_long", "triforce", "TriForce"),
    ):
        table = pq.read_table(f"results/tokenswift/generation/{run}.parquet").to_pylist()
        times = {row["label"]: dict(row["measures"])["ms_per_token"] for row in table}
        assert f"{name} {times['full'] / times[label]:.2f} with" in said


def test_a_drafted_text_that_is_another_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenswift").mkdir()
    monkeypatch.setattr(readme_papers, "RESULTS", tmp_path)
    head = "label,status,batch,identical\n"
    (tmp_path / "tokenswift/exact_texts.csv").write_text(f"{head}tokenswift,ok,1,1\nquest+4,ok,3,3\nduo+4,ok,1,1\n")
    assert readme_papers._drafters() == 2
    (tmp_path / "tokenswift/exact_texts.csv").write_text(f"{head}quest+4,ok,3,2\n")
    with pytest.raises(ValueError, match="not plain decoding's"):
        readme_papers._drafters()


def test_the_real_models_table_holds_what_the_summary_has(real: Results) -> None:
    """Each cell of a row is the summary's value at the budget in bytes, or at 1,024 tokens where there is none."""
    table = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in readme.real_table(real).splitlines()[2:]}
    summary = real.summary[(real.summary["context"] == 32768) & (real.summary["suite"] == "mini_recall")]
    summary = summary[summary["task"] == "all"]
    for name, label, budget in (("LycheeDecode", "lychee", "bytes=0.25"), ("DuoAttention", "duo", "1024")):
        (row,) = summary[(summary["method"] == label) & (summary["budget"] == budget)].to_dict("records")
        assert any(cell.strip().startswith(f"{100 * row['value']:.1f} %") for cell in table[name])
    assert table["Quest"][0].strip() == "25 %"
    # LongBench's prompts are shorter than 8,192 tokens: a quarter of the context's bytes is more of theirs.
    assert table["LycheeDecode"][0].strip() == "25 to 28 %"
