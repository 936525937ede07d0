"""The pages about speed: they say what speed.csv says, show holes as holes, and are absent where nothing was timed."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import yaml

from longdecode.reporting.build import build_report
from longdecode.reporting.speed.growth import breakeven_table
from longdecode.reporting.speed.measured import farthest, load_speed
from longdecode.reporting.speed.tables import decode_tables

KEYS = ["model", "label", "stage", "budget", "context", "batch"]


def words(path: Path) -> str:
    """A page's text, tags gone."""
    text = re.sub(r"</?(?:a|span|small|b|i|code|strong|em|sup)\b[^>]*>", "", path.read_text(encoding="utf-8"))
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def both(folder: Path) -> str:
    """The text of the page and of the one with every timing."""
    return f"{words(folder / 'speed.html')} {words(folder / 'speed-tables.html')}"


def links(folder: Path) -> set[str]:
    """Files that the pages of a report link to."""
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.html")]
    found = {link.split("#")[0] for text in texts for link in re.findall(r'(?:href|src|srcset)="?([^"\s>]+)', text)}
    return {link for link in found if link and ":" not in link}


def figure_rows(path: Path) -> pd.DataFrame:
    """A figure's data with the columns that the index of figures says once."""
    index = pd.read_csv(path.with_name("index.csv"), keep_default_na=False).set_index("name")
    same = dict(part.split("=", 1) for part in index.at[path.stem, "same_in_every_row"].split("; ") if part)
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    assert not set(same) & set(head.split(","))
    text = "\n".join([",".join([head, *same]), *(",".join([line, *same.values()]) for line in lines)])
    return pd.read_csv(io.StringIO(text), dtype={"budget": str})


@pytest.fixture(scope="module")
def speed(run_folder: Path) -> pd.DataFrame:
    return pd.read_csv(run_folder / "speed.csv", dtype={"budget": str})


@pytest.fixture(scope="module")
def page(report: Path) -> str:
    return both(report)


def one(speed: pd.DataFrame, **where: object) -> pd.Series:
    for name, value in where.items():
        speed = speed[speed[name] == value]
    assert len(speed) == 1
    return speed.iloc[0]


def test_a_step_that_another_run_timed_is_marked(run_folder: Path) -> None:
    """Its ratio is over the Full of its own run, so that its time is not to be divided by the table's Full."""
    speed = load_speed(run_folder, ["full", "quest"])
    assert speed is not None
    model = speed.models[0]
    assert not any(table.runs for table in decode_tables(speed, model))
    rows = speed.table.copy()
    rows["revision"] = "a" * 40
    there = (rows["model"] == model) & (rows["label"] == "quest") & (rows["batch"] == 1) & (rows["status"] == "ok")
    rows.loc[there, "revision"] = "b" * 40
    for label in (None, "quest"):
        alone, *others = decode_tables(replace(speed, table=rows), model, label)
        assert alone.runs == ["b" * 7] and not any(table.runs for table in others)
        marked = {line.label for group in alone.groups for line in group.lines if line.more.get("run")}
        assert marked == {"quest"}


@pytest.mark.parametrize(("context", "batch"), [(4096, 1), (131072, 1), (131072, 4), (524288, 1)])
def test_every_number_of_a_step_is_on_the_page(speed: pd.DataFrame, page: str, context: int, batch: int) -> None:
    place = {"label": "quest", "model": "llama3-8b", "stage": "step", "budget": "4096"}
    row = one(speed, **place, context=context, batch=batch)
    shown = (
        f"{row['median_us'] / 1e3:.2f} [{row['p5_us'] / 1e3:.2f}, {row['p95_us'] / 1e3:.2f}] "
        f"{row['tokens_per_s']:.0f} {row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}] "
        f"{row['floor_us'] / 1e3:.2f} {100 * row['fraction']:.1f} "
        f"{row['peak_bytes'] / 1e9:.1f} {row['expected_bytes'] / 1e9:.1f} {row['n']}"
    )
    assert f"4,096 tokens {shown}" in page


def test_a_peer_is_shown_by_how_much_faster_ours_is(speed: pd.DataFrame, page: str) -> None:
    kernels = speed[(speed["bench"] == "kernel") & (speed["status"] == "ok")]
    place = {"subject": "topk_select", "context": 131072, "batch": 1, "budget": "4096"}
    ours, peer = one(kernels, **place, label="longdecode"), one(kernels, **place, label="torch_topk")
    assert peer["reference"] == "longdecode" and peer["ratio"] < 1
    numbers = f"{peer['gb_per_s']:.2f} {peer['floor_us']:.1f} {100 * peer['fraction']:.1f}"
    bounds = f"{1 / peer['ratio']:.2f} [{1 / peer['ratio_high']:.2f}, {1 / peer['ratio_low']:.2f}]"
    spread = f"[{peer['p5_us']:.1f}, {peer['p95_us']:.1f}]"
    assert f"torch_topk {peer['median_us']:.1f} {spread} {numbers} {bounds} {peer['n']}" in page
    assert f"longdecode {ours['median_us']:.1f} [{ours['p5_us']:.1f}, {ours['p95_us']:.1f}]" in page


def test_the_summary_names_device_ceiling_and_what_was_disturbed(speed: pd.DataFrame, page: str) -> None:
    rate = speed.loc[speed["bench"] == "ceiling", "gb_per_s"].max() / 1e3
    assert f"NVIDIA H200 Read ceiling {rate:.2f} TB/s measured, by torch's flash attention" in page
    disturbed, total = speed["disturbed"].sum(), speed["n"].sum() + speed["disturbed"].sum()
    assert disturbed > 0 and f"{disturbed} of {total:,} samples were taken while clocks dropped" in page
    assert "1,965 to 1,980 MHz" in page and "random weights" in page


def test_the_page_has_ten_tables_at_most_and_a_list_of_contents(report: Path) -> None:
    text = (report / "speed.html").read_text(encoding="utf-8")
    assert 0 < text.count("<table") <= 10 and '<ol class="contents">' in text


def test_holes_are_holes(speed: pd.DataFrame, page: str) -> None:
    lost = speed[speed["status"] != "ok"]
    steps = lost[(lost["bench"] == "decode") & (lost["stage"] == "step")]
    folded = steps.drop_duplicates(["model", "batch", "context", "status", "reason"])
    assert page.count("no number: ") == len(lost) - len(steps) + len(folded) > 10
    assert set(lost["status"]) == {"oom", "unsupported", "failed_gate"}
    for text in ("replay differs from eager by 0.3", "over its limit of 2048", "like it with other figures"):
        assert text in page


def test_growth_and_break_even_stand_on_the_page(run_folder: Path, page: str) -> None:
    growth = pd.read_csv(run_folder / "growth.csv", dtype={"budget": str})
    row = one(growth, model="llama3-8b", label="quest", stage="step", budget="4096", axis="context", fixed=1)
    shown = f"{row['slope_us']:.2f} [{row['slope_low']:.2f}, {row['slope_high']:.2f}] {row['intercept_us'] / 1e3:.2f}"
    assert "us per 1,024 tokens of context, at 1 sequence" in page and shown in page
    breakeven = pd.read_csv(run_folder / "breakeven.csv", dtype={"budget": str})
    row = one(breakeven, model="llama3-8b", label="quest", budget="4096", axis="context", fixed=1)
    assert row["verdict"] == "from"
    assert "Method Budget context, batch 1" in page
    assert f"quest 4,096 tokens from {int(row['value']):,} tokens" in page


def test_a_break_even_wants_two_sizes(run_folder: Path) -> None:
    """With one context left, nothing can be said along contexts; along batches as before."""
    speed = load_speed(run_folder, ["full", "quest"])
    assert speed is not None
    whole = breakeven_table(speed, "llama3-8b")
    one_context = replace(speed, table=speed.table[speed.table["context"] == 131072])
    left = breakeven_table(one_context, "llama3-8b")
    assert whole is not None and any(name.startswith("context") for name in whole.along)
    assert left is not None and left.along == ["batch, 128K context"]


def test_the_stock_loop_is_a_row_and_no_denominator(speed: pd.DataFrame, page: str, report: Path) -> None:
    row = one(speed, label="hf_full", context=131072)
    times = f"{1 / row['ratio']:.2f} [{1 / row['ratio_high']:.2f}, {1 / row['ratio_low']:.2f}] times as fast at 131,072"
    assert times in page and "No other ratio is taken against it" in page
    assert not (speed["reference"] == "hf_full").any()
    for path in (report / "figures").glob("speed-*.csv"):
        data = figure_rows(path)
        assert "label" not in data or not (data["label"] == "hf_full").any(), path.name


@pytest.mark.parametrize("name", ["latency", "by-context", "by-batch", "kernels", "method"])
def test_figures_draw_what_the_table_holds(speed: pd.DataFrame, report: Path, name: str) -> None:
    paths = sorted((report / "figures").glob(f"speed-{name}-*.csv"))
    assert paths
    for path in paths:
        data = figure_rows(path)
        keys = [key for key in (*KEYS, "subject", "reference") if key in data]
        bench = speed[speed["bench"] == ("kernel" if name == "kernels" else "decode")]
        joined = data.merge(bench, on=keys, how="left", suffixes=("", "_table"))
        assert len(joined) == len(data) > 0
        for column in ("median_us", "p5_us", "p95_us", "ratio", "floor_us", "fraction"):
            if column in data:
                pd.testing.assert_series_equal(joined[column], joined[f"{column}_table"], check_names=False)


def test_bars_add_up_to_the_step(speed: pd.DataFrame, report: Path) -> None:
    data = figure_rows(report / "figures" / "speed-breakdown-llama3-8b.csv")
    assert set(data["part"]) == {"weights", "selection", "attention", "rest"}
    for key, rows in data.groupby(["label", "budget", "context", "batch"]):
        label, budget, context, batch = key
        step = one(speed, model="llama3-8b", stage="step", label=label, budget=budget, context=context, batch=batch)
        assert rows["us"].sum() == pytest.approx(step["median_us"], rel=0.005)  # taken through pairs with Full
        assert rows["floor_us"].iloc[0] == pytest.approx(step["floor_us"])


def test_the_front_page_has_the_headline(speed: pd.DataFrame, report: Path) -> None:
    text = words(report / "index.html")
    full = one(speed, model="llama3-8b", label="full", stage="step", context=524288, batch=1)
    quest = one(speed, model="llama3-8b", label="quest", stage="step", context=524288, batch=1, budget="4096")
    assert "llama3-8b shape, random weights, 524,288 tokens of context, 1 sequence" in text
    assert f"full all {full['median_us'] / 1e3:.2f}" in text
    setup = "6.25 % of heads read everything, blocks of 16, budget 0.78 %"  # the scored one is another
    assert f"quest 4,096 tokens {setup} {quest['median_us'] / 1e3:.2f}" in text and f" {quest['ratio']:.2f} [" in text


def test_method_and_provenance_pages_have_their_part(speed: pd.DataFrame, report: Path) -> None:
    row = one(speed, model="llama3-8b", label="tidal", stage="step", context=32768, batch=16, budget="1024")
    assert f"{row['median_us'] / 1e3:.2f} [{row['p5_us'] / 1e3:.2f}" in words(report / "method-tidal.html")
    text = words(report / "provenance.html")
    assert (
        "SM clock while timing (MHz), lowest 1,965" in text and "triton 3.6.0" in text and "How times are taken" in text
    )


@pytest.mark.usefixtures("no_drawing")
def test_without_times_there_is_no_page_and_no_link(make_run: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_run(methods=("full", "quest"), suites=("mini_recall",))
    (tmp_path / "speed.html").write_text("old", encoding="utf-8")
    build_report(folder / "config.yaml", folder, tmp_path)
    assert not (tmp_path / "speed.html").exists() and not list((tmp_path / "figures").glob("speed-*"))
    assert "speed.html" not in links(tmp_path)
    assert "How fast" not in words(tmp_path / "index.html") and "How times are taken" not in words(
        tmp_path / "provenance.html"
    )


@pytest.mark.usefixtures("no_drawing")
def test_times_alone_make_a_report(speed_run: ModuleType, tmp_path: Path) -> None:
    config = {"profile": "fast", "methods": {"full": {}, "quest": {}, "tidal": {}, "streaming": {}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    speed_run.write_speed(tmp_path)
    speed_only = tmp_path / "report"
    build_report(tmp_path / "config.yaml", tmp_path, speed_only)
    names = {path.name for path in speed_only.glob("*.html")}
    methods = {f"method-{name}.html" for name in ("full", "quest", "quest-script", "tidal", "streaming")}
    assert names == {"index.html", "speed.html", "speed-tables.html", "data.html", "provenance.html", *methods}
    assert all((speed_only / link).is_file() for link in links(speed_only))
    text = words(speed_only / "index.html")
    assert "No suite was scored in this run" in text and "llama3-8b shape, random weights" in text
    assert "2026-03-09 10:00:00" in words(speed_only / "provenance.html")


@pytest.mark.usefixtures("no_drawing")
def test_a_run_of_kernels_alone_makes_a_report(speed_run: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("profile: kernels\n", encoding="utf-8")
    speed_run.write_speed(tmp_path)
    table = pd.read_csv(tmp_path / "speed.csv", dtype={"budget": str})
    table[table["bench"] != "decode"].to_csv(tmp_path / "speed.csv", index=False)
    for name in ("growth", "breakeven", "breakdown"):
        (tmp_path / f"{name}.csv").unlink()
    build_report(tmp_path / "config.yaml", tmp_path, tmp_path / "report")
    text = both(tmp_path / "report")
    assert "decode_attention beside torch_cudnn, torch_flash, flashinfer" in text and "none, kernels only" in text
    assert all((tmp_path / "report" / link).is_file() for link in links(tmp_path / "report"))


@pytest.mark.usefixtures("no_drawing")
def test_what_nobody_watched_is_not_called_undisturbed(speed_run: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("profile: unwatched\n", encoding="utf-8")
    table = speed_run.write_speed(tmp_path, labels=("full", "quest"))
    table.assign(sm_clock_low_mhz=None, sm_clock_high_mhz=None, disturbed=0).to_csv(tmp_path / "speed.csv", index=False)
    build_report(tmp_path / "config.yaml", tmp_path, tmp_path / "report")
    text, ran = words(tmp_path / "report" / "speed.html"), (table["status"] == "ok").sum()
    assert f"{ran} of {ran} timings were not watched" in text and "clocks held" not in text


@pytest.mark.usefixtures("no_drawing")
def test_a_timing_without_a_good_sample_is_a_hole(speed_run: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("profile: noisy\n", encoding="utf-8")
    table = speed_run.write_speed(tmp_path, labels=("full", "quest"))
    lost = (table["label"] == "quest") & (table["context"] == 131072) & (table["stage"] == "step")
    table.loc[lost, ["n", "disturbed"]] = [0, 10]
    table.loc[lost, ["median_us", "p5_us", "p95_us", "ratio", "ratio_low", "ratio_high", "fraction"]] = float("nan")
    table.to_csv(tmp_path / "speed.csv", index=False)
    build_report(tmp_path / "config.yaml", tmp_path, tmp_path / "report")
    text = both(tmp_path / "report")
    assert "no number: disturbed" in text and "every sample was disturbed" in text


def test_of_many_batches_those_are_drawn_that_reach_the_longest_contexts() -> None:
    sizes = [(1, 4096), (1, 524288), (4, 4096), (4, 131072), (8, 32768), (16, 4096), (16, 32768)]
    rows = pd.DataFrame(sizes, columns=["batch", "context"])
    assert farthest(rows, 3) == [1, 4, 8] and farthest(rows[rows["batch"] > 1], 1) == [4]
    assert farthest(rows, 9)[-1] == 16 and farthest(rows[:0], 3) == []
