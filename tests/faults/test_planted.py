"""Every planted fault can still be planted: its text occurs once, and its test exists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faults import plant

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("fault", plant.load_faults([]), ids=lambda fault: f"{fault.file}: {fault.why}")
def test_the_fault_can_be_planted(fault: Any) -> None:
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.find) == 1
    assert fault.replace != fault.find and fault.why
    file, *names = fault.test.split("::")
    source = (ROOT / file).read_text(encoding="utf-8")
    assert all(f" {name.split('[')[0]}" in source for name in names)
