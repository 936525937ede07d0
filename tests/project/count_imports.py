"""Count the project's files on the way of a variant from a configuration to its number on a page.

``python tests/project/count_imports.py`` prints them. The script of the workflow scores the variant ``needle``, which
is Quest, and full attention on one small cell of the shipped model; then the analysis writes the tables and reporting
the site. Libraries do not count, nor do the checks of kernels and of the instrument, which may stop a number and make
none.

``imported``: files that Python executes meanwhile. ``read``: of these, the files with a function that is given, holds
or returns the variant's name, or one object or row that has it as a field; who follows the variant reads them. A
function that hands on a mapping, list or table of all variants, and never takes one out, is not among them.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE, SCRIPT = str(ROOT / "src" / "longdecode"), str(ROOT / "workflow" / "scripts" / "stage.py")
NAME = "needle"


def measured() -> dict[str, list[str]]:
    """Return the files that are imported and those that are read, by ``imported`` and ``read``, of a fresh process."""
    answer = subprocess.run([sys.executable, __file__], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.JSONDecoder().raw_decode(answer.stdout)[0]


def is_variant(value: Any) -> bool:
    """Return whether a value is the variant's name, or one object or row that has it as a field."""
    fields = [*value] if isinstance(value, tuple) and hasattr(value, "_fields") else []
    if type(value).__module__.startswith("longdecode."):
        fields += [getattr(value, n, None) for n in (*getattr(value, "__dict__", ()), *getattr(value, "__slots__", ()))]
    return any(type(field) is str and field == NAME for field in (value, *fields))


def run(results: Path) -> dict[str, list[str]]:
    """Run job, analysis and page; return their files, as ``measured`` does."""
    import yaml

    from longdecode.evals.gate import Gate, GateOutcome

    Gate._once = lambda self, key, check, method, at: GateOutcome(model=at.model, params=dict(at.params))  # type: ignore
    config = {
        "profile": "demo", "device": "cpu", "budgets": [0.5], "methods": {"full": {}, NAME: {"method": "quest"}},
        "models": {"miniature": {"path": str(ROOT / "models" / "miniature" / "weights")}},
        "suites": {"mini_recall": {"contexts": [512], "samples": 1, "tasks": ["mini_recall_single"]}},
    }  # fmt: skip
    job = SimpleNamespace(
        rule="evaluate_mini_recall", wildcards={"model": "miniature"}, resources={"gpu": 0}, threads=2, log=["log"],
        output=[f"{results}/records/miniature/{variant}/mini_recall.parquet" for variant in ("full", NAME)],
        config=config, params=SimpleNamespace(variants=("full", NAME), suite="mini_recall"),
    )  # fmt: skip
    read = set[str]()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if file in read or not file.startswith(SOURCE) or frame.f_code.co_name == "<module>":
            return None
        frame.f_trace_lines = False
        return leave

    def leave(frame: FrameType, event: str, result: Any) -> None:
        read.update(frame.f_code.co_filename for value in (result, *frame.f_locals.values()) if is_variant(value))

    sys.settrace(enter)
    runpy.run_path(SCRIPT, {"snakemake": job})
    (results / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    from longdecode.analysis.stage import write_tables
    from longdecode.reporting.build import build

    write_tables(results)
    build(results, Path("reports"))
    sys.settrace(None)
    files = {getattr(module, "__file__", None) or "" for module in sys.modules.values()} | {SCRIPT}
    ours = {file: str(Path(file).resolve().relative_to(ROOT)) for file in files if file.startswith((SOURCE, SCRIPT))}
    return {"imported": sorted(ours.values()), "read": sorted(ours[file] for file in read & ours.keys())}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        files = run(Path("results", "demo"))
    print(json.dumps(files, indent=1), *(f"{part}: {len(names)} files" for part, names in files.items()), sep="\n")
