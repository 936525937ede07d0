"""Traces and what is read off them, against sets counted by hand; recorded on a tiny model."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from longdecode.engine.generation import Generator, Request
from longdecode.engine.weights import random_decoder
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.prompt_selection import SelectivePrefill
from longdecode.methods.registry import get_method
from longdecode.training.forks.locality import LocalitySpec, columns, locality_rows, record
from longdecode.training.forks.traces import EMPTY, BlockTrace


def shuffled(rng: random.Random, steps: int, blocks: int, read: int) -> np.ndarray:
    """Two heads; the newest block and the first always, the others drawn; every third step one block fewer."""
    ids = np.full((steps, 1, 1, 2, read), EMPTY, dtype=np.uint16)
    for step in range(steps):
        for head in range(2):
            count = read - (step % 3 == 2)
            mine = [0, blocks - 1, *rng.sample(range(1, blocks - 1), count - 2)]
            rng.shuffle(mine)
            ids[step, 0, 0, head, :count] = mine
    return ids


def test_a_trace_counts_as_by_hand(seed: int) -> None:
    ids = shuffled(random.Random(seed), 40, 30, 8)
    trace = BlockTrace(ids, {"forced": [1, 1], "block_size": 4})
    sets = [[set(ids[step, 0, 0, head].tolist()) - {EMPTY} for step in range(40)] for head in range(2)]
    for head in range(2):
        resident: list[int] = []
        missed = 0
        for step, mine in enumerate(sets[head]):
            assert set(trace.ids[step, 0, 0, head].tolist()) - {EMPTY} == mine
            missed += len(mine - set(resident)) if step else 0
            # Of blocks read in one step the smallest number counts as the least recent.
            resident = [block for block in resident if block not in mine] + sorted(mine)
            resident = resident[-12:]
            if step:
                before = sets[head][step - 1]
                assert trace.overlaps()[step - 1, 0, 0, head] == pytest.approx(len(mine & before) / len(mine))
                free = mine - {0, 29}
                assert trace.free_overlaps()[step - 1, 0, 0, head] == pytest.approx(len(free & before) / len(free))
        assert trace.misses([12])[0][0, 0, head] == pytest.approx(missed / 39)
        assert trace.union()[0, 0, head] == pytest.approx(len(set().union(*sets[head])) / 30)


def test_a_recorded_decode_keeps_the_bound(seed: int) -> None:
    """Every step's list is recorded in its layer; NOSA's overlap is at least what its budget says."""
    spec = LocalitySpec(64, 90, steps=30, samples=2, slots=(16, 24))
    method = get_method("nosa").from_budget(64, CONFIG, heads="random:1")
    assert isinstance(method, SelectivePrefill)
    rng = random.Random(seed)
    ids = [tuple(rng.randrange(CONFIG.vocab_size) for _ in range(121)) for _ in range(2)]
    generator = Generator(random_decoder(CONFIG, 0, "cpu", torch.float32))
    requests = [Request(row[:90], 0, row[90:]) for row in ids]
    trace = BlockTrace(
        record(method, generator, requests),
        {"label": "nosa", "model": "tiny", "method": "nosa", "text": "generated", "context": 90, "budget": 64,
         "block_size": method.list_block, "forced": list(method.forced)},
    )  # fmt: skip
    assert trace.ids.shape == (30, CONFIG.num_layers, 2, CONFIG.num_kv_heads, 16)
    assert float(trace.overlaps().min()) >= (16 - 4 - 1) / 16
    rows = locality_rows(spec, trace)
    assert len(rows) == 2 * CONFIG.num_layers * CONFIG.num_kv_heads
    assert all(len(row) == len(columns(spec)) for row in rows)
    by_name = dict(zip(columns(spec), rows[0], strict=True))
    assert by_name["misses_24"] <= by_name["misses_16"] and 0 < by_name["union"] <= 1
