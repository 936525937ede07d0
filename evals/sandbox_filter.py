"""The system calls that a sandboxed program may not make, as a filter in the kernel's own (classic BPF) form.

Denied: memory that no limit counts (System V shared memory, memfd, message queues), other processes' memory, namespaces
and mounts, and large parts of the kernel that no program under test has a use for.
"""

from __future__ import annotations

import errno
import functools
import os
import struct

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
