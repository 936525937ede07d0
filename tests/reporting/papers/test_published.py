"""Published figures: the file that ships is whole, and a malformed one is refused with what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from longdecode.reporting import wording
from longdecode.reporting.environment import make_environment
from longdecode.reporting.papers.blocks import NOT_MEASURED, Compared, Comparison
from longdecode.reporting.papers.published import PublishedError, load_published, short_mark
from longdecode.reporting.papers.registry import load_paper, paper_names

FILE = Path(__file__).parents[3] / "reporting" / "papers" / "lychee" / "published.yaml"


def test_averages_of_complete_rows_are_those_in_print() -> None:
    """Means of the eight tasks, worked out anew; also a check that no task was typed wrong."""
    table = load_published(FILE).tables["longbench"]
    tasks = [name for name in table.columns if name != "avg"]
    whole = [row for row in table.rows if all(row.get(task) is not None for task in tasks)]
    assert len(whole) == 6
    for row in whole:
        assert sum(row[task] for task in tasks) / 8 == pytest.approx(row["avg"], abs=0.0101), row


def test_every_paper_loads_with_its_figures() -> None:
    assert {"lychee", "nosa", "retro"} <= set(paper_names())
    assert all(load_paper(name).method == name for name in paper_names())
    paper = load_paper("lychee")
    published = paper.published
    assert (paper.title, paper.method) == ("LycheeDecode", "lychee")
    figure = published.figure("latency", "ratio", baseline="full", context=131072, batch=1)
    assert figure is not None and (figure.text, figure.mark) == ("2.7", "paper; digests A, B, C")
    assert published.figure("heads", "passkey", kind="nothing") is None
    assert published.figure("longbench", "qmsum", model="llama3-8b-1048k", method="quest", budget="1024") is None


@pytest.mark.parametrize("paper", paper_names())
def test_no_sentence_of_a_list_is_read_as_a_mapping(paper: str) -> None:
    readings = load_paper(paper).words["method"].get("readings", [])
    assert [text for text in readings if not isinstance(text, str)] == []  # an unquoted colon makes a mapping


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("gradientai/Llama-3-8B-Instruct-Gradient-1048k", "llama3-8b-1048k"),
        ("models/qwen3-8b/", "qwen3-8b"),
        ("miniature/weights", None),
    ],
)
def test_a_model_is_known_by_the_end_of_its_path(path: str, name: str | None) -> None:
    assert load_published(FILE).model_of(path) == name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mark": "hearsay"}, "without explanation"),
        ({"speed": 3}, r"a row has \['speed'\]"),
        ({"mark": None}, "lacks"),
        ({"kind": "hardkuma"}, "named twice"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    values = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    row = values["tables"]["heads"]["rows"][0]
    row |= {key: value for key, value in change.items() if value is not None}
    for key in [key for key, value in change.items() if value is None]:
        del row[key]
    bad = tmp_path / "published.yaml"
    bad.write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.raises(PublishedError, match=said):
        load_published(bad)


def test_marks_are_short_in_rows() -> None:
    assert short_mark("digest B; paper; digest C") == "paper; digests B, C" and short_mark("code") == "code"


def test_a_table_without_any_measurement_shows_what_is_in_print() -> None:
    """One measured row brings the columns back, for all rows."""
    printed, measured = (
        Compared(["7B"], "0.41", "paper", wording.DASH, "", NOT_MEASURED),
        Compared(["8B"], "0.4", "", "0.39"),
    )
    shown = [
        make_environment().get_template("paper_macros.html").module.comparison(Comparison("Alpha.", ["Model"], rows))
        for rows in ([printed], [printed, measured])
    ]
    assert "In print alone" in shown[0] and "Published" in shown[0] and "0.41" in shown[0]
    assert "Measured" not in shown[0] and NOT_MEASURED not in shown[0]
    assert "In print alone" not in shown[1] and "Measured" in shown[1] and NOT_MEASURED in shown[1]
