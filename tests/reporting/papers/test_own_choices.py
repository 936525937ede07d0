"""The part on throughput by the model itself, from times made by hand, and what other pages make of such rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from longdecode.evals.throughput.own_choices_spec import OwnChoicesPlace, OwnChoicesSpec
from longdecode.reporting.papers.blocks import Block, Cells, Comparison, MissingResult, Prose
from longdecode.reporting.papers.nosa.page import OWN_CHOICES, PAPER, THROUGHPUT
from longdecode.reporting.speed.measured import Speed, load_speed
from longdecode.reporting.speed.page import facts

ROOT = Path(__file__).resolve().parents[3]
MEMORY = {16384: 1_500_000_000, 65536: 6_000_000_000}
FULL_US = {16384: 600.0, 65536: 2000.0}
CONFIG = {"throughput": {"own_choices": {"sequences": 4, "rounds": 2, "steps": 16}}}


def row(label: str, context: int, us: float, batch: int, budget: str = "1024", **more: Any) -> dict[str, Any]:
    """A timing of a token, in pairs with full attention's; its interval is 1 % to each side."""
    kind = next(name for name in ("nosa", "infllm2", "shadowkv", "full") if name in label)
    ratio = FULL_US[context] / us
    params = {
        "prompts": more.pop("prompts", "whole"), "text": more.pop("text", "books"), "memory_bytes": MEMORY[context],
        "device_bytes_per_sequence": more.pop("device", MEMORY[context] // batch), "host_gib": 64,
        "host_bytes_per_sequence": more.pop("host", 0), "loss": 3.2, "prefill_ms": 10.0,
    }  # fmt: skip
    if kind != "full":
        params |= {
            "full_loss": 3.25, "fetched_bytes": more.pop("fetched", 0.0), "prefetched_bytes": 0,
            "miss_rate": more.pop("missed", None),
        }  # fmt: skip
    found = {
        "bench": "own_choices", "model": f"fork-{'full' if kind == 'shadowkv' else kind}", "weights": "checkpoint",
        "subject": kind, "label": label, "stage": "step", "context": context, "batch": batch, "budget": budget,
        "op_sizes": f"prompts={params['prompts']}", "status": "ok", "n": 6, "disturbed": 0, "median_us": us,
        "ratio": ratio, "ratio_low": ratio * 0.99, "ratio_high": ratio * 1.01, "device": "NVIDIA H200",
        "params": json.dumps(params),
    }  # fmt: skip
    return found | more


ROWS = [
    row("full", 65536, 2000, 4, "full"),
    row("own_infllm2_offload", 65536, 1000, 20, "4096", fetched=9e6, missed=0.2, host=1 << 30),
    row("own_nosa_offload", 65536, 800, 20, "4096", fetched=4e6, missed=0.09375, host=1 << 30),
    row("own_shadowkv", 65536, 1250, 12, "4096", fetched=5e6, missed=0.4, host=5 << 30),
    row("full", 16384, 600, 4, "full"),
    row("own_infllm2_offload", 16384, 500, 6, "4096", prompts="own"),
    row("own_nosa_offload", 16384, 400, 6, "4096", prompts="own"),
    row("own_nosa_offload", 16384, 320, 6, "4096"),
    row("own_infllm2_overlap32", 16384, 450, 9),
    row("own_nosa_overlap32", 16384, 300, 64, device=1_000_000),
    row("own_nosa_device", 16384, 640, 3),
]


def inputs_of(rows: list[dict[str, Any]], records: Sequence[Any] = ()) -> Any:
    return SimpleNamespace(
        speed=SimpleNamespace(table=pd.DataFrame(rows, columns=list(ROWS[0]))), published=PAPER.published,
        words=lambda part: PAPER.words[part], timed=lambda model: "About.",
        missing=lambda what, command: MissingResult(what, PAPER.words["commands"][command].format(profile="x")),
        results=SimpleNamespace(speed_records=records, config=CONFIG),
    )  # fmt: skip


def tables(blocks: Sequence[Block]) -> tuple[Cells, Cells]:
    first, second = [block for block in blocks if isinstance(block, Cells)]
    return first, second


def plain(text: str) -> str:
    return text.replace("\u2212", "-")


def test_ratios_are_of_labels_with_the_same_means_at_the_same_place() -> None:
    _, over = tables(OWN_CHOICES(inputs_of(ROWS)))
    found = {tuple(line[:6]): line[6:] for line in over.rows}
    # Both were timed over Full: FULL_US / 800 over FULL_US / 1000, with the far ends of both intervals.
    assert found == {
        ("64K", "own_nosa_offload", "own_infllm2_offload", "20 over 20", "4,096 tokens", "whole"):
            [f"{1000 / 800:.2f}", f"[{1.25 * 0.99 / 1.01:.2f}, {1.25 * 1.01 / 0.99:.2f}]"],
        ("16K", "own_nosa_offload", "own_infllm2_offload", "6 over 6", "4,096 tokens", "own"):
            [f"{500 / 400:.2f}", f"[{1.25 * 0.99 / 1.01:.2f}, {1.25 * 1.01 / 0.99:.2f}]"],
        ("16K", "own_nosa_overlap32", "own_infllm2_overlap32", "64 over 9", "1,024 tokens", "whole"):
            [f"{450 / 300:.2f}", f"[{1.5 * 0.99 / 1.01:.2f}, {1.5 * 1.01 / 0.99:.2f}]"],
        ("64K", "own_nosa_offload", "own_shadowkv", "20 over 12", "4,096 tokens", "whole"):
            [f"{1250 / 800:.2f}", f"[{1.5625 * 0.99 / 1.01:.2f}, {1.5625 * 1.01 / 0.99:.2f}]"],
    }  # fmt: skip


def test_every_label_says_what_bounds_its_batch_and_what_it_fetched() -> None:
    throughput, _ = tables(OWN_CHOICES(inputs_of(ROWS)))
    assert "1.50 GB at 16K and 6.00 GB at 64K" in throughput.caption and "NVIDIA H200" in throughput.caption
    assert [tuple(line[:4]) for line in throughput.rows] == [
        ("16K", "all", "whole", "full"),
        ("16K", "1,024 tokens", "whole", "own_infllm2_overlap32"),
        ("16K", "1,024 tokens", "whole", "own_nosa_overlap32"),
        ("16K", "1,024 tokens", "whole", "own_nosa_device"),
        ("16K", "4,096 tokens", "whole", "own_nosa_offload"),
        ("16K", "4,096 tokens", "own", "own_infllm2_offload"),
        ("16K", "4,096 tokens", "own", "own_nosa_offload"),
        ("64K", "all", "whole", "full"),
        ("64K", "4,096 tokens", "whole", "own_infllm2_offload"),
        ("64K", "4,096 tokens", "whole", "own_nosa_offload"),
        ("64K", "4,096 tokens", "whole", "own_shadowkv"),
    ]
    heads = throughput.heads
    lines = {tuple(line[:4]): dict(zip(heads[4:], map(plain, line[4:]), strict=True)) for line in throughput.rows}
    nosa = lines["64K", "4,096 tokens", "whole", "own_nosa_offload"]
    assert nosa == {
        "Fork": "fork-nosa", "Batch": "20", "Set by": "device", "A sequence on the device, MB": "300",
        # 800 us a token of 20 sequences.
        "Step, ms": "16.00", "Tokens a second": "1,250", "Over Full": "2.50", "95 %": "[2.48, 2.52]",
        "Fetched a token, MB": "4", "Hit rate": "0.906", "GB/s over the step": f"{4e6 / 800e-6 / 1e9:.1f}",
        "Loss minus Full's, nats": "-0.050",
    }  # fmt: skip
    assert lines["64K", "4,096 tokens", "whole", "own_shadowkv"]["Set by"] == "device and host"
    assert lines["16K", "1,024 tokens", "whole", "own_nosa_overlap32"]["Set by"] == "the test's own limit"
    full = lines["64K", "all", "whole", "full"]
    nothing = ("Fetched a token, MB", "Hit rate", "GB/s over the step", "Loss minus Full's, nats")
    assert {full[name] for name in nothing} == {"–"} and full["Over Full"] == "1.00"


def test_words_say_which_text_it_was_and_over_how_many_tokens_losses_are() -> None:
    spec = OwnChoicesSpec({"full": "m"}, (OwnChoicesPlace(4096, 1024),), rounds=2, steps=16)
    (about,) = [block.text for block in OWN_CHOICES(inputs_of(ROWS)) if isinstance(block, Prose)]
    assert f"over {spec.scored} tokens of each of the first 4 rows" in about and spec.scored == 1 + (2 + 4) * 16
    assert "eight books" in about and "generated stories" not in about
    stories = [row("full", 16384, 600, 4, "full", text="generated")]
    found = OWN_CHOICES(inputs_of(stories))
    assert "generated stories in place of books" in "".join(block.text for block in found if isinstance(block, Prose))
    # Full attention alone is over no rival.
    assert [block.caption[:10] for block in found if isinstance(block, Cells)] == ["Throughput"]


def test_a_time_of_other_code_is_marked_at_its_own_budget_alone() -> None:
    provenance = SimpleNamespace(code_hash="of other code", revision="3a15629")
    record = SimpleNamespace(
        model="fork-nosa", label="own_nosa_overlap32", context=16384, budget="1024", bench="own_choices",
        subject="nosa", provenance=provenance,
    )  # fmt: skip
    larger = row("own_nosa_overlap32", 16384, 310, 8, "4096")
    blocks = OWN_CHOICES(inputs_of([*ROWS, larger], [record]))
    throughput, over = tables(blocks)
    marked = {(line[1], line[3]) for line in throughput.rows if line[0].endswith("†")}
    assert marked == {("1,024 tokens", "own_nosa_overlap32")}
    assert [line[0] for line in over.rows if line[1] == "own_nosa_overlap32"] == ["16K †"]
    assert isinstance(blocks[-1], Prose) and blocks[-1].text.startswith("†: measured before")
    assert not any("†" in block.text for block in OWN_CHOICES(inputs_of(ROWS)) if isinstance(block, Prose))


def test_without_times_the_part_names_the_command() -> None:
    _, gap = OWN_CHOICES(inputs_of([]))
    assert isinstance(gap, MissingResult)
    assert gap.command == (
        "snakemake --cores 16 results/offload/speed/own_choices.parquet --config profile=offload 'data={pg19: books}'"
    )


@pytest.fixture(scope="module")
def both() -> Speed:
    """The committed times at equal device memory, and those by the models' own choices."""
    speed = load_speed(ROOT / "results" / "offload", ())
    assert speed is not None
    table = pd.concat([speed.table, pd.DataFrame(ROWS)], ignore_index=True)
    return Speed(table, speed.growth, speed.breakeven, speed.breakdown, ())


def test_speed_page_names_forks_and_labels_of_both_tests(both: Speed) -> None:
    found = facts(both, str)
    assert found["models"] == ["nosa-8b", "fork-full", "fork-infllm2", "fork-nosa"] and found["read"]
    assert {"own_nosa_offload", "nosa_offload"} <= set(found["labels"]) and both.kind("own_shadowkv") == "shadowkv"
    assert "64" in found["batches"] and "1,024 tokens" in found["budgets"]
    alone = Speed(both.table[both.table["bench"] != "own_choices"], both.growth, both.breakeven, both.breakdown, ())
    before = facts(alone, str)
    assert not before["read"] and before["models"] == ["nosa-8b"] and "1,024 tokens" not in before["budgets"]


def test_other_tables_do_not_mix_both_tests(both: Speed) -> None:
    alone = both.table[both.table["bench"] != "own_choices"]

    def shown(table: pd.DataFrame) -> list[Block]:
        inputs = inputs_of([])
        inputs.speed = SimpleNamespace(table=table)
        return list(THROUGHPUT(inputs))

    assert shown(both.table) == shown(alone) and any(isinstance(block, Comparison) for block in shown(alone))
