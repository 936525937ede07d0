"""How sparse decode attention is launched: what can be tuned, what is chosen, what is worth trying."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import torch

from longdecode.kernels.multiprocessors import multiprocessors, power_of_two

MOST_SPLITS = 128


@dataclass(frozen=True, slots=True)
class SparseLaunch:
    """What one program works on and with.

    ``rows`` query rows (padded; a power of two, 16 or more) and ``tokens`` a step (a power of two, 16 or more).
    ``balanced``: ``splits`` programs in all share the tokens of all lists evenly; otherwise ``splits`` programs share
    those of each list. ``fused_merge``: the last program of a list to finish joins the parts; otherwise a second
    launch does, which ``balanced`` has not.

    Raises:
        ValueError: ``balanced`` without ``fused_merge``.
    """

    rows: int
    tokens: int
    num_warps: int
    num_stages: int
    splits: int
    balanced: bool = False
    fused_merge: bool = True

    def __post_init__(self) -> None:
        if self.balanced and not self.fused_merge:
            raise ValueError("a balanced launch merges its parts itself: fused_merge cannot be False")


def choose_launch(
    lists: int,
    rows: int,
    dim: int,
    most: int,
    capacity: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    uneven: bool = False,
) -> SparseLaunch:
    """The launch for static shapes; not yet tuned.

    Lists of about one length are dealt out one by one, which costs the least before the first load. ``uneven`` lists
    share all programs evenly instead.

    Args:
        lists: index lists over all rows of the batch, ``B * Hs``.
        rows: query heads that one list serves.
        most: tokens that a full index list holds.
        capacity: tokens that the cache holds, which a list of everything may reach.
        uneven: the caller's word that lists may differ much in length.
    """
    padded = max(16, power_of_two(dim))
    tile = min(64, max(16, power_of_two(rows)))
    if dtype == torch.float32:
        tile, tokens, stages = 16, 32 if padded <= 64 else 16, 2
    else:
        tokens, stages = {16: 128, 32: 128, 64: 128, 128: 64}.get(padded, 32), 4 if padded <= 128 else 3
    launch = SparseLaunch(tile, tokens, 4, stages, 1, balanced=uneven)
    return _spread(launch, lists, rows, most, capacity, 2, device)


def candidates(
    lists: int,
    rows: int,
    dim: int,
    most: int,
    capacity: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    uneven: bool = False,
) -> list[SparseLaunch]:
    """Launches worth timing at these shapes on a GPU of Hopper's kind, ``choose_launch``'s first."""
    found = [choose_launch(lists, rows, dim, most, capacity, dtype, device, uneven=uneven)]
    size = 2 * dtype.itemsize * max(16, power_of_two(dim))
    shapes = [(32, 4, 4), (32, 4, 5), (64, 4, 2), (64, 4, 3), (64, 4, 4), (64, 4, 5), (64, 8, 3), (128, 4, 2)]
    shapes += [(128, 4, 3), (128, 4, 4), (128, 8, 2), (128, 8, 3), (128, 8, 4), (256, 4, 2), (256, 8, 2)]
    for (tokens, warps, stages), waves in product(shapes, (1, 2, 3)):
        # Programs that share a multiprocessor share its 227 KiB.
        if tokens * size * max(1, stages - 1) * waves > 208 << 10:
            continue
        launch = SparseLaunch(max(16, power_of_two(min(rows, 64))), tokens, warps, stages, 1, balanced=uneven)
        found.append(_spread(launch, lists, rows, most, capacity, waves, device))
    return list(dict.fromkeys(found))[:40]


def _spread(
    launch: SparseLaunch, lists: int, rows: int, most: int, capacity: int, waves: int, device: torch.device
) -> SparseLaunch:
    """``launch`` with as many splits as make ``waves`` programs a multiprocessor, each with a tile of a full list."""
    programs = max(1, round(waves * multiprocessors(device) / -(-rows // launch.rows)))
    if launch.balanced:
        return replace(launch, splits=min(programs, lists * -(-capacity // launch.tokens)))
    wanted = round(programs / lists)
    return replace(launch, splits=max(1, min(wanted, -(-min(most, capacity) // launch.tokens), MOST_SPLITS)))
