"""All that docs/measuring-speed.md names is there."""

from __future__ import annotations

import re
from pathlib import Path

from longdecode.evals.throughput.measure import parser
from longdecode.evals.throughput.spec import OPS

PAGE = Path(__file__).parents[2] / "docs" / "measuring-speed.md"


def test_the_files_that_the_page_names_exist() -> None:
    named = re.findall(r"`((?:evals|reporting|config)/[\w./]+)`", PAGE.read_text(encoding="utf-8"))
    assert named and all((PAGE.parents[1] / name).exists() for name in named), named


def test_the_command_lines_of_the_page_are_understood() -> None:
    lines = re.findall(r"longdecode\.evals\.throughput\.measure (.*)", PAGE.read_text(encoding="utf-8"))
    assert len(lines) == 2
    for line in lines:
        asked = parser().parse_args(line.split())
        assert (PAGE.parents[1] / asked.config).is_file()


def test_the_page_names_every_op() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{op}`" in text for op in OPS)
