"""Devices, timing and leases."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from longdecode.engine import device as devices
from longdecode.engine.device import Timer, device_name, lease_gpu, resolve_device, resolve_dtype, sm_clock_mhz
from longdecode.engine.errors import ConfigError, LockError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SOURCE = Path(__file__).parents[2] / "src"
HOLDER = """
import sys, torch
from longdecode.engine.device import lease_gpu
with lease_gpu(torch.device("cuda"), uuids=["a", "b"]) as device:
    print(device, flush=True)
    sys.stdin.read()
"""


def test_auto_follows_what_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == CUDA and resolve_dtype("auto", CPU) == torch.float32
    assert resolve_dtype("auto", CUDA) == torch.bfloat16 and resolve_dtype("float16", CPU) == torch.float16


def test_unknown_devices_and_dtypes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device("cuda:0").index == 0
    for name, words in (("gpu", "allowed: auto, cpu"), ("meta", "allowed"), ("cuda:1", "sees 1 CUDA")):
        with pytest.raises(ConfigError, match=words):
            resolve_device(name)
    with pytest.raises(ConfigError, match="allowed: auto, float32"):
        resolve_dtype("int8", CPU)


def test_the_cpu_has_a_name_and_no_sm_clock() -> None:
    assert device_name(CPU) and sm_clock_mhz(CPU) is None


def test_a_timer_measures_milliseconds_of_a_block_that_ends_well() -> None:
    with Timer(CPU) as timer:
        time.sleep(0.05)
    assert 50 <= timer.ms < 1000
    timer = Timer(CPU)
    with pytest.raises(ValueError, match="inside"), timer:
        raise ValueError("inside")
    assert timer.ms != timer.ms


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(devices.LOCK_FOLDER_VARIABLE, str(tmp_path / "locks"))
    return tmp_path / "locks"


def test_a_cpu_needs_no_lease(locks: Path) -> None:
    with lease_gpu(CPU) as device:
        assert device == CPU
    assert not locks.exists()


def test_processes_get_gpus_of_their_own(locks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One process holds the first GPU, this one gets the second, a third must wait until the first is killed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={"PYTHONPATH": str(SOURCE), "PATH": "", devices.LOCK_FOLDER_VARIABLE: str(locks)},
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdin is not None
    try:
        assert holder.stdout.readline().strip() == "cuda:0"
        with lease_gpu(CUDA, uuids=["a", "b"]) as device:
            assert device.index == 1
            threading.Timer(0.3, holder.kill).start()
            with lease_gpu(CUDA, uuids=["a", "b"], poll_seconds=0.02) as late:
                assert late.index == 0
        assert capsys.readouterr().err.count(f"waiting for a free GPU: cuda:0 by process {holder.pid} of ") == 1
        with lease_gpu(CUDA, uuids=["a", "b"]) as again:
            assert again.index == 0, "leases end with their block"
    finally:
        holder.kill()
        holder.communicate()


def test_jobs_share_a_gpu_only_where_that_is_allowed(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free GPUs come before further places; a job that times takes every place, and waits for the last."""
    monkeypatch.setenv(devices.JOBS_VARIABLE, "2")
    two = ["a", "b"]
    with ExitStack() as jobs:
        assert [jobs.enter_context(lease_gpu(CUDA, uuids=two)).index for _ in range(3)] == [0, 1, 0]
        with ExitStack() as fourth:
            assert fourth.enter_context(lease_gpu(CUDA, uuids=two)).index == 1
        freed = threading.Timer(0.2, jobs.pop_all().close)
        freed.start()
        with lease_gpu(torch.device("cuda", 0), alone=True, uuids=two, poll_seconds=0.02):
            assert freed.finished.is_set()
            with lease_gpu(CUDA, uuids=two) as beside:
                assert beside.index == 1
    monkeypatch.setenv(devices.JOBS_VARIABLE, "0")
    with pytest.raises(ConfigError, match="LONGDECODE_GPU_JOBS is '0'"), lease_gpu(CUDA, uuids=two):
        pass


def test_an_index_leases_that_gpu(locks: Path) -> None:
    with lease_gpu(torch.device("cuda", 1), uuids=["a", "b"]) as device:
        assert device.index == 1
    assert [file.name for file in locks.iterdir()] == ["gpu-b.lock"]


def test_the_locks_of_a_host_are_for_all_its_users(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sticky folder and files of mode 0666 whatever the umask is; a folder of one user alone is refused."""
    before = os.umask(0o077)
    try:
        with lease_gpu(CUDA, uuids=["a"]):
            assert stat.filemode(locks.stat().st_mode) == "drwxrwxrwt"
            assert stat.filemode((locks / "gpu-a.lock").stat().st_mode) == "-rw-rw-rw-"
            held = (locks / "gpu-a.lock").read_text()
            assert f"process {os.getpid()} of " in held and f" on {socket.gethostname()} since " in held
    finally:
        os.umask(before)
    locks.chmod(0o755)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(devices, "_SETTLING_SECONDS", 0.1)
    with pytest.raises(LockError, match=rf"{locks} is not open to all users.*chmod 1777"), lease_gpu(CUDA, uuids=["a"]):
        pass
    monkeypatch.setenv(devices.LOCK_FOLDER_VARIABLE, str(locks / "gpu-a.lock"))
    with pytest.raises(LockError, match="is no folder"), lease_gpu(CUDA, uuids=["a"]):
        pass
    monkeypatch.delenv(devices.LOCK_FOLDER_VARIABLE)
    assert devices.lock_folder() == Path(os.sep, "tmp", "longdecode-gpu")


def test_a_lock_that_cannot_be_had_is_a_typed_error(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(handle: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with lease_gpu(CUDA, uuids=["a"]):
        pass
    (locks / "gpu-b.lock").symlink_to("gpu-a.lock")
    with pytest.raises(LockError, match=r"gpu-b\.lock cannot be locked"), lease_gpu(CUDA, uuids=["b"]):
        pass
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(LockError, match=r"No locks available; .*with flock"), lease_gpu(CUDA, uuids=["a"]):
        pass
