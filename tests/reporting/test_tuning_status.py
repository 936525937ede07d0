"""Labels that were not tuned as the others are named on every page."""

from __future__ import annotations

from dataclasses import replace

from longdecode.evals.fairness import Standing
from longdecode.reporting.environment import make_environment
from longdecode.reporting.tuning_status import TuningStatus


def status(*kinds: tuple[str, str]) -> TuningStatus:
    standings = [Standing(label, "m", kind) for label, kind in kinds]  # type: ignore[arg-type]
    return TuningStatus(standings)


def test_labels_apart_are_named_once_by_their_kind() -> None:
    found = status(("tidal", "untuned"), ("duo", "by hand"), ("tidal", "tuned"), ("quest", "tuned"))
    assert found.apart == [("untuned", ["tidal"]), ("set by hand", ["duo"])]
    aside = replace(status(("tidal", "tuned")), aside=[Standing("tidal_7", "m", "untuned")])
    assert aside.apart == [] and aside.label_of("tidal_7") == "untuned", "an ablation compares with no other method"


def test_every_page_names_them() -> None:
    page = make_environment().get_template("data.html")
    common = {
        "pilot": False, "profile": "p", "page": "data.html", "heading": "Data", "description": "", "cite": "",
        "has_quality": True, "has_speed": False, "code": "", "data_line": "", "source": "", "model_count": 1,
        "first_model": "m",
        **dict.fromkeys(("files", "score_pages", "csv", "model_words", "papers", "suites", "families"), ()),
    }  # fmt: skip
    text = page.render(**common, tuning=status(("tidal", "untuned"), ("quest", "tuned")))
    assert "<em>untuned</em> tidal." in text and "quest" not in text
    assert "untuned" not in page.render(**common, tuning=status(("quest", "tuned")))
