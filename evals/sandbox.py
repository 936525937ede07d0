"""Run a program that nobody vouches for: under bubblewrap, without network, on a read-only system, within limits.

The program sees /usr and this interpreter read-only, a /tmp of its own in memory, a bare /dev, no /proc, of /etc the
loader's cache alone and no file of the host's users. It has its own process, network, IPC, mount and host-name
namespaces, no capabilities, an empty environment, and ends with all of its children when it or its deadline does.
Started by an ordinary user it has a user namespace of its own; started by root it becomes a user that exists nowhere
else.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from longdecode.engine.errors import LongDecodeError, UnsupportedCellError
from longdecode.evals.sandbox_filter import filter_program

Status = Literal["ok", "failed", "timeout", "memory", "output"]

LEAST_VERSION = (0, 8)
"""The first bubblewrap that bounds /tmp and forbids user namespaces within."""
PROGRAM = "/program.py"
"""Path of the program within the sandbox."""
INSTALL = (
    "model-written code runs under bubblewrap 0.8 or newer and never without it; install it with `apt-get install "
    "bubblewrap` (Debian 12, Ubuntu 24.04), `dnf install bubblewrap` or `conda install -c conda-forge bubblewrap`"
)
_ALLOW = (
    "a kernel, container or security module refuses namespaces here; allow them (`sysctl -w "
    "kernel.unprivileged_userns_clone=1`, `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, `docker run "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --cap-add SYS_ADMIN`) or mark elsewhere"
)
_LIBRARIES = "/etc/ld.so.cache"
"""Tells the loader where libraries are, an interpreter's own in /usr/local/lib for one."""
_POLL_SECONDS = 0.02
_CHUNK = 1 << 16
_FIRST_UID = 1_500_000_000  # far above what distributions and container ranges hand out
_runs = itertools.count()

# Runs as the first process in the sandbox: takes the limits, gives up root where it has it, becomes the program.
_PROLOGUE = """
import os, resource as r, sys
uid, cpu, memory, file, files, processes = map(int, sys.argv[1:7])
if uid:
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
for kind, soft, hard in (
    (r.RLIMIT_CORE, 0, 0), (r.RLIMIT_CPU, cpu, cpu + 1), (r.RLIMIT_AS, memory, memory), (r.RLIMIT_FSIZE, file, file),
    (r.RLIMIT_NOFILE, files, files), (r.RLIMIT_NPROC, processes, processes), (r.RLIMIT_MEMLOCK, 0, 0),
):
    top = r.getrlimit(kind)[1]
    r.setrlimit(kind, (soft, hard) if top == r.RLIM_INFINITY else (min(soft, top), min(hard, top)))
os.execv(sys.argv[7], sys.argv[7:])
"""


class SandboxUnsupportedError(UnsupportedCellError):
    """There is no sandbox on this machine; the message says how to get one."""


class SandboxError(LongDecodeError):
    """A sandbox that works on this machine could not be set up for one program."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Most that a program may use; ``memory_bytes`` holds for each process and for all together.

    ``cpu_seconds`` is each process's own time, so that a busy machine fails nobody; ``wall_seconds`` ends everything.
    """

    cpu_seconds: int = 6
    wall_seconds: float = 20.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 16 << 20
    disk_bytes: int = 64 << 20
    output_bytes: int = 8 << 20
    processes: int = 32
    open_files: int = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a program: ``exit_code`` is 128 + n after signal n, ``None`` where the sandbox ended it."""

    status: Status
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float


def run_python(
    source: str, stdin: bytes = b"", limits: Limits | None = None, files: Mapping[str, bytes] | None = None
) -> Outcome:
    """Run a Python program to its end, or to its limits.

    Args:
        source: the program, run by this interpreter with its packages, as ``__main__``.
        stdin: bytes that it may read.
        limits: most that it may use.
        files: further read-only files by their absolute path within the sandbox.

    Raises:
        SandboxUnsupportedError: there is no sandbox here.
        SandboxError: the sandbox could not be set up.
    """
    require_sandbox()
    return _run(source, stdin, limits or Limits(), files or {})


@functools.cache
def require_sandbox() -> None:
    """Check once that programs can be contained on this machine.

    Raises:
        SandboxUnsupportedError: bubblewrap is missing or too old, or refused; the message has the remedy.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxUnsupportedError(f"no sandbox on {sys.platform}: {INSTALL}, on Linux")
    if filter_program() is None:
        raise SandboxUnsupportedError(f"no sandbox on {os.uname().machine}: it knows x86_64 and aarch64")
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        raise SandboxUnsupportedError("no /proc that lists a process's children: memory could not be watched")
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnsupportedError(f"bubblewrap (bwrap) is not on PATH: {INSTALL}")
    said = subprocess.run([bwrap, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    if version is None or tuple(map(int, version.groups())) < LEAST_VERSION:
        raise SandboxUnsupportedError(f"{bwrap} is {said.strip() or 'of no known version'}: {INSTALL}")
    try:
        outcome = _run("print(6 * 7)", b"", Limits(cpu_seconds=20, wall_seconds=60.0), {})
    except SandboxError as error:
        raise SandboxUnsupportedError(f"{error}; {_ALLOW}") from error
    if outcome.stdout != b"42\n":
        why = outcome.stderr.decode(errors="replace").strip()[-300:]
        raise SandboxUnsupportedError(f"{sys.executable} does not run in the sandbox ({outcome.status}): {why}")


@contextlib.contextmanager
def sandboxed(
    arguments: Sequence[str], limits: Limits, files: Mapping[str, bytes], readable: Sequence[Path] = ()
) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """Yield the command that runs this interpreter in a sandbox, and the descriptors to pass to it when it is started.

    The wall deadline, the memory of all processes together and the output are the caller's to watch. Killing the
    started process ends all in the sandbox, and so does the end of the thread that started it.

    Args:
        arguments: of the interpreter.
        limits: most that each process may use.
        files: read-only files by their absolute path within the sandbox.
        readable: further folders of the host to show read-only.
    """
    uid = 0 if os.geteuid() else _FIRST_UID + os.getpid() % (1 << 22) * 64 + next(_runs) % 64
    privilege = (
        ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID") if uid else ("--unshare-user", "--disable-userns")
    )
    command = [
        shutil.which("bwrap") or "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent", "--new-session",
        "--cap-drop", "ALL", *privilege,
        "--dev", "/dev", "--perms", "1777", "--size", str(limits.disk_bytes), "--tmpfs", "/tmp",
    ]  # fmt: skip
    for path in map(Path, ("/usr", "/bin", "/lib", "/lib64")):
        if path.is_symlink():
            command += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            command += ["--ro-bind", str(path), str(path)]
    for path in dict.fromkeys((Path(sys.base_prefix), Path(sys.prefix), *readable)):
        if not path.is_relative_to("/usr"):
            for parent in [*path.parents][-2::-1]:
                command += ["--perms", "0755", "--dir", str(parent)]
            command += ["--ro-bind", str(path), str(path)]
    command += ["--perms", "0755", "--dir", "/etc", "--ro-bind-try", _LIBRARIES, _LIBRARIES]
    with contextlib.ExitStack() as stack:
        descriptors = []

        def data(content: bytes) -> str:
            handle = stack.enter_context(tempfile.TemporaryFile())
            handle.write(content)
            handle.seek(0)
            descriptors.append(handle.fileno())
            return str(handle.fileno())

        for name, content in files.items():
            command += ["--perms", "0444", "--ro-bind-data", data(content), name]
        command += ["--seccomp", data(filter_program() or b""), "--remount-ro", "/dev", "--remount-ro", "/"]
        bounds = (limits.cpu_seconds, limits.memory_bytes, limits.file_bytes, limits.open_files, limits.processes)
        prologue = [sys.executable, "-I", "-S", "-c", _PROLOGUE, str(uid), *map(str, bounds)]
        yield [*command, "--chdir", "/tmp", "--", *prologue, sys.executable, *arguments], tuple(descriptors)


def environment() -> dict[str, str]:
    """Return the variables that a sandboxed program gets: nothing of the host's."""
    paths = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp"}
    return paths | {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _run(source: str, stdin: bytes, limits: Limits, files: Mapping[str, bytes]) -> Outcome:
    everything = {PROGRAM: source.encode(errors="surrogatepass"), **files}
    status_read, status_write = os.pipe()
    with (
        os.fdopen(status_read, "rb") as said,
        sandboxed(["-I", PROGRAM], limits, everything) as (command, descriptors),
    ):
        try:
            process = subprocess.Popen(
                [command[0], "--json-status-fd", str(status_write), *command[1:]],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
                pass_fds=(*descriptors, status_write), start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(status_write)
        started = time.monotonic()
        try:
            verdict, stdout, stderr = _watch(process, stdin, limits, started)
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()
        seconds = time.monotonic() - started
        code = next((doc["exit-code"] for doc in map(json.loads, said) if "exit-code" in doc), None)
    if verdict is not None:
        return Outcome(verdict, None, stdout, stderr, seconds)
    if code is None:
        raise SandboxError(f"bubblewrap: {stderr.decode(errors='replace').strip()[-300:] or 'ended without a word'}")
    late = code == 128 + signal.SIGXCPU or (code == 128 + signal.SIGKILL and seconds >= limits.cpu_seconds)
    return Outcome("timeout" if late else "failed" if code else "ok", code, stdout, stderr, seconds)


def _watch(
    process: subprocess.Popen[bytes], stdin: bytes, limits: Limits, started: float
) -> tuple[Status | None, bytes, bytes]:
    """Feed and read a program until it ends; return the limit that it broke, or ``None``, and what it wrote."""
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    feed, out, err = process.stdin.fileno(), process.stdout.fileno(), process.stderr.fileno()
    written = {out: bytearray(), err: bytearray()}
    rest = memoryview(stdin)
    verdict: Status | None = None
    checked = started
    with selectors.DefaultSelector() as selector:
        for descriptor in written:
            selector.register(descriptor, selectors.EVENT_READ)
        os.set_blocking(feed, False)
        selector.register(feed, selectors.EVENT_WRITE)
        while verdict is None and (selector.get_map() or process.poll() is None):
            for key, _ in selector.select(_POLL_SECONDS):
                if key.fd == feed:
                    try:
                        rest = rest[os.write(feed, rest[:_CHUNK]) if rest else 0 :]
                    except BrokenPipeError:
                        rest = rest[:0]
                    if not rest:
                        selector.unregister(feed)
                        process.stdin.close()
                elif chunk := os.read(key.fd, _CHUNK):
                    written[key.fd] += chunk
                else:
                    selector.unregister(key.fd)
            now = time.monotonic()
            if sum(map(len, written.values())) > limits.output_bytes:
                verdict = "output"
            elif now - started > limits.wall_seconds:
                verdict = "timeout"
            elif now - checked >= _POLL_SECONDS:
                checked = now
                verdict = "memory" if _resident_bytes(process.pid) > limits.memory_bytes else None
    return verdict, bytes(written[out]), bytes(written[err])


def _resident_bytes(pid: int) -> int:
    """Return the memory that a process and all its descendants hold; pages that they share count for each."""
    total, todo = 0, [pid]
    while todo:
        folder = Path("/proc") / str(todo.pop())
        with contextlib.suppress(OSError):  # it has ended meanwhile
            total += int((folder / "statm").read_text().split()[1])
            for task in (folder / "task").iterdir():
                todo += map(int, (task / "children").read_text().split())
    return total * os.sysconf("SC_PAGE_SIZE")
