"""Write the README's numbers from the committed results: ``python -m longdecode.reporting.readme [--check]``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from longdecode.engine.errors import LongDecodeError
from longdecode.reporting.quality import with_traffic
from longdecode.reporting.readme_papers import line, paper_nosa, paper_retro, paper_tokenswift
from longdecode.reporting.readme_real import real_answer, real_table
from longdecode.reporting.results import Results, Topic, load_results
from longdecode.reporting.setups import timed_setups
from longdecode.reporting.speed.measured import Speed, at
from longdecode.reporting.speed.tables import against
from longdecode.reporting.staleness import older_in_short
from longdecode.reporting.verdicts import WITHIN, grid, margin
from longdecode.reporting.wording import listing, milliseconds, number, ratio

MODEL, CONTEXT, BUDGET = "llama3-8b", 131072, "4096"
NAMES = {
    "full": "Full", "quest": "Quest", "tidal": "TidalDecode", "lychee": "LycheeDecode", "duo": "DuoAttention",
    "streaming": "StreamingLLM", "snapkv": "SnapKV", "h2o": "H2O", "tova": "TOVA", "retro": "RetroAttention",
    "free_selection": "pages chosen for free", "hf_full": "stock `transformers` loop",
}  # fmt: skip
_REGION = r"(<!-- from results: {} -->\n).*?(\n<!-- end -->)"


class ReadmeError(LongDecodeError):
    """The README lacks a region that numbers belong into."""


def rendered(text: str, results: Results, real: Results) -> str:
    """Return the README's text with every region written anew, from the miniature's results and the real model's.

    Raises:
        ReadmeError: a region is missing.
    """
    bodies = {name: write(results) for name, write in REGIONS.items()}
    bodies |= {"real answer": real_answer(real), "real model": real_table(real), "papers": papers(results, real)}
    bodies["older"] = older(results, real)
    for name, body in bodies.items():
        pattern = re.compile(_REGION.format(name), re.DOTALL)
        if not pattern.search(text):
            raise ReadmeError(f"no region '<!-- from results: {name} -->' that ends in '<!-- end -->'")
        text = pattern.sub(lambda found, body=body: f"{found[1]}{body}{found[2]}", text)  # type: ignore[misc]
    return text


def figure_reading(results: Results) -> str:
    """Say what the figure of mini_longgen shows: budgets by context, bytes at every context."""
    topic = _topic(results, "mini_longgen")
    labels = [label for label in results.labels if label not in results.ablations and _tuned(results, label)]
    judged = grid(results, topic, labels)
    quest = next(each for label, each, _ in judged.rows if label == "quest")
    places = [f"{v.headline.removeprefix('from ')} at {v.context:,} tokens" for v in quest]
    within = [f"{v.label} from {v.budget} ({v.reads}; {v.flips})" for v in judged.ranked(*WITHIN)]
    far = [f"{v.label} ({v.value} at {v.budget})" for v in judged.ranked("worse")]
    shares = {v.context or 0: float(v.budget.split()[0]) for v in quest if v.level in WITHIN}
    tokens = [context * share for context, share in shares.items()]
    by_number = len(tokens) > 1 and max(tokens) / min(tokens) < max(shares.values()) / min(shares.values())
    shape = ": what a selector needs is nearer to a number of tokens than to a share of them" if by_number else ""
    return _lines(
        f"Quest stays within {margin(topic.unit)} of Full from {listing(places)}{shape}. At every context at once, "
        "with the bytes read as a share of Full's, selector included, and the answers lost where it is worst: "
        f"{'; '.join(within)}."
        + (f" Still worse at the largest budget: {'; '.join(far)}." if far else "")
        + f" Miniature model, generated data, {results.config['suites']['mini_longgen']['samples']} samples a task, "
        f"{listing(sorted(set(results.summary['device'])))}."
    )


def speed_table(results: Results) -> str:
    """Return the table of steps at 131,072 tokens, batch 1."""
    speed, setups = _speed(results), timed_setups(results)
    rows = ["| 131,072 tokens of context, batch 1 | configuration | step, ms | over Full | floor, ms |"]
    rows.append("| --- | --- | --- | --- | --- |")
    baseline, elsewhere = _step(speed, "full", 1), set[str]()
    for label, name in NAMES.items():
        row = _step(speed, label, 1)
        if row is None:
            continue
        if baseline is not None and row["revision"] != baseline["revision"]:
            elsewhere.add(str(row["revision"])[:7])
            name += " †"
        times = "1" if label == "full" else "" if label == "hf_full" else _ratio(row)
        setup = setups.get((MODEL, label, CONTEXT), "")
        rows.append(
            f"| {name} | {setup} | {milliseconds(row['median_us'])} | {times} | {milliseconds(row['floor_us'])} |"
        )
    if elsewhere:
        runs = listing(sorted(elsewhere))
        rows += ["", f"†: timed in a later run ({runs}); over Full of that run, not of this table."]
    return "\n".join(rows)


def speed_claims(results: Results) -> str:
    """Return the claims on speed, each with its batch."""
    speed = _speed(results)
    said = []
    for label in ("lychee", "quest"):
        parts = [
            f"{_ratio(row)} at batch {batch}" for batch in (1, 4, 8) if (row := _step(speed, label, batch)) is not None
        ]
        said.append(f"{NAMES[label]} over Full at 131,072 tokens: {', '.join(parts)}.")
    for peer, name in (("torch_flash", "torch's flash attention"), ("torch_cudnn", "cuDNN, torch's fastest")):
        parts = [f"{text} at batch {batch}" for batch in (1, 4, 8) if (text := _dense(speed, peer, batch))]
        said.append(f"Dense attention at 131,072 tokens over {name}: {', '.join(parts)}.")
    steps = [(_step(speed, "streaming", batch), _step(speed, "free_selection", batch), batch) for batch in (1, 4)]
    beside = [
        f"{ratio(window['ratio'])} over Full beside {ratio(free['ratio'])} at batch {batch}"
        for window, free, batch in steps
        if window is not None and free is not None
    ]
    if beside:
        said.append(
            "*Pages chosen for free* is sparse attention over page lists that cost nothing to choose, the limit of "
            f"methods that read such lists; a contiguous window (StreamingLLM) needs none: {', '.join(beside)}."
        )
    return _lines(" ".join(said))


def papers(results: Results, real: Results) -> str:
    """Return the table of papers."""
    heads = "| paper | in print | speed here | quality here | pages |\n| --- | --- | --- | --- | --- |"
    return "\n".join((heads, paper_lychee(results), paper_retro(real), paper_nosa(), paper_tokenswift()))


def older(*loaded: Results, folder: Path = Path("results")) -> str:
    """Return the table of evidence that is of older code, a profile of ``folder`` a row.

    Args:
        loaded: results that need not be read again.
        folder: of the profiles.
    """
    known = {results.profile: results for results in loaded}
    lines = ["| profile | measured before: evidence whose code has changed since (its revision) |", "| --- | --- |"]
    for config in sorted(folder.glob("*/config.yaml")):
        name = config.parent.name
        results = known[name] if name in known else load_results(config, config.parent)
        lines.append(f"| `{folder.name}/{name}` | {older_in_short(results) or 'none'} |")
    return "\n".join(lines)


def paper_lychee(results: Results) -> str:
    """Return LycheeDecode's line in the table of papers."""
    speed, topic = _speed(results), _topic(results, "mini_longgen")
    timed = [(batch, row) for batch in (1, 4) if (row := _step(speed, "lychee", batch)) is not None]
    steps = [f"{ratio(row['ratio'])} at batch {batch}" for batch, row in timed]
    gaps = []
    for context in (results.contexts(topic)[0], results.contexts(topic)[-1]):
        row = at(with_traffic(results.rows_of(topic, context)), {"budget": "0.1", "method": "lychee"}).iloc[0]
        reads = f"{number(100 * row['bytes_share'], 0)} % of Full's bytes"
        gaps.append(f"{_points(row['diff_to_full'])} at {context:,} tokens ({reads})")
    return line(
        "LycheeDecode (arXiv 2602.04541)",
        "2.7 times Full at batch 1, above the 1.81 that memory traffic allows over an ideal dense decoder",
        f"over Full: {', '.join(steps)} (8B shape, 128K tokens, random weights)",
        "the miniature, configured otherwise than what is timed, a budget of 10 %, points to Full: 45 look-ups "
        f"{', '.join(gaps)}{_other_generator(results)}",
        "lychee",
        "reports/h200/paper-lychee.html",
    )


def _other_generator(results: Results) -> str:
    """Say what LycheeDecode loses on a suite that its heads were not identified on, at the budget of its line."""
    topic = _topic(results, "mini_reason")
    gaps = [
        f"{_points(float(rows['diff_to_full'].iloc[0]))} at {context:,} tokens"
        for context in results.contexts(topic)
        if len(rows := at(results.rows_of(topic, context), {"method": "lychee", "budget": "0.1"}))
    ]
    return f"; chains (`mini_reason`), which its heads were not identified on, {', '.join(gaps)}" if gaps else ""


REGIONS: Mapping[str, Callable[[Results], str]] = {
    "figure": figure_reading,
    "speed table": speed_table,
    "speed claims": speed_claims,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the README's regions; with ``--check``, say whether they are up to date and write nothing."""
    parser = argparse.ArgumentParser(prog="readme", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/h200"))
    parser.add_argument("--real", type=Path, default=Path("results/real"))
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args(arguments)
    old = asked.readme.read_text(encoding="utf-8")
    new = rendered(old, *(load_results(folder / "config.yaml", folder) for folder in (asked.results, asked.real)))
    if asked.check:
        return int(new != old)
    asked.readme.write_text(new, encoding="utf-8")
    return 0


def _tuned(results: Results, label: str) -> bool:
    """Tell whether a label may be compared: TidalDecode's rule of depth picks the miniature's worst layer but one."""
    return results.kind(label) != "tidal" or "reselect_layer" in results.params(label)


def _topic(results: Results, suite: str) -> Topic:
    return results.topics(results.models[0], suite)[0]


def _speed(results: Results) -> Speed:
    if results.speed is None:
        raise ReadmeError("the results hold no times")
    return results.speed


def _step(speed: Speed, label: str, batch: int) -> pd.Series | None:
    rows = at(speed.ok(MODEL), {"label": label, "context": CONTEXT, "batch": batch})
    rows = rows[rows["budget"].isin([BUDGET, "full"])]
    return None if rows.empty else rows.iloc[0]


def _ratio(row: pd.Series) -> str:
    return f"{ratio(row['ratio'])} [{ratio(row['ratio_low'])}, {ratio(row['ratio_high'])}]"


def _dense(speed: Speed, peer: str, batch: int) -> str:
    rows = speed.kernels()
    size = at(rows, {"model": MODEL, "subject": "decode_attention", "context": CONTEXT, "batch": batch, "status": "ok"})
    found = size[size["label"] == peer]
    pair = None if found.empty else against(found.iloc[0], size)
    return "" if pair is None else ratio(pair[0])


def _points(share: float) -> str:
    return number(100 * share, 1, signed=True)


def _lines(text: str, width: int = 150) -> str:
    """Break a paragraph into lines of at most ``width`` letters, at ordinary spaces alone."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append(word)
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
