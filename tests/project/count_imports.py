"""Count the project's files that run between a variant in a configuration and its number on a page.

``python tests/project/count_imports.py`` prints them by part; libraries do not count. The job scores Quest, as
``config/demo.yaml`` has it, on one small cell of the shipped model; the analysis and the page are what their commands
import.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("job", "analysis", "page")
ANALYSIS, PAGE = "longdecode.analysis.stage", "longdecode.reporting.build"


def imported(part: str) -> set[str]:
    """Return the names of the project's modules that one part imports, in a process of its own."""
    answer = subprocess.run([sys.executable, __file__, part], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(answer.stdout.splitlines()[-1]))


def _run_job(place: Path) -> None:
    """Score Quest; the gate has passed before, in a job of its own."""
    import yaml

    from longdecode.evals.evaluate import evaluate_suite
    from longdecode.evals.run_config import build_run_config

    demo = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text(encoding="utf-8"))
    changes = {
        "device": "cpu", "budgets": [0.5], "throughput": None,
        "models": {"miniature": {"path": "models/miniature/weights"}},
        "methods": {name: demo["methods"][name] for name in ("full", "quest")},
        "suites": {"mini_recall": {"contexts": [512], "samples": 1, "tasks": ["mini_recall_single"]}},
    }  # fmt: skip
    config = build_run_config({"profile": "demo"} | changes, "config/demo.yaml", check_params=False)
    output = place / "records" / "miniature" / "quest" / "mini_recall.parquet"
    with contextlib.redirect_stderr(io.StringIO()):
        evaluate_suite(config, "miniature", "mini_recall", {"quest": output}, gated=False)


def _main(part: str) -> None:
    """Import or run one part and print its modules as JSON."""
    sys.path.insert(0, str(ROOT / "src"))
    if part == "job":
        with tempfile.TemporaryDirectory() as place:
            _run_job(Path(place))
    else:
        __import__({"analysis": ANALYSIS, "page": PAGE}[part])
    found = (name for name, module in sys.modules.items() if getattr(module, "__file__", None))
    print(json.dumps(sorted(name for name in found if name.startswith("longdecode."))))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _main(sys.argv[1])
        sys.exit()
    parts = {part: imported(part) for part in PARTS}
    for part, names in {**parts, "all": set().union(*parts.values())}.items():
        rooms = Counter(name.split(".")[1] for name in names)
        print(f"{part}: {len(names)} files ({', '.join(f'{room} {count}' for room, count in sorted(rooms.items()))})")
