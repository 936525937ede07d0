"""Host memory for caches: pinned, seen by the device, used again, and bounded by the control group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from longdecode.engine import host_memory
from longdecode.engine.errors import ConfigError, PinnedMemoryError
from longdecode.engine.host_memory import HostBuffer
from longdecode.evals.gate import status_of
from longdecode.kernels.host_fetch.naive import seen_from


@pytest.mark.gpu
@pytest.mark.parametrize("nbytes", [1 << 20, 3 << 28], ids=["from torch", "registered"])
def test_pinned_memory_is_seen_by_the_device(nbytes: int) -> None:
    buffer = HostBuffer(nbytes, torch.device("cuda"))
    assert buffer.bytes.is_pinned()
    seen = seen_from(buffer.bytes[64:128], torch.device("cuda"))
    seen.fill_(7)
    torch.cuda.synchronize()
    assert buffer.bytes[64:128].tolist() == [7] * 64
    del seen, buffer
    host_memory.release_idle_regions()


def test_pinned_regions_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a driver that pins what it is asked to: a region goes back when its buffer is dropped, the smallest fits."""
    made: list[int] = []

    def pinned(nbytes: int) -> Tensor:
        made.append(nbytes)
        if nbytes > 5000:
            raise RuntimeError("cudaHostRegister returned 2")
        return torch.zeros(nbytes, dtype=torch.uint8)

    monkeypatch.setattr(host_memory, "_pinned", pinned)
    cuda = torch.device("cuda")
    first, second = HostBuffer(4000, cuda), HostBuffer(1000, cuda)
    assert made == [4000, 1000]
    view = first.view(torch.float32, (2, 3), 8)
    view.fill_(1.5)
    assert first.bytes[8:32].view(torch.float32).tolist() == [1.5] * 6
    del view, first
    third = HostBuffer(900, cuda)
    assert made == [4000, 1000] and third.bytes.numel() == 900
    del second, third
    fourth = HostBuffer(900, cuda)
    assert made == [4000, 1000]
    with pytest.raises(PinnedMemoryError, match="pinning 6,000 bytes of host memory was refused") as caught:
        HostBuffer(6000, cuda)
    assert status_of(caught.value) == "unsupported"
    del fourth
    host_memory.release_idle_regions()
    assert host_memory._idle == []


def test_free_memory_is_bounded_by_the_control_group(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 800 kB\n")
    for name, text in (("max", "500000"), ("current", "300000"), ("stat", "anon 5\ninactive_file 100000\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(host_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host_memory, "_CGROUPS", ((str(tmp_path), "memory.max", "memory.current", "inactive_file"),))
    assert host_memory.free_host_bytes() == 300_000
    (tmp_path / "memory.max").write_text("max")
    assert host_memory.free_host_bytes() == 800 * 1024
    monkeypatch.setenv(host_memory.HOST_GIB_VARIABLE, "3")
    assert host_memory.free_host_bytes() == 3 << 30
    monkeypatch.setenv(host_memory.HOST_GIB_VARIABLE, "-3")
    with pytest.raises(ConfigError, match="LONGDECODE_HOST_GIB is '-3'; a whole number of GiB"):
        host_memory.free_host_bytes()
