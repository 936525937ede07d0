"""Code hashes cover what a job imports, directly or not, and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from longdecode.evals.fingerprint import (
    BOOKKEEPING,
    PACKAGE,
    REPOSITORY,
    folder_hash,
    hash_files,
    import_closure,
    quality_code_hash,
    speed_code_hash,
)

FILES = {
    "evals/quality_job.py": "from longdecode.engine.decoder import Decoder\nfrom longdecode.evals import records\n",
    "evals/records.py": "from longdecode.evals import runner\n",
    "evals/tasks/recall/single.py": "from longdecode.evals.generators import lookup\nTABLE = 'table.yaml'\n",
    "evals/tasks/recall/suite.py": "RUN = ['-m', 'longdecode.evals.worker']\n",
    "evals/throughput/decode.py": "import longdecode.engine.decoder\n",
    "evals/throughput/kernels.py": "from longdecode.kernels.rope import rope\n",
    "engine/decoder.py": "from longdecode.kernels import rope\n",
    "kernels/rope/gpu.py": "import longdecode.kernels.split\n",
    "methods/quest/method.py": "def build():\n    from longdecode.methods.budgeted import Base\n",
    "methods/quest/card.yaml": "name: quest\n",
    "methods/tidal/method.py": "from longdecode.kernels.topk import topk\n",
} | dict.fromkeys((
    "evals/runner.py", "evals/worker.py", "evals/generators/lookup.py", "kernels/__init__.py",
    "kernels/rope/__init__.py", "kernels/split.py", "kernels/topk.py", "methods/quest/notes.md", "methods/budgeted.py",
    "reporting/page.py", *(f"evals/tasks/recall/{name}.yaml" for name in ("single", "description", "table")),
), "")  # fmt: skip


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "rooms" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "rooms"


def edit(path: Path) -> None:
    with path.open("a") as handle:
        handle.write("edited = 1\n" if path.suffix == ".py" else "# edited\n")


BASE = {
    "engine/decoder.py", "kernels/__init__.py", "kernels/rope/__init__.py", "kernels/rope/gpu.py", "kernels/split.py",
}  # fmt: skip
METHOD = {"methods/quest/method.py", "methods/quest/card.yaml", "methods/budgeted.py"}
QUALITY = BASE | METHOD | {
    "evals/quality_job.py", "evals/tasks/recall/suite.py", "evals/tasks/recall/single.py",
    "evals/tasks/recall/single.yaml", "evals/tasks/recall/table.yaml", "evals/generators/lookup.py", "evals/worker.py",
}  # fmt: skip
DECODE = BASE | METHOD | {"evals/throughput/decode.py"}
KERNELS = BASE - {"engine/decoder.py"} | {"evals/throughput/kernels.py"}


def test_a_number_depends_on_what_its_job_suite_bench_and_method_import(rooms: Path) -> None:
    """Lazy imports, modules named in a text and an op's whole package count; other suites, methods and pages do not."""

    def hashes() -> tuple[str, str, str]:
        quality = quality_code_hash("quest", f"{PACKAGE}.evals.tasks.recall.single", rooms)
        decode = speed_code_hash("decode", ["quest", "no_such_ceiling"], rooms)
        return quality, decode, speed_code_hash("kernels", [], rooms)

    before = hashes()
    for name in FILES:
        edit(rooms / name)
        after = hashes()
        changed, before = [a != b for a, b in zip(before, after, strict=True)], after
        assert changed == [name in QUALITY, name in DECODE, name in KERNELS], name


def test_a_method_of_another_folder_counts(rooms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "mine" / "quick"
    own.mkdir(parents=True)
    (own / "method.py").write_text("from longdecode.kernels.topk import topk\n")
    monkeypatch.setenv("LONGDECODE_METHOD_PATH", str(own.parent))
    seen = {quality_code_hash("quick", f"{PACKAGE}.evals.tasks.recall.single", rooms)}
    for edited in (own / "method.py", rooms / "kernels/topk.py"):
        edit(edited)
        seen.add(quality_code_hash("quick", f"{PACKAGE}.evals.tasks.recall.single", rooms))
    assert len(seen) == 3


def test_the_hash_of_a_folder_is_of_its_code_and_its_own_name_alone(tmp_path: Path) -> None:
    hashes = []
    for room, name, text in (("a", "quick", "X = 1"), ("b", "quick", "X = 1  # one"), ("b", "quick", "X = 2")):
        folder = tmp_path / room / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "method.py").write_text(text)
        (folder / "notes.txt").write_text(text)
        hashes.append(folder_hash(folder))
    assert hashes[0] == hashes[1] != hashes[2]


CODE = '''"""Add."""

SCALE = 2
"""Times the sum."""


class Adder:
    """Add."""

    def add(self, a, b):
        """Return the sum."""
        # twice
        return SCALE * (a + b), f"{a:>{b}} {{}}"
'''
REWORDED = '''SCALE = 2  # times the sum
"""A factor."""
class Adder:

    def add(self, a, b):
        """Return the scaled sum,
        and a text."""
        return (SCALE * (
            a + b), f"{a:>{b}} {{}}")
'''


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (REWORDED, True), (REWORDED.replace("a + b", "b + a"), False), (REWORDED.replace("{{}}", "{{ }}"), False),
        (REWORDED.replace("SCALE = 2", "SCALE = 2.0"), False), (REWORDED.replace("SCALE * (", "(SCALE * "), False),
        (REWORDED.replace("return (", "pass; return ("), False),
    ],
)  # fmt: skip
def test_wording_and_layout_of_code_play_no_part(text: str, same: bool, tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(CODE)
    before = hash_files([path], tmp_path)
    path.write_text(text)
    os.utime(path, (1, 1))
    assert (hash_files([path], tmp_path) == before) == same


def test_a_copy_has_the_same_hash_and_a_missing_module_none(rooms: Path, tmp_path: Path) -> None:
    before = quality_code_hash("quest", f"{PACKAGE}.evals.tasks.recall.single", rooms)
    for path in rooms.rglob("*.py"):
        os.utime(path, (1, 1))
    shutil.copytree(rooms, tmp_path / "elsewhere")
    assert quality_code_hash("quest", f"{PACKAGE}.evals.tasks.recall.single", tmp_path / "elsewhere") == before
    with pytest.raises(FileNotFoundError, match="no module"):
        quality_code_hash("quest", f"{PACKAGE}.evals.tasks.gone", rooms)


def test_this_projects_closures_hold_what_makes_the_numbers_and_no_page() -> None:
    def closure(*roots: str) -> set[str]:
        return {path.relative_to(REPOSITORY).as_posix() for path in import_closure(REPOSITORY / root for root in roots)}

    scored = closure("evals/quality_job.py", "evals/tasks/episodes.py", "methods/quest/method.py")
    assert {"engine/decoder.py", "kernels/linear/gpu.py", "evals/generators/lookup.py", "engine/tokenizer.py"} <= scored
    others = ("reporting/", "evals/throughput/", "evals/scoring/", "methods/lychee/", "evals/tasks/ruler")
    assert not [path for path in scored if path.startswith(others)]
    assert "evals/scoring/math_checker.py" in closure("evals/tasks/math.py")
    assert "evals/tasks/longbench.yaml" in closure("evals/tasks/longbench.py")
    speed = closure("evals/throughput/decode.py")
    assert {"evals/throughput/timing.py", "evals/throughput/steps.py", "kernels/linear/gpu.py"} <= speed
    assert "evals/throughput/measure.py" not in speed


def test_every_module_at_which_closures_stop_exists() -> None:
    for name in BOOKKEEPING:
        assert (REPOSITORY / Path(*name.split(".")[1:])).with_suffix(".py").is_file(), name


def test_the_hash_of_code_does_not_depend_on_the_version_of_python(tmp_path: Path) -> None:
    """Versions of Python write quotes within a formatted text, and empty fields of a syntax tree, otherwise."""
    (tmp_path / "code.py").write_text("def f(a, *, b=1.0):\n    return f\"{a['x']!r:>{b}} {', '.join(a)}\"\n")
    assert hash_files([tmp_path / "code.py"], tmp_path).startswith("842b0623bb4e46f5")
