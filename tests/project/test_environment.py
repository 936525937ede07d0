"""The lock, the conda environment and the package's own requirements say the same."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def lock_lines() -> list[str]:
    """Requirements of the lock, without comments."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def locked() -> dict[str, Requirement]:
    """The lock by normalised name."""
    return {normal(requirement.name): requirement for requirement in map(Requirement, lock_lines())}


def normal(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_line_of_the_lock_is_an_exact_public_version() -> None:
    for requirement in locked().values():
        (specifier,) = requirement.specifier
        assert specifier.operator == "==" and "+" not in specifier.version and "*" not in specifier.version


def test_conda_environment_lists_the_lock() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert pip == lock_lines()
    assert (ROOT / "workflow" / "envs" / "longdecode.yaml").resolve() == ROOT / "environment.yml"


def test_lock_satisfies_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(name for extra in extras if extra != "docs" for name in extras[extra])]
    pins = locked()
    for requirement in map(Requirement, wanted):
        assert normal(requirement.name) in pins, requirement
        (pin,) = pins[normal(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), (requirement, pin)


def test_lock_is_closed_under_requirements() -> None:
    """No package of the lock needs one that is missing from it: an install takes nothing unpinned."""
    pins = locked()
    for name in pins:
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, requires):
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            from_torch = name == "torch"  # its CUDA parts differ between builds and it pins them itself
            assert not applies or from_torch or normal(requirement.name) in pins, (name, str(requirement))


def test_lock_writer_drops_what_belongs_to_one_machine(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    script = tmp_path / ".ci" / "write_lock.py"
    script.write_text((ROOT / ".ci" / "write_lock.py").read_text())
    freeze = "torch==2.13.0+cpu\nlongdecode==0.1.0\npip==26.0\ntriton==3.7.1\nfoo @ file:///somewhere/foo.whl\nattrs==26.1.0\n"
    subprocess.run([sys.executable, script], input=freeze, text=True, check=True)
    lines = (tmp_path / "requirements.lock").read_text().splitlines()[1:]
    assert lines == ["attrs==26.1.0", "torch==2.13.0", 'triton==3.7.1 ; sys_platform == "linux"']
