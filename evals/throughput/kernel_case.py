"""One op at one size: its inputs in rotation, what it computes, what it must at least move."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.errors import DeviceMemoryError, GateError
from longdecode.engine.model_config import ModelConfig

L2_BYTES = 60 << 20
"""Last-level cache of an H200; the largest of the devices this is run on."""
COLD_BYTES = 3 * L2_BYTES
"""Bytes that a rotation covers, so that no call finds its input in the cache."""
MAX_SETS = 64
_TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 5e-3, torch.float32: 2e-4}
"""Largest error allowed, as a share of the largest value; by dtype of the inputs."""

Inputs = dict[str, Any]
Call = Callable[[Inputs], Any]


@dataclass(frozen=True, slots=True)
class Size:
    """Hold the sizes of a case; ``context`` is 0 for ops that do not depend on it, ``op_sizes`` are the op's own."""

    config: ModelConfig
    context: int
    batch: int
    budget_tokens: int | None
    device: torch.device
    dtype: torch.dtype
    op_sizes: Mapping[str, Any] = field(default_factory=dict)

    def smaller(self) -> Size:
        """Return a size for the correctness gate, no larger in any direction."""
        context = min(self.context, 2048)
        budget = None if self.budget_tokens is None else min(self.budget_tokens, max(16, context // 4))
        return replace(self, context=context, batch=min(self.batch, 2), budget_tokens=budget)

    def normal(self, *shape: int) -> Tensor:
        """Return random normal values in the size's dtype."""
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def whole(self, *shape: int, value: int) -> Tensor:
        """Return int64 values, all alike."""
        return torch.full(shape, value, device=self.device, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Case:
    """An op at a size.

    Args:
        make_sets: builds that many input sets, disjoint in what a call reads.
        ours: the op as methods call it.
        check: raises ``GateError`` when what ``ours`` gave for a set is wrong.
        same: whether a peer's result is ours; ``None`` where they do not compare.
        read_bytes: bytes that one call must move at least.
        set_bytes: memory of one further set; the first one may share with others, see ``base_bytes``.
        base_bytes: memory that does not grow with the sets.
        peer_bytes: for peers that must move something else than ours, how many bytes; by label.
    """

    subject: str
    size: Size
    make_sets: Callable[[int], list[Inputs]]
    ours: Call
    check: Callable[[Inputs, Any], None]
    read_bytes: int
    set_bytes: int
    base_bytes: int = 0
    same: Callable[[Any, Any], bool] | None = None
    params: dict[str, Any] = field(default_factory=dict)
    peer_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def sets(self) -> int:
        """Count input sets in rotation: enough that the last-level cache is cold, up to a limit."""
        if self.size.device.type != "cuda":
            return 1
        return min(MAX_SETS, max(1, math.ceil(COLD_BYTES / self.read_bytes)))

    @property
    def cold(self) -> bool:
        """Return whether the rotation exceeds the last-level cache; small inputs stay warm, as they are in a step."""
        return self.sets * self.read_bytes >= COLD_BYTES

    def refuse_if_too_large(self) -> None:
        """Decide before any allocation; peers may need the inputs once more in a layout of their own.

        Raises:
            DeviceMemoryError: the inputs do not fit.
        """
        if self.size.device.type != "cuda":
            return
        need = 2 * (self.base_bytes + self.sets * self.set_bytes) + (1 << 30)
        free, _ = torch.cuda.mem_get_info(self.size.device)
        if need > free:
            raise DeviceMemoryError(f"{self.subject}: {need:,} bytes of inputs; {free:,} are free")


def require_close(got: Sequence[Tensor], want: Sequence[Tensor], dtype: torch.dtype, what: str) -> None:
    """Raise where results differ by more than rounding allows, or are not finite where the truth is.

    Raises:
        GateError: they do.
    """
    for index, (ours, truth) in enumerate(zip(got, want, strict=True)):
        finite = torch.isfinite(truth)
        if ours.shape != truth.shape or not bool((torch.isfinite(ours) == finite).all()):
            raise GateError(f"{what}: output {index} has another shape or is not finite where its definition is")
        scale = float(truth[finite].abs().max()) if bool(finite.any()) else 0.0
        error = float((ours[finite].double() - truth[finite].double()).abs().max()) if bool(finite.any()) else 0.0
        if error > _TOLERANCE[dtype] * max(scale, 1e-6):
            raise GateError(f"{what}: output {index} differs by {error:.3g} of {scale:.3g} from its definition")


def is_close(got: Tensor, want: Tensor, dtype: torch.dtype) -> bool:
    """Return whether a peer computed what we did, to twice the tolerance, since both sides round."""
    finite = torch.isfinite(want)
    if got.shape != want.shape or not bool(finite.any()):
        return False
    error = float((got[finite].double() - want[finite].double()).abs().max())
    return error <= 2 * _TOLERANCE[dtype] * float(want[finite].abs().max())


def rotated_blocks(size: Size, blocks: int, picked: int, turn: int) -> Tensor:
    """Draw ascending block numbers ``[B, Hkv, picked]``; no two turns share a block until all are used."""
    heads = size.config.num_kv_heads
    generator = torch.Generator(size.device).manual_seed(blocks)
    draw = torch.rand(size.batch, heads, blocks, generator=generator, device=size.device)
    order = draw.argsort(dim=-1)
    first = turn % max(1, blocks // picked) * picked
    return order[..., first : first + picked].sort(dim=-1).values.contiguous()


def random_tree(rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the mask ``[T, T]`` of a random draft tree of ``T`` nodes, and their depths ``[T]`` int64."""
    draw = random.Random(f"tree {rows}")
    mask = torch.eye(rows, dtype=torch.bool)
    for node in range(1, rows):
        mask[node] |= mask[draw.randrange(node)]
    return mask.to(device), (mask.sum(dim=1) - 1).to(device)
