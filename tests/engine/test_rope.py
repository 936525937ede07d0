"""Rotary tables against transformers' rotary modules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from longdecode.engine.config_reader import read_config
from longdecode.engine.rope import RopeTable


@pytest.mark.parametrize("name", ["llama2", "llama3", "qwen2_yarn", "qwen3"])
def test_tables_equal_transformers(name: str, tiny_checkpoint: Callable, reference_model: Callable) -> None:
    folder: Path = tiny_checkpoint(name)
    model: Any = reference_model(folder)
    table = RopeTable(read_config(folder), torch.device("cpu"))
    positions = torch.arange(256)
    cos, sin = model.model.rotary_emb(torch.zeros(1), positions[None])
    ours_cos, ours_sin = table.at(torch.arange(len(positions))[None])
    # The angle itself is rounded to float32: at position 255 that is 1.5e-5.
    torch.testing.assert_close(ours_cos, cos, atol=2e-5, rtol=0)
    torch.testing.assert_close(ours_sin, sin, atol=2e-5, rtol=0)


def test_positions_are_looked_up_row_by_row(tiny_checkpoint: Callable) -> None:
    table = RopeTable(read_config(tiny_checkpoint("qwen2_yarn")), torch.device("cpu"))
    cos, sin = table.at(torch.tensor([[200, 0], [31, 5]]))
    for row, position in enumerate((200, 0, 31, 5)):
        assert torch.equal(cos.flatten(0, 1)[row], torch.cat((table.cos[position], table.cos[position])))
        assert torch.equal(sin.flatten(0, 1)[row], torch.cat((table.sin[position], table.sin[position])))


def test_yarn_scales_the_tables(tiny_checkpoint: Callable) -> None:
    """At position 0 the cosine is the attention factor itself, ``0.1 ln 4 + 1`` (Peng et al. 2023, equation 22)."""
    table = RopeTable(read_config(tiny_checkpoint("qwen2_yarn")), torch.device("cpu"))
    assert table.cos[0].tolist() == pytest.approx([1.1386294361] * table.cos.shape[1])


def test_the_default_variant_does_not_import_transformers() -> None:
    program = (
        "import sys, torch\n"
        "from longdecode.engine.generation import Generator, Request\n"
        "from longdecode.engine.model_config import ModelConfig\n"
        "from longdecode.engine.weights import random_decoder\n"
        "config = ModelConfig('llama', 9, 8, 8, 1, 2, 1, 4, 16)\n"
        "Generator(random_decoder(config, 0, 'cpu', torch.float32)).prefill([Request((1, 2), 1)])\n"
        "sys.exit('transformers' in sys.modules)\n"
    )
    source = Path(__file__).parents[2] / "src"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(source), "PATH": ""})
