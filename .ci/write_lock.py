"""Write requirements.lock and environment.yml from `pip freeze --all` on standard input."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK_HEADER = (
    "# Every package this project is tested with, pinned. Written by `make lock`; install torch first (see Makefile).\n"
)
ENVIRONMENT_HEADER = """\
# The same environment for conda. Written by `make lock`; a test keeps it in step with requirements.lock.
name: longdecode
channels:
  - conda-forge
dependencies:
  - python >=3.11
  - pip
  - pip:
"""
NOT_OURS = ("longdecode", "pip", "wheel")
MARKERS = {"triton": ' ; sys_platform == "linux"'}


def pins(freeze: str) -> list[str]:
    """One requirement a package, without local build tags, installers or the project itself."""
    named = (line.strip().partition("==") for line in freeze.splitlines())
    kept = ((name, version.partition("+")[0]) for name, found, version in named if found and name not in NOT_OURS)
    return sorted((f"{name}=={version}{MARKERS.get(name.lower(), '')}" for name, version in kept), key=str.lower)


def main() -> None:
    """Write both files next to each other in the project's root."""
    lines = pins(sys.stdin.read())
    if not lines:
        raise SystemExit("no pinned packages on standard input; pipe `pip freeze --all` into this script")
    (ROOT / "requirements.lock").write_text(LOCK_HEADER + "".join(f"{line}\n" for line in lines))
    quoted = (f"      - '{line}'\n" if ";" in line else f"      - {line}\n" for line in lines)
    (ROOT / "environment.yml").write_text(ENVIRONMENT_HEADER + "".join(quoted))


if __name__ == "__main__":
    main()
