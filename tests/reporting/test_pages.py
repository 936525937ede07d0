"""The built pages: well-formed, linked, offline, and saying what the records say."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.parse import unquote, urlsplit

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure

from longdecode.engine.config_reader import read_config
from longdecode.evals import manifest
from longdecode.evals.fingerprint import speed_code_hash
from longdecode.evals.store import read_frame
from longdecode.methods.registry import get_method
from longdecode.reporting import families, staleness, traffic
from longdecode.reporting.build import build_report, main
from longdecode.reporting.results import ReportError, load_results
from longdecode.reporting.tables import score_table

INLINE = {"a", "span", "small", "b", "i", "code", "strong", "em", "sup"}
VOID = {"meta", "link", "img", "source", "br", "hr", "input"}
IMPLIED = {
    "td": ("td", "th"), "th": ("td", "th"), "tr": ("td", "th", "tr"), "tbody": ("td", "th", "tr", "thead", "tbody"),
    "/table": ("td", "th", "tr", "thead", "tbody"), "li": ("li",), "/ul": ("li",), "/ol": ("li",),
}  # fmt: skip
"""Open elements that a tag closes, as HTML has it."""
LOADING = {("img", "src"), ("source", "srcset"), ("link", "href"), ("script", "src"), ("iframe", "src")}
PAGES = [
    "index", "traffic", "speed", "speed-tables", "data", "provenance", "samples-mini-recall",
    "samples-mini-book",
    "samples-mini-longgen", "suite-mini-recall", "suite-mini-longgen", "suite-mini-book",
    "method-full", "method-oracle-topk", "method-streaming", "method-quest", "method-quest-script", "method-tidal",
]  # fmt: skip


class Page(HTMLParser):
    """A page's elements; raises on tags that do not nest."""

    def __init__(self, path: Path):
        super().__init__(convert_charrefs=True)
        self.path = path
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert not self.open, f"{path.name}: left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._imply(tag)
        assert len({name for name, _ in attrs}) == len(attrs), f"{self.path.name}: <{tag}> repeats an attribute"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def _imply(self, tag: str) -> None:
        while self.open and self.open[-1] in IMPLIED.get(tag, ()):
            self.open.pop()
            self.text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self._imply(f"/{tag}")
        self.text.append("" if tag in INLINE else " ")
        assert self.open and self.open[-1] == tag, f"{self.path.name}: </{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    def words(self) -> str:
        return " ".join("".join(self.text).split())


@pytest.fixture(scope="module")
def pages(report: Path) -> dict[str, Page]:
    return {path.stem: Page(path) for path in report.glob("*.html")}


def test_one_page_for_each_suite_and_method(pages: dict[str, Page]) -> None:
    assert sorted(pages) == sorted(PAGES)


def test_ids_are_unique_and_every_link_resolves(pages: dict[str, Page]) -> None:
    for page in pages.values():
        assert len(page.ids()) == len(set(page.ids())), page.path.name
        for tag, attributes in page.elements:
            for name in ("href", "src", "srcset"):
                target = urlsplit(attributes.get(name, ""))
                if target.scheme or (not target.path and not target.fragment):
                    continue
                path = page.path.parent / unquote(target.path) if target.path else page.path
                assert path.is_file(), f"{page.path.name}: <{tag} {name}={attributes[name]}>"
                if target.fragment:
                    assert target.fragment in Page(path).ids(), f"{page.path.name}: #{target.fragment}"


def test_every_page_links_the_tables_and_how_to_cite(pages: dict[str, Page]) -> None:
    for page in pages.values():
        links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
        named = {link.rpartition("/")[2] for link in links}
        assert {"summary.csv", "speed.csv"} <= named, page.path.name
        assert "cite" in page.ids() or "index.html#cite" in links, page.path.name


def test_nothing_is_loaded_from_elsewhere(report: Path, pages: dict[str, Page]) -> None:
    for page in pages.values():
        for tag, attributes in page.elements:
            assert tag != "script" or attributes["src"] == "tables.js"
            assert not any(name.startswith("on") for name in attributes)
            for name, value in attributes.items():
                if (tag, name) in LOADING:
                    assert not urlsplit(value).netloc, f"{page.path.name}: {value}"
    for path in [*report.glob("*.css"), *report.glob("*.js"), *report.glob("figures/*.svg")]:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
        assert "://" not in text and "@import" not in text and "url(//" not in text, path.name


def test_every_figure_has_caption_alt_text_data_and_a_version_for_phones(report: Path, pages: dict[str, Page]) -> None:
    seen = set()
    for page in pages.values():
        figures = [attributes["id"] for tag, attributes in page.elements if tag == "figure"]
        images = [attributes for tag, attributes in page.elements if tag == "img"]
        captions = sum(tag == "figcaption" for tag, _ in page.elements)
        assert len(figures) == len(images) == captions
        for name, image in zip(figures, images, strict=True):
            seen.add(name)
            assert len(image["alt"]) > 40 and image["src"] == f"figures/{name}.svg"
            drawing = (report / "figures" / f"{name}.svg").read_text(encoding="utf-8")
            assert '<view id="narrow"' in drawing
            assert drawing.count('<use href="#panel') == drawing.count('<g id="panel') > 0
            assert len(pd.read_csv(report / "figures" / f"{name}.csv")) > 0
            assert f"figures/{name}.csv" in [attributes.get("href") for _, attributes in page.elements]
    with (report / "figures" / "index.csv").open(encoding="utf-8") as handle:
        assert {row["name"] for row in csv.DictReader(handle)} == seen
    kinds = (
        "overview",
        "budget",
        "tasks",
        "along",
        "position",
        "bytes",
        "traffic-context",
        "traffic-budget",
        "achieved",
        "speed-latency",
        "speed-by-context",
        "speed-by-batch",
        "speed-breakdown",
        "speed-kernels",
        "speed-method",
    )
    assert all(any(name.startswith(kind) for name in seen) for kind in kinds)


def test_the_means_along_a_generation_stand_beside_their_questions(report: Path, run_folder: Path) -> None:
    drawn = pd.read_csv(report / "figures" / "along-miniature-mini-longgen.csv", dtype={"questions": str})
    means = [np.mean([float(value) for value in text.split()]) for text in drawn["questions"]]
    assert drawn["value"].to_numpy() == pytest.approx(means, abs=1e-5)
    single = read_frame(run_folder / "along_generation.parquet")
    single = single[(single["context"] == single["context"].max()) & (single["task"] == "mini_longgen_45")]
    quest = single[(single["method"] == "quest") & (single["budget"] == drawn["budget"].iloc[-1])]
    shown = drawn[(drawn["method"] == "quest") & (drawn["budget"] == drawn["budget"].iloc[-1])]
    values = [float(value) for text in shown["questions"] for value in text.split()]
    assert len(values) == 45 and values == pytest.approx(quest.sort_values("index")["value"].to_list(), abs=1e-5)


def test_captions_name_model_data_and_samples(pages: dict[str, Page]) -> None:
    words = pages["index"].words()
    assert "n = 8 to 16 samples" in words and "Model: miniature" in words and "Data: generated." in words


def test_front_page_says_what_was_compared_on_what(pages: dict[str, Page]) -> None:
    words = pages["index"].words()
    for text in (
        "NVIDIA H200",
        "1 %, 3 %, 25 %",
        "2,048, 8,192 tokens",
        "2 passed, 1 not run",
    ):
        assert text in words, text


def test_verdicts_stand_for_each_context_and_for_every_context(pages: dict[str, Page]) -> None:
    words = pages["suite-mini-recall"].words()
    assert "2K Full 10" in words and "8K Full " in words and "Every context worst difference" in words
    assert "answers lost" in words


@pytest.mark.usefixtures("no_drawing")
def test_the_front_page_counts_the_timing_samples_of_the_page_it_links(
    make_run: Callable[..., Path], speed_run: ModuleType, tmp_path: Path
) -> None:
    """A label that runs on a part of the configuration stays off the overview, not out of the count."""
    run_folder = make_run(("full", "tidal"), ("mini_recall",))
    speed_run.write_speed(run_folder, labels=("full", "quest", "tidal"))
    config = yaml.safe_load((run_folder / "config.yaml").read_text(encoding="utf-8"))
    config["methods"]["tidal"] = {"budgets": [0.25]}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    build_report(path, run_folder, tmp_path / "report")
    counts = [
        re.search(rf"{name} ([\d,]+) ?(?:samples)?, ", Page(tmp_path / "report" / page).words())
        for page, name in (("index.html", "Times"), ("speed.html", "Samples"))
    ]
    assert counts[0] and counts[1] and counts[0][1] == counts[1][1]


def test_the_front_page_says_what_was_compared_and_lists_tables_and_pages(pages: dict[str, Page]) -> None:
    words = pages["index"].words()
    assert words.index("What was run") < words.index("How small can the budget be?") < words.index("What is missing")
    links = {attributes.get("href") for tag, attributes in pages["index"].elements if tag == "a"}
    assert {"suite-mini-recall.html", "traffic.html", "speed.html", "provenance.html"} <= links
    assert "Cite this @software{" in words


def test_how_labels_were_tuned_is_a_table(pages: dict[str, Page]) -> None:
    words = pages["provenance"].words()
    assert "names no tuning record for miniature" in words and "streaming miniature untuned" in words


def test_each_page_states_its_revision_and_that_code_has_changed_since(pages: dict[str, Page]) -> None:
    """The made-up records carry a code hash that no code has."""
    for page in pages.values():
        assert "Code revision 0123456789ab; code behind scores and times has changed since." in page.words()


def test_times_at_equal_memory_are_of_the_code_of_their_own_job() -> None:
    assert staleness._speed_hash("offload", "nosa") == speed_code_hash("equal_memory", ("full", "nosa"))
    assert staleness._speed_hash("decode", "nosa") == speed_code_hash("decode", ("full", "nosa"))


def test_reads_of_a_score_table_are_bytes_with_the_selectors(run_folder: Path, pages: dict[str, Page]) -> None:
    summary = pd.read_csv(run_folder / "summary.csv")
    rows = summary[(summary["task"] == "mini_recall_single") & (summary["context"] == 2048)]
    full = rows[rows["method"] == "full"].iloc[0]
    row = rows[(rows["method"] == "oracle_topk") & (rows["budget"] == "0.25")].iloc[0]
    share = (row["kv_bytes_per_step"] + row["metadata_bytes_per_step"]) / full["kv_bytes_per_step"]
    assert row["metadata_bytes_per_step"] > 0
    shown = f"{int(row['budget_tokens'])} {row['kv_tokens_read_sparse']:.0f} {100 * share:.1f} {100 * row['value']:.1f}"
    assert shown in pages["suite-mini-recall"].words()


def test_the_traffic_page_says_whose_selector_reads_kept_keys_again(pages: dict[str, Page]) -> None:
    """At equal bytes such a method keeps fewer tokens than a window, because of these kernels and not of its idea."""
    config = read_config(Path(__file__).parents[2] / "models" / "miniature" / "weights")
    for name in ("h2o", "tova"):
        bytes_ = get_method(name).from_budget(256, config).traffic(4096, 2)
        assert 2 * bytes_.metadata_bytes == bytes_.kv_bytes
    assert "H2O and TOVA rank what they keep by attention weights" in pages["traffic"].words()


def test_the_guide_of_the_traffic_figure_is_y_equal_x(run_folder: Path) -> None:
    """Two points would draw a chord on a logarithmic axis: 34 % at a budget of 10 %."""
    rows = traffic.cells(load_results(run_folder / "config.yaml", run_folder), "miniature")
    rows = rows[(rows["kind"] != "full") & (rows["context"] == 8192)]
    axes = Figure().add_subplot()
    traffic._share_panel({}, rows)(axes)
    x, y = axes.lines[0].get_data()
    assert len(x) >= 50 and axes.get_xscale() == "log" and list(x) == list(y)


def test_many_methods_are_shown_by_family_and_overviews_draw_the_featured(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = ["full", "quest", "quest_b", "tidal", *(f"m{i}" for i in range(8))]
    kinds = {label: "quest" if label == "quest_b" else label for label in labels}
    assert families.featured(labels, kinds, ["quest", "tidal", "full"]) == {"full", "quest", "tidal"}
    assert families.featured(labels[:4], kinds, ["quest"]) == set(labels[:4])
    cards = {"full": "reference", "quest": "selection", "tidal": "selection"}
    monkeypatch.setattr(families, "load_card", lambda kind: SimpleNamespace(family=cards[kind]))
    titles = {"selection": "Selection", "reference": "Reference"}
    found = families.by_family([*labels[:4], "m0"], kinds, titles)
    assert found == [("Selection", ["quest", "quest_b", "tidal"]), ("Reference", ["full"]), ("Other", ["m0"])]


def test_holes_stay_holes(run_folder: Path, pages: dict[str, Page]) -> None:
    words = pages["index"].words()
    assert "data_unavailable" in words and "9,000 are free" in words and "45 questions need 3,100 bytes & more" in words
    table = pages["suite-mini-longgen"].words()
    summary = pd.read_csv(run_folder / "summary.csv")
    lost = summary[(summary["suite"] == "mini_longgen") & (summary["status"] != "ok")]
    assert table.count("no number: ") == len(lost) > 0


def test_score_tables_carry_the_summary(run_folder: Path, pages: dict[str, Page]) -> None:
    summary = pd.read_csv(run_folder / "summary.csv")
    row = summary[(summary["task"] == "mini_longgen_45") & (summary["method"] == "quest") & (summary["status"] == "ok")]
    words = pages["suite-mini-longgen"].words().replace("†", "")
    for _, cell in row.iterrows():
        shown = f"{100 * cell['value']:.1f} [{100 * cell['low']:.1f}, {100 * cell['high']:.1f}]"
        gap = f"{100 * cell['diff_to_full']:+.1f} [{100 * cell['diff_low']:+.1f}, {100 * cell['diff_high']:+.1f}]"
        assert f"{shown} {gap.replace('-', chr(0x2212))}".replace("+0.0", "0.0") in words.replace("+0.0", "0.0")


def test_a_table_says_what_was_cut_off_or_not_scored_where_there_is_any(
    run_folder: Path, pages: dict[str, Page]
) -> None:
    assert "Cut off %" in pages["suite-mini-longgen"].words() and "Cut off" not in pages["suite-mini-recall"].text
    assert "Not scored n" not in pages["suite-mini-longgen"].words()
    results = load_results(run_folder / "config.yaml", run_folder)
    topic = results.topic("miniature", "mini_longgen", "mini_longgen_15")
    table = score_table(results, topic)
    cut = {row.label: row.cut for _, rows in table.groups for row in rows}
    assert float(cut["streaming"]) > 0 and cut["quest"] == "0.0" and (table.cut, table.late) == (True, False)
    results.summary.loc[results.summary["method"] == "quest", "n_timeout"] = 3
    late = score_table(results, topic)
    assert late.late and {row.late for _, rows in late.groups for row in rows if row.label == "quest"} == {"3"}
    assert late.columns == table.columns + 1


def test_method_pages_show_card_and_parameters(pages: dict[str, Page]) -> None:
    words = pages["method-quest-script"].words()
    assert "run as a variant of quest" in words and "kernel accuracy_script" in words
    assert "Deviations from paper and code" in words
    links = [attributes.get("href", "") for tag, attributes in pages["method-quest"].elements if tag == "a"]
    assert any(link.startswith("https://arxiv.org/") for link in links)


def test_provenance_page_has_revision_clock_hashes_and_configuration(pages: dict[str, Page]) -> None:
    words = pages["provenance"].words()
    for text in ("0123456789abcdef0123456789abcdef01234567 (with uncommitted changes)", "1980", "c" * 64, "m" * 64):
        assert text in words, text
    assert "score: 0.9981; n: 8" in words and "by_budget (0.01: 0.2; 0.03: 0.85)" in words
    assert "profile: " in words


def test_the_same_results_make_the_same_bytes(make_run: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_run(methods=("full", "quest"), suites=("mini_longgen",))
    for name in ("one", "two"):
        build_report(folder / "config.yaml", folder, tmp_path / name)
    first = {path.relative_to(tmp_path / "one"): path.read_bytes() for path in (tmp_path / "one").rglob("*.*")}
    second = {path.relative_to(tmp_path / "two"): path.read_bytes() for path in (tmp_path / "two").rglob("*.*")}
    assert first == second


@pytest.mark.usefixtures("no_drawing")
def test_a_rebuilt_report_drops_what_is_gone_and_keeps_what_is_not_ours(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_run(methods=("quest",), suites=("mini_recall",))
    (tmp_path / "figures").mkdir()
    for name in ("method-gone.html", "figures/gone.svg", "notes.txt"):
        (tmp_path / name).write_text("old", encoding="utf-8")
    build_report(folder / "config.yaml", folder, tmp_path)
    assert not (tmp_path / "method-gone.html").exists() and not (tmp_path / "figures" / "gone.svg").exists()
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "old"
    assert "no Full" in Page(tmp_path / "index.html").words()


def test_a_folder_without_results_is_refused(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"summary\.csv"):
        build_report(run_folder / "config.yaml", tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_drawing")
def test_pages_are_built_from_results_by_one_command_unless_a_file_was_changed(
    make_run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(methods=("full", "quest"), suites=("mini_recall",))
    manifest.rewrite(folder)
    main([str(folder), str(tmp_path / "pages")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "pages" / "index.html")
    assert manifest.problems(tmp_path / "pages") == []
    table = folder / "summary.csv"
    table.write_text(table.read_text(encoding="utf-8").replace("quest", "other"), encoding="utf-8")
    with pytest.raises(manifest.ManifestError, match=r"summary\.csv: changed"):
        main([str(folder), str(tmp_path / "pages")])
