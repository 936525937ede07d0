"""The README's numbers are those of the committed results, and its claims on speed name their batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
    assert ("TidalDecode" in readme.paper_lychee(committed)) == tuned
    assert ("tidal" in readme.figure_reading(committed)) == tuned


def test_the_real_models_table_holds_what_the_summary_has(real: Results) -> None:
    """Each cell of a row is the summary's value at the budget in bytes, or at 1,024 tokens where there is none."""
    table = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in readme.real_table(real).splitlines()[2:]}
    summary = real.summary[(real.summary["context"] == 32768) & (real.summary["suite"] == "mini_recall")]
    summary = summary[summary["task"] == "all"]
    for name, label, budget in (("LycheeDecode", "lychee", "bytes=0.25"), ("DuoAttention", "duo", "1024")):
        (row,) = summary[(summary["method"] == label) & (summary["budget"] == budget)].to_dict("records")
        assert any(cell.strip().startswith(f"{100 * row['value']:.1f} %") for cell in table[name])
    assert float(table["LycheeDecode"][0].split(" to ")[-1].strip(" %")) == 25
