"""RULER's marks: how many, or whether any, of the references stand in a completion.

Source: github NVIDIA/RULER, scripts/eval/synthetic/constants.py (string_match_all, string_match_part).
"""

from __future__ import annotations

from collections.abc import Sequence


def string_match_all(completion: str, references: Sequence[str]) -> tuple[float, ...]:
    """One mark a reference: whether it stands in the completion, in any case of letters."""
    said = completion.lower()
    return tuple(float(reference.lower() in said) for reference in references)


def string_match_part(completion: str, references: Sequence[str]) -> float:
    """Return true where any reference stands in the completion, in any case of letters."""
    return max(string_match_all(completion, references), default=0.0)
