"""The tree: what must be there and what must not, who imports whom, evidence as it was written, and make help."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from longdecode.evals.manifest import NAME, problems
from project import count_imports

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("kernels", "engine", "methods", "evals", "training", "models", "analysis")
"""Each room imports those before it alone."""
READ_BY_REPORTING = (
    "engine.errors", "methods.card", "methods.registry", "evals.manifest", "evals.store.read_answers",
    "evals.tasks.registry.describe", "evals.tasks.registry.folder_of", "analysis.declaration",
)  # fmt: skip
"""Errors, cards, hashes of files, the answers that pages print, protocols of suites, and what papers published."""
MOST = {"imported": 90, "read": 20}
"""Most files on the way of a variant; ``count_imports`` says what counts."""
TEXT = {".py", ".smk", ".md", ".yaml", ".yml", ".toml", ".lock", ".rst", ".cff", ".html", ".css", ".js", ".json", ""}
MACHINE_PATH = re.compile(r"(?<![\w./:-])/(?:home|Users|root|work|tmp|mnt|scratch)/[\w.-]+")
QUESTION = re.compile(r'^\s*r?"""(?:What|How|Whether|Where|Which)\b.*', re.MULTILINE)


def tracked() -> list[Path]:
    """Files that git holds."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


# What no other test reads.
@pytest.mark.parametrize("name", ["LICENSE", "CITATION.cff", ".ci/run", "docs/index.md", "docs/footguns.md"])
def test_is_there(name: str) -> None:
    assert (ROOT / name).exists()


@pytest.mark.parametrize("room", [*ROOMS, "reporting"])
def test_rooms_are_namespaces_reached_through_links(room: str) -> None:
    link = ROOT / "src" / "longdecode" / room
    assert link.is_symlink() and not link.readlink().is_absolute() and link.resolve() == ROOT / room
    assert not (ROOT / room / "__init__.py").exists()


@pytest.mark.parametrize("room", [*ROOMS, "reporting"])
def test_arrows_between_rooms_run_one_way(room: str) -> None:
    known = READ_BY_REPORTING if room == "reporting" else ROOMS[: ROOMS.index(room)]
    allowed = tuple(f"longdecode.{name}." for name in (*known, room))
    files = (ROOT / room).rglob("*.py")
    nodes = [(file, n) for file in files for n in ast.walk(ast.parse(file.read_text("utf-8")))]
    imports = [(file, n) for file, n in nodes if isinstance(n, ast.ImportFrom | ast.Import)]
    taken = [(f, f"{getattr(n, 'module', '')}.{a.name}.".removeprefix(".")) for f, n in imports for a in n.names]
    barred = ("longdecode.", "pyarrow.") if room == "reporting" else ("longdecode.",)  # records are read elsewhere
    ours = [(str(f), name) for f, name in taken if name.startswith(barred)]
    assert ours and not [(f, name) for f, name in ours if not name.startswith(allowed)]


@pytest.mark.slow
def test_few_files_run_between_a_variant_and_its_number() -> None:
    files = count_imports.measured()
    assert "methods/quest/method.py" in files["imported"] and "analysis/cells.py" in files["read"]
    assert all(len(files[part]) <= most for part, most in MOST.items()), files


@pytest.mark.parametrize("profile", sorted(path.parent.name for path in ROOT.glob(f"results/*/{NAME}")))
def test_committed_evidence_matches_its_manifest(profile: str) -> None:
    """``make manifest PROFILE=h200`` enters what was put together by hand."""
    assert problems(ROOT / "results" / profile) == []


def test_no_file_names_a_place_on_one_machine() -> None:
    own = {Path(__file__), ROOT / "LICENSE"}
    files = [path for path in tracked() if path.suffix in TEXT and path not in own and not path.is_symlink()]
    lines = [(f, n, line) for f in files for n, line in enumerate(f.read_text("utf-8", "replace").splitlines(), 1)]
    found = [f"{f.relative_to(ROOT)}:{n}: {at.group()}" for f, n, line in lines if (at := MACHINE_PATH.search(line))]
    assert lines and not found, "\n".join(found)


def test_code_files_stay_readable() -> None:
    code = [path for path in tracked() if path.suffix in (".py", ".smk")]
    assert code and not [str(path) for path in code if len(path.read_text().splitlines()) > 400]


def test_docstrings_begin_with_no_question_word() -> None:
    code = [(path, path.read_text()) for path in tracked() if path.suffix == ".py"]
    found = [f"{path.relative_to(ROOT)}: {line.strip()}" for path, text in code for line in QUESTION.findall(text)]
    assert not found, "\n".join(found)


def test_help_lists_every_target_and_each_has_a_recipe() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = subprocess.check_output(["make", "--no-print-directory", "help"], cwd=ROOT, text=True)
    listed = re.findall(r"^  make ([\w-]+) +\S", shown, re.MULTILINE)
    assert sorted(listed) == sorted(phony.split())
    subprocess.run(["make", "--dry-run", *listed], cwd=ROOT, check=True, capture_output=True)


def test_python_too_old_is_said_clearly(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    done = subprocess.run(["make", "PYTHON=", "setup"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode and "needs Python >= 3.11" in done.stdout + done.stderr


def test_links_between_documents_lead_somewhere() -> None:
    files = [ROOT / "README.md", ROOT / "config" / "README.md", *(ROOT / "docs").rglob("*.md")]
    links = [(f, to) for f in files for to in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", f.read_text("utf-8"))]
    local = [(f, to) for f, to in links if "://" not in to and not to.startswith("mailto:")]
    assert local and not [f"{f.relative_to(ROOT)}: {to}" for f, to in local if not (f.parent / to).exists()]
