"""Random inputs for the tests of continued training."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def rng(seed: int) -> torch.Generator:
    """A generator of random inputs."""
    return torch.Generator().manual_seed(seed)
