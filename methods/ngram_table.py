"""Tables of n-grams of the text so far, on the device: counts of continuations, and places where the end recurs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import Verified
from longdecode.kernels.ngram_table import NgramCounts, add_ngrams, append_text, codes, frequent_continuations


class TextOnDevice:
    """Prompt and output of each row, ``text`` ``[B, S]`` int64 with a spare last column, ``lengths`` ``[B]``."""

    def __init__(self, prompts: Sequence[Sequence[int]], sequences: Sequences):
        device = sequences.tokens.device
        longest = max(map(len, prompts)) + sequences.longest
        self.text = torch.full((len(prompts), longest + 1), -1, dtype=torch.int64, device=device)
        for row, prompt in enumerate(prompts):
            self.text[row, : len(prompt)] = torch.tensor(prompt, dtype=torch.int64, device=device)
        self.lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64, device=device)
        self.add(sequences.tokens[:, None], sequences.counts.clamp(max=1))

    @property
    def capacity(self) -> int:
        """Tokens a row has room for."""
        return self.text.shape[1] - 1

    def add(self, tokens: Tensor, counts: Tensor) -> None:
        """Append the first ``counts`` (``[B]``) of ``tokens`` ``[B, W]``."""
        append_text(self.text, self.lengths, tokens, counts)


class NgramTable(TextOnDevice):
    """Counts of the n-grams that end more than ``lag`` tokens before the end of the text.

    The table is three columns over the text (``kernels.ngram_table``): the continuation as one integer, the count, and
    whether a later occurrence exists. Adding compares with the whole text; nothing is sorted in a step and no step
    waits for the host. The released table compares entries by their count alone and so loses some; a count here is a
    count.

    Args:
        prompts: token ids of the prompts; their n-grams are counted first.
        sequences: the batch, its first tokens emitted.
        order: ``n``, the first token and those it proposes.
        lag: newest tokens that the table does not see, so that it proposes nothing that is still penalised.
        vocab: size of the vocabulary.

    Raises:
        UnsupportedCellError: ``vocab ** (order - 1)`` is over an int64.

    Source: TokenSwift (arXiv 2502.18890), section 3.3; the lag and the preloaded prompt from its released code.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], sequences: Sequences, order: int, lag: int, vocab: int):
        if vocab ** (order - 1) >= 1 << 63:
            raise UnsupportedCellError(
                f"n-grams of {order} tokens over a vocabulary of {vocab:,} do not fit the table's 64-bit integer"
            )
        super().__init__(prompts, sequences)
        self.entries = NgramCounts(
            self.text, self.lengths, torch.zeros_like(self.text), torch.zeros_like(self.text),
            torch.zeros_like(self.text, dtype=torch.bool), order, lag, vocab,
        )  # fmt: skip
        self._count_all()

    def add_verified(self, verified: Verified) -> None:
        """Append a step's tokens and count the n-grams that the lag sets free."""
        add_ngrams(self.entries, verified.chosen, verified.kept)

    def look_up(self, first: Tensor, k: int) -> Tensor:
        """Return the ``k`` most frequent continuations of ``first`` ``[B]``, of equal ones the latest first.

        Returns:
            ``[B, k, order - 1]`` int64; -1 where there are fewer.
        """
        return frequent_continuations(self.entries, first, k)

    def _count_all(self) -> None:
        """Count the n-grams of the text as it stands."""
        table = self.entries
        index = torch.arange(self.text.shape[1], device=self.text.device).expand_as(self.text)
        table.code.copy_(codes(table, index))
        counted = index + table.order <= (self.lengths - table.lag)[:, None]
        for row in range(len(self.text)):
            grams = torch.stack((self.text[row], table.code[row]))[:, counted[row]]
            if grams.shape[1]:
                _, group = grams.unique(dim=1, return_inverse=True)
                order = group.sort(stable=True).indices
                ends = torch.cat((group[order][1:] != group[order][:-1], group.new_ones(1, dtype=torch.bool)))
                at = counted[row].nonzero()[:, 0]
                table.is_latest[row, at[order[ends]]] = True
                table.count[row, at] = group.bincount()[group]


class SuffixTable(TextOnDevice):
    """Places in the text where its last tokens stood before.

    Source: Saxena 2023, prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding).
    """

    def look_up(self, longest: int, tokens: int, k: int) -> Tensor:
        """Return what followed the ``k`` places that agree with the longest end of the text, the latest ones first.

        Args:
            longest: tokens compared at most.
            tokens: tokens returned of each place.
            k: places.

        Returns:
            ``[B, k, tokens]`` int64; -1 past the end, or where no place agrees.
        """
        size = self.text.shape[1]
        index = torch.arange(size, device=self.text.device)
        agrees = (index < self.lengths[:, None] - 1).expand_as(self.text)
        score = torch.zeros_like(self.text)
        for back in range(longest):
            last = self.text.gather(1, (self.lengths - 1 - back).clamp(min=0)[:, None])
            earlier = torch.nn.functional.pad(self.text, (back, 0), value=-1)[:, :size]
            agrees = agrees & (earlier == last) & (self.lengths[:, None] > back)
            score += agrees
        ranked = torch.where(score > 0, score * size + index, -1)
        best, at = ranked.topk(min(k, size), dim=1)
        places = at[..., None] + torch.arange(1, tokens + 1, device=at.device)
        found = self.text.gather(1, places.clamp(max=self.capacity).flatten(1)).view(places.shape)
        valid = (best[..., None] >= 0) & (places < self.lengths[:, None, None])
        return torch.nn.functional.pad(torch.where(valid, found, -1), (0, 0, 0, k - found.shape[1]), value=-1)
