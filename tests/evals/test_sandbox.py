"""The sandbox against hostile programs: each states the harm it tried, none does any, and nothing is left running."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from longdecode.evals import sandbox
from longdecode.evals.sandbox import SandboxLimits, SandboxUnsupportedError, require_sandbox, run_python

QUICK = SandboxLimits(
    cpu_seconds=1, wall_seconds=30.0, memory_bytes=400 << 20, disk_bytes=8 << 20, output_bytes=1 << 20, processes=12,
)  # fmt: skip
PROGRAM = f"/program-{os.getpid()}.py"
SHORT = replace(QUICK, wall_seconds=1.2)
# Prints what could be done; a refusal of any kind prints nothing.
TRY = """
import ctypes, os, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
CLONE, KEYCTL = (56, 250) if os.uname().machine == "x86_64" else (220, 219)
def attempt(name, harm):
    try:
        done = harm()
    except (OSError, ValueError, MemoryError, RuntimeError, subprocess.CalledProcessError):
        return
    if done != -1:
        print(name, done)
"""
REFUSED = {
    "network": """
        for family, place in ((socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_INET, ("1.1.1.1", 53))):
            attempt(place, lambda: socket.socket(family).connect(place))
        attempt("resolve", lambda: socket.getaddrinfo("example.org", 80))
        attempt("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0longdecode-{port}"))
    """,
    "reads_the_host": """
        for path in ("/etc/passwd", "/etc/shadow", "/etc/hostname", "/proc/1/environ", "/sys/class", "{secret}",
                     "{home}/.ssh", "/home", "/var", "/run", "{here}"):
            attempt(path, lambda: os.stat(path).st_mode)
    """,
    "writes_outside": """
        for folder in ("/", "/usr", "/usr/bin", "/dev", "/dev/shm", "/bin", sys.prefix, sys.base_prefix):
            attempt(folder, lambda: open(os.path.join(folder, "planted"), "w"))
        attempt("itself", lambda: open("{program}", "a"))
        attempt("remove", lambda: os.unlink("/usr/bin/env"))
        attempt("permissions", lambda: os.chmod("/usr/bin/env", 0o777))
    """,
    "links_out": """
        os.symlink("{secret}", "soft"); os.symlink("../../../../..", "up")
        attempt("soft", lambda: open("soft").read())
        attempt("up", lambda: os.stat("up{secret}"))
        attempt("hard", lambda: os.link("/usr/bin/env", "hard"))
    """,
    "mounts_and_namespaces": """
        attempt("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
        attempt("remount", lambda: libc.mount(None, b"/", None, 32 | 4096, None))
        for flag in (0x10000000, 0x20000000, 0x40000000, 0x00020000):
            attempt(hex(flag), lambda: libc.unshare(flag))
            attempt("clone", lambda: libc.syscall(CLONE, flag | 17, 0, 0, 0, 0))
        attempt("chroot", lambda: os.chroot("/tmp"))
        attempt("device", lambda: os.mknod("disk", 0o60666, os.makedev(8, 0)))
        nested = ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"]
        attempt("nested", lambda: subprocess.check_output(nested, stderr=subprocess.DEVNULL))
    """,
    "privileges": """
        me = os.getuid()
        attempt("setuid", lambda: os.setuid(0)); attempt("setgid", lambda: os.setgid(0))
        attempt("groups", lambda: os.setgroups([0]))
        attempt("root file", lambda: open("/usr/sbin/planted", "w"))
        for path in ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/newgrp"):
            if os.path.exists(path):
                child = subprocess.Popen([path, "-"], stdin=-1, stdout=-1, stderr=-1)
                child.communicate(b"id -u", timeout=2)
        attempt("became", lambda: -1 if (os.getuid(), os.geteuid()) == (me, me) != (0, 0) else me)
        attempt("host name", lambda: socket.sethostname("mine"))
        attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, 0))
        attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
    """,
    "other_processes": """
        attempt("attach", lambda: libc.ptrace(16, 1, 0, 0)); attempt("traced", lambda: libc.ptrace(0, 0, 0, 0))
        attempt("host's", lambda: os.kill({pid}, 0))
        attempt("memory", lambda: libc.process_vm_readv(1, None, 0, None, 0, 0))
        attempt("keyring", lambda: libc.syscall(KEYCTL, 0, -3, 1))
    """,
    "uncounted_memory": """
        attempt("shm", lambda: libc.shmget(0, 1 << 20, 0o1600)); attempt("queue", lambda: libc.msgget(0, 0o1600))
        attempt("memfd", lambda: os.memfd_create("a"))
        attempt("locked", lambda: libc.mlock(ctypes.create_string_buffer(1 << 20), 1 << 20))
    """,
    "its_own_limits": """
        import resource
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):
            attempt(kind, lambda: resource.setrlimit(kind, (resource.RLIM_INFINITY,) * 2))
    """,
    "ten_gigabytes": """
        attempt("memory", lambda: len(bytearray(10 << 30)))
    """,
    "a_large_file": """
        attempt("file", lambda: os.truncate(os.open("a", os.O_CREAT | os.O_RDWR), 3 << 20))
        attempt("written", lambda: open("b", "wb").write(bytes(3 << 20)))
    """,
    "inherited": """
        for number in range(3, 40):
            attempt(number, lambda: os.fstat(number).st_ino)
        attempt("environment", lambda: -1 if "LONGDECODE_SECRET" not in os.environ else 1)
        attempt("terminal", lambda: os.open("/dev/tty", os.O_RDWR))
    """,
    "parents": """
        for pid in (os.getppid(), 1):
            attempt(pid, lambda: os.kill(pid, signal.SIGSTOP) or os.kill(pid, signal.SIGCONT) or -1)
    """,
}  # fmt: skip
ENDED = {
    "fork_bomb": ("timeout", "while True:\n    try: os.fork()\n    except OSError: pass"),
    "fork_bomb_that_gives_up": ("failed", "while True: os.fork()"),
    "endless_loop": ("timeout", "while True: pass"),
    "endless_and_deaf": (
        "timeout",
        "for n in range(1, 32):\n    if n not in (9, 19): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
    ),
    "endless_sleep": ("timeout", "time.sleep(1000)"),
    "endless_output": ("output", "while True: sys.stdout.write('x' * 65536)"),
    "memory_of_many": (
        "memory",
        "for _ in range(6):\n    if os.fork() == 0: break\nheld = bytearray(200 << 20)\ntime.sleep(100)",
    ),
    "kills_all": ("failed", "os.kill(1, 9); os.kill(-1, 9); os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)"),
    "crash": ("failed", "ctypes.string_at(0)"),
    "says_bwrap_failed": ("failed", "print('bwrap: no namespaces', file=sys.stderr); sys.exit(1)"),
    "endless_threads": ("failed", "while True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_left_running(contained: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every process of a program, of whatever process namespace, is gone when its run has ended."""
    monkeypatch.setattr(sandbox, "PROGRAM", PROGRAM)  # tells them from those of a test process beside this one

    def running() -> bool:
        return PROGRAM in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout

    yield
    deadline = time.monotonic() + 2
    while (left := running()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


@pytest.fixture
def stranger() -> Iterator[int]:
    """A living process of the host, whose number is none that a sandbox's own processes have."""
    while (process := subprocess.Popen(["sleep", "600"])).pid <= 100:  # a container begins at 1 too
        process.kill()
        process.wait()
    yield process.pid
    process.kill()
    process.wait()


def dedented(source: str) -> str:
    return TRY + "\n".join(line[8:] for line in source.splitlines())


@pytest.mark.parametrize("name", REFUSED)
def test_harm_is_refused(name: str, stranger: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGDECODE_SECRET", "1")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o666)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        port = server.getsockname()[1]
        abstract.bind(f"\0longdecode-{port}")
        abstract.listen()
        here, home = Path(__file__).parent, Path.home()
        source, places = dedented(REFUSED[name]), {"port": port, "secret": secret, "here": here, "home": home}
        for word, value in (places | {"program": PROGRAM, "pid": stranger}).items():
            source = source.replace(f"{{{word}}}", str(value))
        outcome = run_python(source + "\nprint('done')", limits=QUICK)
    assert (outcome.stdout.decode(), outcome.status) == ("done\n", "ok"), outcome.stderr.decode()
    assert secret.read_text() == "secret" and not list(Path("/usr").glob("planted"))


@pytest.mark.parametrize("name", ENDED)
def test_excess_is_ended(name: str) -> None:
    status, source = ENDED[name]
    began = time.monotonic()
    outcome = run_python(TRY + source, limits=SHORT if status == "timeout" else QUICK)
    assert outcome.status == status, outcome
    assert time.monotonic() - began < (4 if status == "timeout" else 20)
    assert max(len(outcome.stdout), len(outcome.stderr)) <= QUICK.output_bytes


def test_a_full_disk_is_the_programs_own() -> None:
    source = """
written = 0
try:
    while True:
        with open(f"/tmp/{written}", "wb") as file: file.write(bytes(1 << 20))
        written += 1
except OSError as error:
    print(written, error.errno)
"""
    assert run_python(source, limits=QUICK).stdout == b"8 28\n"
    # And files by the thousand: 3 of the 64 are the standard ones.
    source = "f = []\ntry:\n while True: f.append(open('/dev/null'))\nexcept OSError as e: print(len(f), e.errno)"
    assert run_python(source, limits=QUICK).stdout == b"61 24\n"


def test_a_daemon_does_not_outlive_its_program() -> None:
    source = """
import os, signal, time
heard, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        print("daemon", flush=True); os.write(tell, b"!"); time.sleep(1000)
    os._exit(0)
os.read(heard, 1)
"""
    outcome = run_python(source, limits=QUICK)
    assert (outcome.status, outcome.stdout) == ("ok", b"daemon\n")


def test_input_reaches_the_program_and_floods_nobody() -> None:
    text = os.urandom(3 << 20).hex().encode()
    counted = run_python("import sys; print(len(sys.stdin.read())); print(sys.argv, __name__)", text, QUICK)
    assert counted.stdout.split(b"\n")[0] == b"%d" % len(text) and b"__main__" in counted.stdout
    assert run_python("print('no interest')", text, QUICK).stdout == b"no interest\n"
    assert run_python("import time; time.sleep(1000)", text, SHORT).status == "timeout"


def test_an_ordinary_program_is_served() -> None:
    source = "import collections, heapq, math, re, numpy, sys\nsys.setrecursionlimit(10**6)\n" + (
        "def down(n): return 0 if n == 0 else 1 + down(n - 1)\n"
        "open('note', 'w').write('x' * 9)\nprint(down(30000), math.comb(40, 20), len(open('note').read()))"
    )
    outcome = run_python(source, limits=SandboxLimits(), files={"/given.txt": b"given"})
    assert outcome.stdout == b"30000 137846528820 9\n", outcome.stderr
    assert run_python("print(open('/given.txt').read())", files={"/given.txt": b"given"}).stdout == b"given\n"
    assert run_python("import os; print(os.listdir('/etc'))").stdout == b"['ld.so.cache']\n"  # finds libpython
    assert run_python("import sys; sys.exit(3)").status == "failed"
    said_all = run_python(f"print('x' * {QUICK.output_bytes - 1})", limits=QUICK)
    assert (said_all.status, len(said_all.stdout)) == ("ok", QUICK.output_bytes)


def test_a_machine_without_a_sandbox_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(body: str | None) -> str:
        if body is not None:
            fake = tmp_path / "bwrap"
            fake.write_text(f"#!/bin/sh\n{body}")
            fake.chmod(0o755)
        require_sandbox.cache_clear()
        with pytest.raises(SandboxUnsupportedError) as caught:
            run_python("print('ran outside')")
        return str(caught.value)

    monkeypatch.setattr(shutil, "which", lambda name: str(tmp_path / name) if (tmp_path / name).is_file() else None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "apt-get install bubblewrap" in refused(None)
    why = refused("echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1")
    assert "setting up uid map: Permission denied" in why and "unprivileged_userns_clone" in why
    assert "it ended without a word" in refused("exit 0")
    monkeypatch.setattr(sandbox, "filter_program", lambda: None)
    assert "x86_64 or aarch64" in refused("exec python3 -c 'print(42)'")
    require_sandbox.cache_clear()


FORKS = """
import os, time
count = 0
try:
    while os.fork(): count += 1
    time.sleep(9)
except OSError:
    print(count)
"""


def test_an_ordinary_user_gets_the_same_protection() -> None:
    """As root, the tests above ran without a user namespace: once more with one, by the system's own interpreter."""
    python = shutil.which("python3", path="/usr/bin:/bin")
    if os.geteuid() != 0 or python is None or shutil.which("setpriv") is None:
        pytest.skip("the tests ran as an ordinary user, or there is no system Python to run as one")
    names = ("privileges", "mounts_and_namespaces", "its_own_limits", "parents")
    harms = "".join(dedented(REFUSED[name]) for name in names)
    script = f"""
from longdecode.evals.sandbox import *
try:
    require_sandbox()
except SandboxUnsupportedError as error:
    raise SystemExit(f"unsupported: {{error}}")
for source in ({harms!r}, {FORKS!r}):
    outcome = run_python(source, limits=SandboxLimits(processes=12))
    print(outcome.status, outcome.stdout, outcome.stderr)
"""
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", python, "-c"]
    environment = {"PYTHONPATH": str(Path(sandbox.__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    if subprocess.run([*user, "import longdecode.evals.sandbox"], capture_output=True, env=environment).returncode:
        pytest.skip("an ordinary user cannot read this checkout")
    done = subprocess.run([*user, script], capture_output=True, text=True, env=environment)
    if done.stderr.startswith("unsupported: "):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    refused, forked = done.stdout.splitlines()
    assert refused == "ok b'' b''" and forked.startswith("ok b'") and 1 <= int(forked[5:].partition("\\n")[0]) <= 12
