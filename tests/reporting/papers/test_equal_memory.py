"""The part on throughput at equal device memory, from times made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from longdecode.reporting.papers.blocks import Cells, Comparison, MissingResult, Prose
from longdecode.reporting.papers.nosa.page import PAPER, THROUGHPUT
from longdecode.reporting.papers.sections.equal_memory import EqualMemory

GIB = 1 << 30


def row(
    label: str, stage: str, us: float, batch: int, fetched: float = 0.0, hit: float | None = None, **more: Any
) -> dict:
    """A timing of a token: full takes 2,000 us at 4 sequences in all of them."""
    params = {
        "hit_rate": hit, "layer_hits": None if hit is None else [hit] * 2, "memory_bytes": 8 * GIB,
        "host_bytes_per_sequence": 2 * GIB if fetched else 0, "fetched_bytes": 0.75 * fetched,
        "prefetched_bytes": 0.25 * fetched, "host_gib": 64,
        "device_bytes_per_sequence": 8 * GIB // (4 if batch < 32 else 39),
    }  # fmt: skip
    found = {
        "bench": "offload", "model": "nosa-8b", "subject": label.split("_")[0], "label": label, "stage": stage,
        "context": 65536, "batch": batch, "status": "ok", "median_us": us, "ratio": 2000 / us,
        "ratio_low": 1990 / us, "ratio_high": 2010 / us, "gb_per_s": 1.0, "params": json.dumps(params),
    }  # fmt: skip
    return found | more


ROWS = [
    row("full", "step", 2000, 4),
    row("infllm2_offload", "step", 560, 32, 14e6, 0.889),
    row("nosa_offload", "step", 400, 32, 7e6, 0.944),
    row("nosa_offload", "resident", 250, 32, 0, 0.944),
    row("nosa_offload", "refetch", 2400, 32, 120e6, 0.944),
    row("nosa_offload", "eager", 900, 32, 7e6, 0.944),
    row("nosa_offload", "transfer", 140, 32, 0, 0.944, ratio=0.9, gb_per_s=49.5),
    row("nosa_offload", "step", 520, 32, 12.5e6, 0.9),
    row("nosa_prefetch", "step", 275, 30, 7e6, 0.944),
]


def inputs_of(rows: list[dict[str, Any]], records: Sequence[Any] = ()) -> Any:
    speed = SimpleNamespace(table=pd.DataFrame(rows, columns=list(ROWS[0])))
    return SimpleNamespace(
        speed=speed, published=PAPER.published, words=lambda part: PAPER.words[part], timed=lambda model: "About.",
        missing=lambda what, command: MissingResult(what, command), results=SimpleNamespace(speed_records=records),
    )  # fmt: skip


@pytest.fixture(scope="module")
def blocks() -> list[Any]:
    return list(THROUGHPUT(inputs_of(ROWS)))


def test_ratios_take_the_fastest_label_and_stand_beside_print(blocks: list[Any]) -> None:
    ratios = next(block for block in blocks if isinstance(block, Comparison))
    by = {row.of[2]: row for row in ratios.rows}
    assert (by["full"].measured, by["full"].published.split()[-1]) == ("7.27", "5.04")
    assert by["full"].of == ["64K", "nosa_prefetch", "full", "30 over 4"]
    # 560 over 400 us: InfLLM-V2 was not timed with early guesses. The intervals of both ratios are 0.5 % to each side.
    assert (by["infllm2_offload"].measured, by["infllm2_offload"].interval) == ("1.40", "[1.39, 1.41]")
    # What holds for every row stands once, below the table.
    assert not ratios.noted
    (notes,) = [block.text for block in blocks[1:] if isinstance(block, Prose)]
    assert "ShadowKV's chunks of 8 tokens change at the" in notes
    assert by["shadowkv"].measured == "–"
    assert THROUGHPUT.claimed(inputs_of(ROWS), "full").measured == "7.27"
    assert THROUGHPUT.claimed(inputs_of(ROWS), "shadowkv") is None


def test_a_rival_is_taken_at_its_fastest_too() -> None:
    slots = row("infllm2_spare32", "step", 330, 31, 6e6, 0.889)
    claim = THROUGHPUT.claimed(inputs_of([*ROWS, slots, row("nosa_spare32", "step", 300, 31, 3e6, 0.944)]), "infllm2")
    # 330 over 300 us, where 64 slots gave 560 over 400.
    assert claim is not None and (claim.measured, claim.of[2]) == ("1.10", "infllm2_spare32")


def test_means_that_a_rival_was_not_timed_with_do_not_count_over_it() -> None:
    fast = row("nosa_overlap", "step", 200, 32, 7e6, 0.944)
    both = [fast, row("infllm2_overlap", "step", 500, 32, 14e6, 0.889)]
    over = {name: THROUGHPUT.claimed(inputs_of([*ROWS, fast]), name) for name in ("full", "infllm2")}
    assert [claim.of[1] for claim in over.values() if claim] == ["nosa_overlap", "nosa_offload"]
    claim = THROUGHPUT.claimed(inputs_of([*ROWS, *both]), "infllm2")
    assert claim is not None and (claim.of[1], claim.of[2], claim.measured) == (
        "nosa_overlap",
        "infllm2_overlap",
        "2.50",
    )


def test_a_claim_names_its_context_and_the_least_ratio() -> None:
    short = [{**row(label, "step", us, 4), "context": 16384} for label, us in (("full", 2000), ("nosa_offload", 1250))]
    claim = THROUGHPUT.claimed(inputs_of([*ROWS, *short]), baseline="full")
    assert claim is not None and claim.reason == "nosa_prefetch at 64K; at 16K 1.60 (nosa_offload)"
    alone = THROUGHPUT.claimed(inputs_of(ROWS), baseline="full")
    assert alone is not None and alone.reason == "nosa_prefetch at 64K"


def test_hit_rates_of_forks_have_a_table_of_their_own_without_print() -> None:
    theirs = [row("infllm2_fork", "step", 800, 32, 30e6, 0.766), row("nosa_fork", "step", 640, 32, 14e6, 0.894)]
    found = list(THROUGHPUT(inputs_of([*ROWS, *theirs])))
    published = next(block for block in found if isinstance(block, Comparison))
    assert not any("nosa_fork" in line.of for line in published.rows)
    forks = next(block for block in found if isinstance(block, Cells) and "forks" in block.caption)
    assert [line[1:5] for line in forks.rows] == [
        ["nosa_fork", "full", "32 over 4", "3.12"], ["nosa_fork", "infllm2_fork", "32 over 32", "1.25"],
    ]  # fmt: skip
    assert not any(isinstance(block, Cells) and "forks" in block.caption for block in THROUGHPUT(inputs_of(ROWS)))


def test_recorded_selections_of_forks_are_compared_with_one_another() -> None:
    theirs = [row("infllm2_trace32", "step", 480, 31, 13e6, 0.9), row("nosa_trace32", "step", 320, 30, 5e6, 0.9)]
    found = [block for block in THROUGHPUT(inputs_of([*ROWS, *theirs])) if isinstance(block, Cells)]
    tables = [block for block in found if "blocks that our forks read" in block.caption]
    assert [line[1:5] for line in tables[0].rows][1] == ["nosa_trace32", "infllm2_trace32", "30 over 31", "1.50"]


def test_tables_say_what_was_moved_and_what_each_piece_brings(blocks: list[Any]) -> None:
    throughput, parts, rates = (block for block in blocks if isinstance(block, Cells))
    nosa = next(cells for cells in throughput.rows if cells[1] == "nosa_offload")
    # 400 us a token of 32 sequences; 7 MB a token; a copy moves 49.5 / 0.9 GB/s.
    assert nosa[2:] == ["32", "host", "220", "68.7", "0.944", "12.80", "2,500", "224", "25 %", "17.5", "4.07"]
    assert next(cells for cells in throughput.rows if cells[1] == "full")[3] == "device"
    words = {cells[0]: cells[1:] for cells in parts.rows}
    assert words["without the CUDA graph"] == ["28.80", "2.25", "2.22"]
    assert words["nothing to fetch: every listed block is on the device"] == ["8.00", "0.62", "8.00"]
    assert next(value for name, value in words.items() if "transfers alone" in name)[0] == "4.48"
    assert words["nosa_prefetch, batch 30"] == ["8.25", "1.10", "7.27"]
    assert [cells[0] for cells in rates.rows] == ["0.900", "0.944"]
    # 250 + 12.5e6 / 55,000 bytes a microsecond is 477 us.
    assert rates.rows[0][1:] == ["2,095", "1,923", "0.92"]


def test_contexts_rise_and_times_of_other_code_are_marked() -> None:
    """In the file 64K comes before 16K; the record of one label at 16K carries a hash of other code."""
    short = [{**row(label, "step", us, 4), "context": 16384} for label, us in (("full", 2000), ("nosa_offload", 1250))]
    provenance = SimpleNamespace(code_hash="of other code", revision="3a15629")
    record = SimpleNamespace(
        model="nosa-8b", label="nosa_offload", context=16384, bench="offload", subject="nosa", provenance=provenance
    )
    found = list(THROUGHPUT(inputs_of([*ROWS, *short], [record])))
    table = next(block for block in found if isinstance(block, Cells) and block.caption.startswith("Throughput with"))
    assert [cells[0] for cells in table.rows][:3] == ["16K", "16K †", "64K"]
    ratios = next(block for block in found if isinstance(block, Comparison))
    assert [line.of[0] for line in ratios.rows if line.of[2] == "full"] == ["16K †", "64K"]
    assert any(isinstance(block, Prose) and block.text.startswith("†: measured before") for block in found)
    plain = list(THROUGHPUT(inputs_of(ROWS)))
    assert not any(isinstance(block, Prose) and "†" in block.text for block in plain)


def test_every_label_is_held_to_the_quickest_computing_of_its_method() -> None:
    """Of two labels with pieces each has a table; 290 us a token are 1.16 times 250, though 1.04 times its own 280."""
    apart = [
        row("nosa_overlap32", "step", 290, 30, 3e6, 0.944),
        row("nosa_overlap32", "resident", 280, 30, 0, 0.944),
        row("nosa_overlap32", "transfer", 60, 30, 0, 0.944, ratio=0.9, gb_per_s=49.5),
    ]
    tables = [block for block in THROUGHPUT(inputs_of([*ROWS, *apart])) if isinstance(block, Cells)]
    tables = [table for table in tables if table.caption.startswith("Pieces of a step of ")]
    assert [table.caption.split()[5] for table in tables] == ["nosa_offload", "nosa_overlap32"]
    for table in tables:
        words = {cells[0]: cells[1:] for cells in table.rows}
        assert words["nosa_overlap32, batch 30"] == ["8.70", "1.16", "6.90"]
        assert words["nosa_offload, batch 32"] == ["12.80", "1.60", "5.00"]


def test_without_times_the_part_says_how_to_make_them() -> None:
    found = list(EqualMemory("throughput", "speedups", {"full": ("full",)}, ("nosa",))(inputs_of([])))
    assert isinstance(found[-1], MissingResult) and "not measured" in found[-1].what
