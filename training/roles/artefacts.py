"""Write the files of a training: roles.json, curve.csv, gates.csv, run.json; each whole or absent, the roles last."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longdecode.evals.store import write_text
from longdecode.methods.head_roles import RoleFile, write_role_file
from longdecode.training.files import write_csv

CURVE_COLUMNS = (
    "step", "loss", "distill", "constraint", "lagrange", "density", "expected_heads", "retrieval_heads",
    "gates_undecided", "seconds",
)  # fmt: skip
GATE_COLUMNS = ("step", "layer", "kv_head", "score")
_GATE_DIGITS = 4


def write_artefacts(
    folder: Path,
    roles: RoleFile,
    curve: Sequence[Sequence[float]],
    gates: Sequence[Sequence[float]],
    run: dict[str, Any],
) -> None:
    """Write all four files; ``roles.json`` appears last, so that where it stands the others do.

    Args:
        curve: rows in the order of ``CURVE_COLUMNS``.
        gates: rows in the order of ``GATE_COLUMNS``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "curve.csv", CURVE_COLUMNS, curve)
    write_csv(folder / "gates.csv", GATE_COLUMNS, gates, _GATE_DIGITS)
    write_text(folder / "run.json", json.dumps(run, indent=2, sort_keys=True) + "\n")
    write_role_file(folder / "roles.json", roles)
