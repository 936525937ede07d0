"""Run a program that nobody vouches for: under bubblewrap, without network, on a read-only system, within limits.

The program sees /usr and this interpreter read-only, a /tmp of its own in memory, a bare /dev, no /proc, of /etc the
loader's cache alone and no file of the host's users. It has its own process, network, IPC, mount and host-name
namespaces, no capabilities, an empty environment, and ends with all of its children when it or its deadline does.
Started by an ordinary user it has a user namespace of its own; started by root it becomes a user that exists nowhere
else.

System calls that it may not make are refused by a filter in the kernel's own (classic BPF) form: memory that no limit
counts (System V shared memory, memfd, message queues), other processes' memory, namespaces and mounts, and large parts
of the kernel that no program under test has a use for.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from longdecode.engine.errors import LongDecodeError, UnsupportedCellError

SandboxStatus = Literal["ok", "failed", "timeout", "memory", "output"]

PROGRAM = "/program.py"
"""Path of the program within the sandbox."""
REMEDY = (
    "model-written code runs under bubblewrap 0.8 or newer and never without it: `apt-get install bubblewrap`, and "
    "where namespaces are refused `sysctl -w kernel.unprivileged_userns_clone=1`, `sysctl -w "
    "kernel.apparmor_restrict_unprivileged_userns=0` or `docker run --security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined --cap-add SYS_ADMIN`"
)
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache")
"""Of the host, those that it has; the cache tells the loader where libraries are, an interpreter's own for one."""
_POLL_SECONDS = 0.02
_FIRST_UID = 1_500_000_000  # far above what distributions and container ranges hand out
_runs = itertools.count()

# Runs as the first process in the sandbox: takes the limits, gives up root where it has it, becomes the program.
_PROLOGUE = """
import os, resource as r, sys
uid, cpu, memory, file, processes = map(int, sys.argv[1:6])
if uid:
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
for kind, soft, hard in (
    (r.RLIMIT_CORE, 0, 0), (r.RLIMIT_CPU, cpu, cpu + 1), (r.RLIMIT_AS, memory, memory), (r.RLIMIT_FSIZE, file, file),
    (r.RLIMIT_NOFILE, 64, 64), (r.RLIMIT_NPROC, processes, processes), (r.RLIMIT_MEMLOCK, 0, 0),
):
    top = r.getrlimit(kind)[1]
    r.setrlimit(kind, (soft, hard) if top == r.RLIM_INFINITY else (min(soft, top), min(hard, top)))
os.execv(sys.argv[6], sys.argv[6:])
"""

# shmget, msgget, semget, mq_open, memfd_create, memfd_secret, ptrace, process_vm_readv, process_vm_writev, pidfd_getfd,
# unshare, setns, mount, fsopen, open_tree, bpf, perf_event_open, io_uring_setup, userfaultfd, keyctl, add_key,
# request_key; their numbers are
# from the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_NUMBERS = {
    "x86_64": (
        29, 68, 64, 240, 319, 447, 101, 310, 311, 438, 272, 308, 165, 430, 428, 321, 298, 425, 323, 250, 248, 249,
    ),
    "aarch64": (
        194, 186, 190, 180, 279, 447, 117, 270, 271, 438, 97, 268, 40, 430, 428, 280, 241, 425, 282, 219, 217, 218,
    ),
}  # fmt: skip
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET
_X32 = 0x40000000
_KILL, _ALLOW, _REFUSE = 0x80000000, 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06


class SandboxUnsupportedError(UnsupportedCellError):
    """There is no sandbox on this machine; the message says how to get one."""


class SandboxError(LongDecodeError):
    """A sandbox that works on this machine could not be set up for one program."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Most that a program may use; ``memory_bytes`` holds for each process and for all together.

    ``cpu_seconds`` is each process's own time, so that a busy machine fails nobody; ``wall_seconds`` ends everything.
    ``output_bytes`` bounds what it says, and each file that it writes; ``disk_bytes`` bounds all files together.
    """

    cpu_seconds: int = 6
    wall_seconds: float = 20.0
    memory_bytes: int = 1 << 30
    disk_bytes: int = 64 << 20
    output_bytes: int = 8 << 20
    processes: int = 32


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """The end of a program, and the first ``output_bytes`` of what it said on each channel."""

    status: SandboxStatus
    stdout: bytes
    stderr: bytes


def run_python(
    source: str, stdin: bytes = b"", limits: SandboxLimits | None = None, files: Mapping[str, bytes] | None = None
) -> SandboxResult:
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
    return _run(source, stdin, limits or SandboxLimits(), files or {})


@functools.cache
def require_sandbox() -> None:
    """Check once, by a program that prints a number, that programs can be contained on this machine.

    Raises:
        SandboxUnsupportedError: bubblewrap is missing, too old or refused; the message has the remedy.
    """
    try:
        if filter_program() is None or not Path(f"/proc/self/task/{os.getpid()}/children").exists():
            raise SandboxError(f"{sys.platform} on {os.uname().machine}: Linux on x86_64 or aarch64 is needed")
        if shutil.which("bwrap") is None:
            raise SandboxError("bubblewrap (bwrap) is not on PATH")
        outcome = _run("print(6 * 7)", b"", SandboxLimits(cpu_seconds=20, wall_seconds=60.0), {})
        if outcome.stdout != b"42\n":
            raise SandboxError(f"{sys.executable} does not run in the sandbox: {_last_words(outcome.stderr)}")
    except SandboxError as error:
        raise SandboxUnsupportedError(f"no sandbox: {error}; {REMEDY}") from error


@contextlib.contextmanager
def sandboxed(
    arguments: Sequence[str], limits: SandboxLimits, files: Mapping[str, bytes], readable: Sequence[Path] = ()
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
    for path in map(Path, dict.fromkeys((*_SYSTEM, sys.base_prefix, sys.prefix, *map(str, readable)))):
        for parent in [*path.parents][-2::-1]:
            command += ["--perms", "0755", "--dir", str(parent)]
        command += ["--ro-bind-try", str(path), str(path)]
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
        # A byte more than may be said, so that a program which says too much is told from one that says all it may.
        bounds = (limits.cpu_seconds, limits.memory_bytes, limits.output_bytes + 1, limits.processes)
        prologue = [sys.executable, "-I", "-S", "-c", _PROLOGUE, str(uid), *map(str, bounds)]
        yield [*command, "--chdir", "/tmp", "--", *prologue, sys.executable, *arguments], tuple(descriptors)


def environment() -> dict[str, str]:
    """Return the variables that a sandboxed program gets: nothing of the host's."""
    paths = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp"}
    return paths | {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _run(source: str, stdin: bytes, limits: SandboxLimits, files: Mapping[str, bytes]) -> SandboxResult:
    """Run a program whose channels are files: whatever it says or ignores, nobody waits for anybody."""
    everything = {PROGRAM: source.encode(errors="surrogatepass"), **files}
    with contextlib.ExitStack() as stack:
        given, out, err, ended = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(4))
        given.write(stdin)
        given.seek(0)
        command, descriptors = stack.enter_context(sandboxed(["-I", PROGRAM], limits, everything))
        process = subprocess.Popen(
            [command[0], "--json-status-fd", str(ended.fileno()), *command[1:]], stdin=given, stdout=out, stderr=err,
            env=environment(), pass_fds=(*descriptors, ended.fileno()), start_new_session=True,
        )  # fmt: skip
        started = time.monotonic()
        try:
            status: SandboxStatus | None = None
            while status is None and process.poll() is None:
                time.sleep(_POLL_SECONDS)
                if time.monotonic() - started > limits.wall_seconds:
                    status = "timeout"
                elif _resident_bytes(process.pid) > limits.memory_bytes:
                    status = "memory"
                elif _said_bytes(out, err) > limits.output_bytes:
                    status = "output"
        finally:
            process.kill()
            process.wait()
        seconds = time.monotonic() - started
        for file in (out, err, ended):
            file.seek(0)
        stdout, stderr = out.read(limits.output_bytes), err.read(limits.output_bytes)
        code = next((document["exit-code"] for document in map(json.loads, ended) if "exit-code" in document), None)
        if status is None and code is None:
            raise SandboxError(f"bubblewrap: {_last_words(stderr)}")
        if status is None and _said_bytes(out, err) > limits.output_bytes:
            status = "output"
    late = code == 128 + signal.SIGXCPU or (code == 128 + signal.SIGKILL and seconds >= limits.cpu_seconds)
    return SandboxResult(status or ("timeout" if late else "failed" if code else "ok"), stdout, stderr)


def _said_bytes(*files: IO[bytes]) -> int:
    return sum(os.fstat(file.fileno()).st_size for file in files)


def _last_words(stderr: bytes) -> str:
    return stderr.decode(errors="replace").strip()[-300:] or "it ended without a word"


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


@functools.cache
def filter_program() -> bytes | None:
    """Return the filter for this machine's architecture, or ``None`` where its system calls are not known here."""
    machine = os.uname().machine
    if machine not in _NUMBERS:
        return None
    lines = [
        (_LOAD, 0, 0, 4),  # struct seccomp_data: nr at 0, arch at 4, the first argument at 16
        (_EQUAL, 1, 0, _ARCHITECTURE[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
        (_EQUAL, 0, 1, _CLONE3),  # its flags lie in memory; libraries take clone where it is not there
        (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),
    ]
    for number in _NUMBERS[machine]:
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE | errno.EPERM)]
    lines += [
        (_EQUAL, 0, 3, _CLONE[machine]),
        (_LOAD, 0, 0, 16),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _REFUSE | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
