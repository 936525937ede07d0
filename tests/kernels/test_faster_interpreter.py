"""The quicker interpreter computes what Triton's own does, and refuses an overflow that Triton's lets pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SAMPLE = Path(__file__).with_name("interpreter_sample.py")


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU")
def test_the_same_bits_and_one_refusal_more() -> None:
    found = []
    for first in ("", "import faster_interpreter; faster_interpreter.speed_up(); "):
        run = f"import sys; sys.path[:0] = {[str(SAMPLE.parents[1]), str(SAMPLE.parent)]!r}; {first}"
        run += "import interpreter_sample; print(interpreter_sample.digest())"
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.splitlines())
    (*theirs, _), (*ours, refused) = found
    assert theirs == ours and refused == "int32 overflow detected for operation mul"
