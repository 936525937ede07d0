"""Plant known faults one by one in a scratch copy of the tree; each must make the test that it names fail.

``python tests/faults/plant.py [NAME ...]`` runs the rows of ``tests/faults/planted/NAME.yaml`` (all files where none is
named) and the bugs of ``tests/methods/planted_bugs.yaml``, which that room's own test plants. A row is
``{file, find, replace, test, why}``: ``find`` occurs once in ``file``, and ``test`` is a pytest identifier.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PLANTED = Path(__file__).with_name("planted")
SELECTION = "tests/methods/test_conformance_catches.py::test_the_gate_catches_the_bug"
LINKED = ("results", "reports", "docs")
"""Large folders that a scratch copy has as links."""
TEST_FAILED, PASSED = 1, 0  # pytest's exit codes; others say that no test ran


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault: a text of a file and its replacement, and the test that must fail."""

    file: str
    find: str
    replace: str
    test: str
    why: str


def load_faults(names: list[str]) -> list[Fault]:
    """Read the faults of some files of ``planted``; of all where none is named."""
    paths = [PLANTED / f"{name}.yaml" for name in names] or sorted(PLANTED.glob("*.yaml"))
    return [Fault(**row) for path in paths for row in yaml.safe_load(path.read_text(encoding="utf-8"))]


def copy_tree(target: Path) -> None:
    """Copy what git knows of this tree, and what it does not ignore."""
    listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if name.split("/")[0] not in LINKED and (source := ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)
    for name in LINKED:
        (target / name).symlink_to(ROOT / name)


def run_tests(tree: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a tree with pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


def is_caught(fault: Fault, tree: Path) -> bool:
    """Plant a fault in a tree, run its test, and put the file back."""
    path = tree / fault.file
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(fault.find, fault.replace), encoding="utf-8")
    try:
        return run_tests(tree, fault.test).returncode == TEST_FAILED
    finally:
        path.write_text(before, encoding="utf-8")


def main() -> int:
    """Plant the faults and print one line each; 1 where one is not caught."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", help="files of tests/faults/planted, without .yaml")
    faults = load_faults(parser.parse_args().names)
    with tempfile.TemporaryDirectory() as place:
        copy_tree(tree := Path(place))
        without = run_tests(tree, SELECTION, *dict.fromkeys(fault.test for fault in faults))
        sound = without.returncode == PASSED
        print(f"{'passed' if sound else 'FAILED'}: the tests without a fault, and the bugs of selection", flush=True)
        print(*([] if sound else without.stdout.splitlines()[-9:]), sep="\n", end="")
        missed = 0
        for fault in faults:
            caught = is_caught(fault, tree)
            missed += not caught
            print(f"{'caught' if caught else 'NOT CAUGHT'}: {fault.file}: {fault.why}", flush=True)
    print(f"{len(faults) - missed} of {len(faults)} caught")
    return int(missed > 0 or not sound)


if __name__ == "__main__":
    sys.exit(main())
