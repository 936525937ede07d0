"""Overlap of adjacent layers' top tokens, against sets taken from transformers' attention weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.engine.weights import load_decoder
from longdecode.evals.run_config import build_run_config
from longdecode.training.roles.overlap import COLUMNS, OverlapProbe, OverlapSpec, measure_overlap, overlap_rows
from small_run import run_values

SIZES = (3, 7)


def test_overlap_equals_that_of_attention_weights(byte_model: Path, reference_model: Callable, seed: int) -> None:
    decoder = load_decoder(byte_model, device="cpu", dtype=torch.float32)
    layers, kv_heads, group = decoder.config.num_layers, decoder.config.num_kv_heads, decoder.config.group_size
    generator = torch.Generator().manual_seed(seed)
    prompts = [tuple(torch.randint(0, 257, (n,), generator=generator).tolist()) for n in (41, 30)]
    requests = [Request(prompt, 4, (5, 9)) for prompt in prompts]
    probe = OverlapProbe(SIZES, decoder.config)
    done = Generator(decoder).run(requests, probe)
    expected = torch.zeros(len(SIZES), layers, kv_heads * (1 + group), dtype=torch.float64)
    steps = 0
    for request, completion in zip(requests, done, strict=True):
        ids = torch.tensor([(*request.prompt_ids, *request.forced_ids, *completion.output_ids)])
        with torch.no_grad():
            maps = reference_model(byte_model)(ids, output_attentions=True).attentions
        # The last token generated is never fed.
        for t in range(len(request.prompt_ids), ids.shape[1] - 1):
            steps += 1
            logs = [layer[0, :, t, : t + 1].double().log() for layer in maps]
            # Up to a constant a row, the mean of a group's log weights is the logit of its mean query.
            scores = [torch.cat((log.view(kv_heads, group, -1).mean(dim=1), log)) for log in logs]
            for row, size in enumerate(SIZES):
                tops = [[set(line.topk(size).indices.tolist()) for line in score] for score in scores]
                for layer in range(1, layers):
                    for head, (upper, lower) in enumerate(zip(tops[layer], tops[layer - 1], strict=True)):
                        expected[row, layer, head] += len(upper & lower) / size
    assert probe.record is not None and probe.record.count.item() == steps == 10
    torch.testing.assert_close(probe.record.sums, expected)
    assert 0 < expected.sum() < steps * expected.numel()


def test_rows_name_every_head_of_every_upper_layer(byte_model: Path, tmp_path: Path) -> None:
    decoder, tokenizer = load_decoder(byte_model, device="cpu", dtype=torch.float32), load_tokenizer(byte_model)
    rows = overlap_rows(OverlapSpec("tiny", (512, 600), (16, 32), samples=2, steps=3), decoder, tokenizer)
    assert all(len(row) == len(COLUMNS) for row in rows) and len(rows) == 2 * 2 * 2 * (2 + 4)
    places = {tuple(row[2:7]) for row in rows}
    assert len(places) == len(rows) and (600, 32, 2, "query", 3) in places
    # One token is forced behind the prompt and three are generated, the last of which is never fed.
    assert all(0 <= row[7] <= 1 and row[8] == 6 for row in rows)


def test_a_run_writes_the_overlap_of_its_models(byte_model: Path, tmp_path: Path) -> None:
    about = {"device": "cpu", "models": {"tiny": {"path": str(byte_model)}}, "overlap": {"tiny": [1024]}}
    measure_overlap(build_run_config(run_values(**about), "c.yaml"), tmp_path / "overlap.csv")
    head, *lines = (tmp_path / "overlap.csv").read_text().splitlines()
    assert tuple(head.split(",")) == COLUMNS and {line.split(",")[3] for line in lines} == {"64", "256"}


def test_sets_larger_than_the_prompt_are_refused(byte_model: Path) -> None:
    decoder, tokenizer = load_decoder(byte_model, device="cpu", dtype=torch.float32), load_tokenizer(byte_model)
    with pytest.raises(ConfigError, match="k = 500; prompts of mini_longgen_15 at 512 have"):
        overlap_rows(OverlapSpec("tiny", (512,), (500,)), decoder, tokenizer)
    with pytest.raises(ConfigError, match="no overlap is configured"):
        measure_overlap(build_run_config(run_values(), "c.yaml"), Path("x.csv"))
