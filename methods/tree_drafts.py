"""Drafts of a tree from the ranks of a few rows of logits, and of chains from an n-gram table."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import DraftTree, Verified
from longdecode.methods.ngram_table import NgramTable


class TreeDrafts:
    """Tokens of ``levels`` (children of a row, depth by depth) by rank, then of ``chains`` continuations of row 1.

    A row of depth ``d`` that is the ``r``-th child carries the token of rank ``r`` among the logits of depth ``d``.

    Args:
        levels: the tree that ranks fill.
        chains: continuations looked up for the first token.
    """

    def __init__(self, levels: DraftTree, chains: int):
        self.levels = levels
        self.tree = self.with_ngrams(chains)
        ranks = [sum(p == parent for p in levels.parents[:row]) for row, parent in enumerate(levels.parents)]
        self.ranks = max(ranks) + 1
        self.chains = (self.tree.rows - levels.rows) // max(1, levels.depth - 1)
        self.places = [(depth - 1) * self.ranks + rank for depth, rank in zip(levels.depths[1:], ranks, strict=True)]

    def with_ngrams(self, chains: int) -> DraftTree:
        """Return ``levels`` and so many chains below its row 1; fewer chains are the first rows of more."""
        return self.levels.with_chains(1, chains, self.levels.depth - 1)


class TreeDrafter:
    """Fill a tree for one generation; count what its chains contributed, and the steps that verified fewer rows.

    Args:
        drafts: the tree.
        table: n-grams of the text, ``None`` where the tree has no chains.
        sequences: the batch.
        noisy: rank under the noise that each draw will use.
        penalised_rows: see ``Sequences.rank``.
    """

    def __init__(
        self, drafts: TreeDrafts, table: NgramTable | None, sequences: Sequences, *, noisy: bool,
        penalised_rows: int | None = None,
    ):  # fmt: skip
        device = sequences.tokens.device
        self.drafts, self.table, self.sequences = drafts, table, sequences
        self.noisy, self.penalised_rows = noisy, penalised_rows
        self.places = torch.tensor(drafts.places, dtype=torch.int64, device=device)
        self.from_chains = torch.zeros_like(sequences.counts)
        self.narrow_steps = torch.zeros_like(sequences.counts)

    def fill(self, logits: Tensor) -> Tensor:
        """Return the tree's tokens ``[B, T - 1]`` given the logits ``[B, depth, V]`` of the next places."""
        ranked = self.sequences.rank(
            logits, self.drafts.ranks, noisy=self.noisy, penalised_rows=self.penalised_rows
        ).flatten(1)
        nodes = ranked[:, self.places]
        if self.table is None:
            return nodes
        return torch.cat((nodes, self.table.look_up(nodes[:, 0], self.drafts.chains).flatten(1)), dim=1)

    def counts(self) -> dict[str, Tensor]:
        """Return what was counted, ``[B]`` each."""
        return {"ngram_tokens": self.from_chains, "narrow_steps": self.narrow_steps}

    def keep(self, verified: Verified) -> None:
        """Append the step's tokens to the table; count the drafts kept on paths that end in a chain."""
        if verified.hidden.shape[1] < self.drafts.tree.rows:
            self.narrow_steps += verified.kept > 0
        if self.table is not None:
            accepted = (verified.kept - 1).clamp(min=0)
            last = verified.rows.gather(1, accepted[:, None])[:, 0]
            self.from_chains += torch.where(last >= self.drafts.levels.rows, accepted, 0)
            self.table.add_verified(verified)
