"""Speculative decoding: trees of drafted tokens, who proposes them, and what a verified block tells."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from longdecode.engine.decode_state import DecodeState
from longdecode.engine.request import Prompt
from longdecode.engine.sequences import Sequences

if TYPE_CHECKING:
    from longdecode.engine.attention import AttentionMethod, Traffic
    from longdecode.engine.decoder import Decoder
    from longdecode.engine.prefill import PrefillObserver

AcceptRule = Literal["exact", "faithful", "released"]
"""Rules of acceptance; see ``engine.acceptance``."""


@dataclass(frozen=True)
class DraftTree:
    """Shape of a block to verify: row 0 is the newest token, row ``n`` the ``n``-th drafted one.

    ``parents[n - 1]`` is the row that row ``n`` follows, a row before it. A chain is a tree without branches.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for row, parent in enumerate(self.parents, start=1):
            if not 0 <= parent < row:
                raise ValueError(f"row {row} follows row {parent}; a row before it is needed")

    @classmethod
    def chain(cls, tokens: int) -> DraftTree:
        """Return a chain of ``tokens`` drafts."""
        return cls(tuple(range(tokens)))

    @classmethod
    def branching(cls, children: Sequence[int]) -> DraftTree:
        """Return a tree whose rows of depth ``d`` have ``children[d]`` children each, ordered by depth, then path."""
        parents: list[int] = []
        level = [0]
        for count in children:
            first = len(parents) + 1
            parents += [row for row in level for _ in range(count)]
            level = list(range(first, len(parents) + 1))
        return cls(tuple(parents))

    def with_chains(self, row: int, chains: int, tokens: int) -> DraftTree:
        """Return the tree with ``chains`` chains of ``tokens`` drafts more, each from ``row`` on."""
        parents = list(self.parents)
        for _ in range(chains):
            at = row
            for _ in range(tokens):
                parents.append(at)
                at = len(parents)
        return DraftTree(tuple(parents))

    @property
    def rows(self) -> int:
        """Rows of a block, the newest token's among them."""
        return len(self.parents) + 1

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Drafts from the newest token to each row."""
        found = [0]
        for parent in self.parents:
            found.append(found[parent] + 1)
        return tuple(found)

    @property
    def depth(self) -> int:
        """Most drafts that a step can keep."""
        return max(self.depths)

    @property
    def is_chain(self) -> bool:
        """Return true where every row follows the one before it."""
        return self.parents == tuple(range(len(self.parents)))

    def path(self, row: int) -> tuple[int, ...]:
        """Return the rows from the newest token to ``row``, both included."""
        rows = [row]
        while rows[-1]:
            rows.append(self.parents[rows[-1] - 1])
        return tuple(reversed(rows))

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The paths of all rows that no row follows, in their order."""
        followed = set(self.parents)
        return tuple(self.path(row) for row in range(self.rows) if row not in followed)


class PlacedTree:
    """A draft tree's tables on a device.

    ``depths`` ``[T]`` int64. ``mask`` ``[T, T]`` bool, ``None`` for a chain. ``lineage``
    ``[T, depth]`` int64: the drafted rows from the root down to each row, itself included, after as many zeros as are
    missing. ``ancestors`` ``[T, depth + 1]`` int64: the rows from the newest token to each row, its own repeated.
    ``path_rows`` ``[P, depth + 1]``: those of each path's last row; ``path_lengths`` ``[P]`` int64: its drafts.
    """

    def __init__(self, tree: DraftTree, device: torch.device):
        def table(rows: list[list[int]]) -> Tensor:
            return torch.tensor(rows, dtype=torch.int64, device=device)

        self.tree = tree
        self.depths = torch.tensor(tree.depths, dtype=torch.int64, device=device)
        paths = [tree.path(row) for row in range(tree.rows)]
        sees = [[other in path for other in range(tree.rows)] for path in paths]
        self.mask = None if tree.is_chain else torch.tensor(sees, device=device)
        self.ancestors = table([list(path) + [path[-1]] * (tree.depth + 1 - len(path)) for path in paths])
        self.lineage = table([[0] * (tree.depth + 1 - len(path)) + list(path[1:]) for path in paths])
        self.path_rows = self.ancestors[[path[-1] for path in tree.paths]]
        self.path_lengths = torch.tensor([len(path) - 1 for path in tree.paths], device=device)
        self._history: dict[int, Tensor] = {}

    def history_index(self, size: int) -> Tensor:
        """Return the places of the ``size`` tokens before each row's draw, ``[T, size]``: in as many and the block.

        Worked out once: ask for it before a step is captured as a CUDA graph.
        """
        if size not in self._history:
            source = torch.arange(size, device=self.depths.device) + self.depths[:, None]
            back = (self.tree.depth - self.depths[:, None] + source - size).clamp(0, self.tree.depth - 1)
            self._history[size] = torch.where(source < size, source, size + self.lineage.gather(1, back))
        return self._history[size]

    def along_paths(self, values: Tensor, tokens: Tensor) -> Tensor:
        """Return the values ``[B, T, V]`` of each path's next token, ``[B, P, depth]``; ``tokens`` is ``[B, T]``."""
        batch = torch.arange(len(values), device=values.device)[:, None, None]
        return values[batch, self.path_rows[:, :-1], tokens[:, self.path_rows[:, 1:]].clamp(min=0)]


@dataclass(frozen=True, slots=True)
class Verified:
    """A verified block, its accepted rows compacted in the verifier's cache.

    Args:
        starts: ``[B]`` int64, first slots of the block.
        rows: ``[B, depth + 1]`` int64, the block rows along the accepted path; past ``kept`` any.
        chosen: ``[B, depth + 1]`` int64, the tokens emitted after them, likewise.
        kept: ``[B]`` int64, rows whose keys and values stay, as many as tokens were emitted; 0 in rows that are done.
        hidden: ``[B, T, H]`` after the final norm.
    """

    starts: Tensor
    rows: Tensor
    chosen: Tensor
    kept: Tensor
    hidden: Tensor


class Proposer(ABC):
    """Propose the tokens of a draft tree, step after step of one generation.

    All hooks of a step keep to fixed shapes, change state in place and never wait for the host, so that a step can be
    captured as a CUDA graph. A proposer with ``refreshes`` has a second kind of step, in which ``see_layer`` is shown
    every layer of the verification; ``refresh_due`` is asked between steps.
    """

    tree: DraftTree
    states: tuple[DecodeState, ...] = ()
    """States whose reads add to the cost of a step."""
    refreshes: bool = False
    refreshing: bool = False
    """True while the present step is of the second kind."""

    @abstractmethod
    def propose(self) -> Tensor:
        """Return the tokens of rows 1 .. of the tree, ``[B, T - 1]`` int64; -1 drafts nothing in a row."""

    def refresh_due(self) -> bool:
        """Return true where the next step is of the second kind; may look at the device, seldom."""
        return False

    def see_layer(self, layer: int, q: Tensor, state: DecodeState) -> None:  # noqa: B027 (optional hook)
        """See one layer of a verification: queries ``[B, Hq, T, D]``, the block stored in ``state.cache``."""

    def keep(self, verified: Verified) -> None:  # noqa: B027 (optional hook)
        """React to what was kept of the block."""

    def counts(self) -> Mapping[str, Tensor]:
        """Return what the proposer has counted so far by name, ``[B]`` each; read once, at the end."""
        return {}


class Speculation(ABC):
    """Speculative decoding as a method declares it: the shape of its drafts, who makes them, how they are accepted."""

    tree: DraftTree
    narrow: DraftTree | None = None
    """The first rows of ``tree``, as deep: steps verify whichever of the two is faster. Needs the exact rule."""
    rule: AcceptRule = "exact"
    method: AttentionMethod | None = None
    """Attention of what drafts, where it is the verifying model's."""

    @property
    def tokens(self) -> int:
        """Most drafts that a step can keep."""
        return self.tree.depth

    @abstractmethod
    def start(self, decoder: Decoder, sequences: Sequences, state: DecodeState, prompt: Prompt) -> Proposer:
        """Make the proposer of one generation.

        Args:
            decoder: the model that verifies.
            sequences: the batch, its first tokens emitted.
            state: the verifier's.
            prompt: as prefilled; its cache may be the verifier's own.
        """

    @property
    def passes(self) -> int:
        """Return how often proposing reads the verifier's weights."""
        return 0

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic | None:
        """Return the cache bytes that one proposal reads for one sequence, ``None`` for none."""
        return None

    def draft_bytes(self, context_tokens: int, bytes_per_element: int, weight_bytes: int, batch: int) -> int:
        """Return all bytes that one proposal reads: weights once a pass, and the caches of ``batch`` sequences."""
        read = self.traffic(context_tokens, bytes_per_element)
        return self.passes * weight_bytes + batch * (read.total_bytes if read else 0)

    def observers(self) -> tuple[PrefillObserver, ...]:
        """Return what must see the prefill for the proposer."""
        return ()
