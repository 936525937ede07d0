"""The sequences of one batch on the device: what is forced, what was chosen, and who is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longdecode.engine.request import Request
from longdecode.engine.sampling import Sampling
from longdecode.kernels.draw import DrawRule, Progress, draw, record_tokens

if TYPE_CHECKING:
    from longdecode.engine.speculation import PlacedTree


class Sequences:
    """Continuations of a batch of requests, in tensors of fixed shape.

    Token ``i`` of a row's continuation is forced while ``i`` is below the row's forced count and drawn from then on. A
    row that is done stays in the batch and writes to a spare last column only. Nothing here waits for the device, so
    that a step can be captured as a CUDA graph.

    ``tokens`` ``[B]`` is each row's newest token, not yet fed. ``steps`` ``[B]`` counts the emissions in which a row
    was active. ``active`` ``[B]`` is shared with the decode state.

    Args:
        among: tables are as wide as these need, of which ``requests`` are some; as ``requests`` where left out.
    """

    def __init__(self, requests: Sequence[Request], sampling: Sampling, active: Tensor, among: Sequence[Request] = ()):
        self.sampling = sampling
        self.active = active
        device, batch, among = active.device, len(requests), among or requests
        self.longest = max(request.continuation_tokens for request in among)
        self.scores_forced = any(request.forced_ids for request in among)
        self.generates = any(request.max_new_tokens for request in among)
        self.can_stop = any(request.stop_ids and request.max_new_tokens for request in among)

        def table(of: Callable[[Request], Iterable[int]], fill: int) -> Tensor:
            width = max(1, *(len(tuple(of(request))) for request in among))
            rows = [[*of(request), *[fill] * width][:width] for request in requests]
            return torch.tensor(rows, device=device)

        def column(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self.tokens = column([0] * batch)
        self.counts = column([0] * batch)
        self.steps = column([0] * batch)
        self.seeds = column([request.seed for request in requests])
        self.prompt_lengths = column([len(request.prompt_ids) for request in requests])
        self.totals = column([request.continuation_tokens for request in requests])
        self.forced_counts = column([len(request.forced_ids) for request in requests])
        self.forced = table(lambda request: request.forced_ids, 0)
        self.stops = table(lambda request: sorted(request.stop_ids), -1)
        self.history_tokens = sampling.history_tokens
        self.text = torch.full((batch, self.history_tokens + self.longest + 1), -1, dtype=torch.int64, device=device)
        self.chosen = self.text[:, self.history_tokens :]
        self.window = torch.arange(self.history_tokens, device=device)
        if self.history_tokens:
            for row, request in enumerate(requests):
                tail = request.prompt_ids[-self.history_tokens :]
                self.text[row, self.history_tokens - len(tail) : self.history_tokens] = column(list(tail))
        self.logprobs = torch.zeros(batch, self.longest + 1, dtype=torch.float32, device=device)
        self.greedy = torch.zeros(batch, self.longest + 1, dtype=torch.bool, device=device)
        self.alternatives = Alternatives(requests, self.longest, device, among) if self.scores_forced else None
        self.active.copy_(self.totals > 0)
        self.progress = Progress(
            self.chosen, self.counts, self.steps, self.tokens, self.active, self.totals, self.forced_counts,
            self.stops if self.can_stop else None,
        )  # fmt: skip

    def choose(self, logits: Tensor, drafts: Tensor | None = None, ahead: int | Tensor = 0) -> Tensor:
        """Choose the tokens that follow a block; forced ones stand where they are due.

        Args:
            logits: ``[B, T, V]`` float32; row ``t`` follows the newest token and the first ``ahead + t`` drafts.
            drafts: ``[B, ahead + T - 1]`` int64 or wider, or ``None`` where that is nothing.
            ahead: drafts before the block's first row; of each row ``[B]`` int64 where they differ.

        Returns:
            ``[B, T]`` int64.
        """
        width = logits.shape[1]
        return self._best(logits, 1, self._index(width, ahead), self.history(drafts, ahead, width))[..., 0]

    def choose_in_tree(self, placed: PlacedTree, nodes: Tensor, logits: Tensor) -> Tensor:
        """Choose the token that follows each row of a block, ``[B, T]`` int64.

        Args:
            placed: the block's shape.
            nodes: ``[B, T - 1]`` int64, the drafted tokens.
            logits: ``[B, T, V]`` float32.
        """
        history = None
        if self.history_tokens:
            history = self.history_of(placed, torch.cat((self.tokens[:, None], nodes), dim=1))
        return self._best(logits, 1, self.counts[:, None] + placed.depths, history)[..., 0]

    def forced_ahead(self, width: int, ahead: int | Tensor = 0) -> tuple[Tensor, Tensor]:
        """Return the forced tokens of the next ``width`` places, ``[B, width]``, and where tokens are forced (bool)."""
        places = self._index(width, ahead)
        return self._forced_at(places), places < self.forced_counts[:, None]

    def candidates(self, logits: Tensor, count: int, drafts: Tensor | None, ahead: int) -> Tensor:
        """Return ``count`` tokens for the place after ``ahead`` drafts, best first: ``choose``'s, then the next.

        Args:
            logits: ``[B, 1, V]``.
            count: tokens.
            drafts: ``[B, ahead]`` int64, ``None`` where ``ahead`` is 0.
            ahead: drafts before the place.

        Returns:
            ``[B, count]`` int64.
        """
        return self._best(logits.float(), count, self._index(1, ahead), self.history(drafts, ahead))[:, 0]

    def rank(self, logits: Tensor, count: int, *, noisy: bool, penalised_rows: int | None = None) -> Tensor:
        """Return the tokens that rank first at the next places, best first, ``[B, T, count]`` int64.

        Args:
            logits: ``[B, T, V]``, row ``t`` for the ``t``-th place after the newest token.
            noisy: rank under the noise that the draw at each place will use, instead of by probability.
            penalised_rows: rows that the penalty applies to, from the first on; all where left out.
        """
        batch, width, vocab = logits.shape
        flat, history = logits.float().reshape(-1, vocab), self.history()
        if history is not None:
            history = history[:, None].expand(-1, width, -1)
            if penalised_rows is not None:
                rows = torch.arange(width, device=logits.device) < penalised_rows
                history = torch.where(rows[None, :, None], history, -1)
            history = history.reshape(-1, self.history_tokens)
        if noisy:
            best = self._drawn(flat, count, self._index(width), history)
        else:
            best = draw(flat, count, DrawRule(penalty=self.sampling.penalty), None, history)
        return best.view(batch, width, count)

    def history(self, drafts: Tensor | None = None, ahead: int | Tensor = 0, width: int = 1) -> Tensor | None:
        """Return the tokens before each of the next ``width`` draws, ``[B * width, W]``, or after ``ahead`` ``drafts``.

        ``None`` where the sampling depends on none.
        """
        if not self.history_tokens:
            return None
        places = self.window
        window = self.text.gather(1, self.counts[:, None] + places)
        if drafts is not None:
            window = torch.cat((window, drafts), dim=1)
        if isinstance(ahead, int):
            rows = window.unfold(1, self.history_tokens, 1)[:, ahead : ahead + width]
        else:
            first = ahead[:, None] + torch.arange(width, device=ahead.device)
            rows = window.gather(1, (first[..., None] + places).flatten(1))
        return rows.reshape(-1, self.history_tokens)

    def history_of(self, placed: PlacedTree, tokens: Tensor) -> Tensor | None:
        """Return the tokens before the draw after each row of a tree, ``[B * T, W]``; ``tokens`` ``[B, T]``."""
        window = self.history()
        if window is None:
            return None
        before = torch.cat((window, tokens), dim=1)
        return before[:, placed.history_index(self.history_tokens)].reshape(-1, self.history_tokens)

    def emit(self, tokens: Tensor, logits: Tensor, counts: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """Record the first ``counts`` chosen tokens of each active row, up to a stop token or the row's total.

        Args:
            tokens: ``[B, T]`` int64.
            logits: ``[B, T, V]`` float32 that they were chosen from.
            counts: ``[B]`` int64; all ``T`` where left out.
            rows: ``[B, T]`` int64, the rows of a longer block's logits; their order where left out.

        Returns:
            Tokens recorded, ``[B]`` int64, 0 in rows that were not active.
        """
        index = self._index(tokens.shape[1]).clone() if self.scores_forced else None  # counts move on
        recorded, taken = record_tokens(self.progress, tokens, counts)
        if index is not None:
            place = torch.where(taken, index, self.longest)
            if rows is not None:
                logits = logits.gather(1, rows[..., None].expand(-1, -1, logits.shape[2]))
            # A finished row may hold anything, no token among it.
            logit = logits.gather(2, torch.where(taken, tokens, 0)[..., None])[..., 0]
            total = logits.logsumexp(dim=2)
            self.logprobs.scatter_(1, place, logit - total)
            if self.alternatives is not None:
                self.alternatives.record(place, logits, total)
            self.greedy.scatter_(1, place, logit >= logits.amax(dim=2))
        return recorded

    def _best(self, logits: Tensor, count: int, places: Tensor, history: Tensor | None) -> Tensor:
        """Choose ``count`` tokens for ``places`` ``[B, T]`` of the continuation, ``[B, T, count]``, best first.

        A forced token is the best of its place.
        """
        batch, width, vocab = logits.shape
        if not self.generates:
            return self._forced_at(places)[..., None].expand(-1, -1, count)
        best = self._drawn(logits.reshape(-1, vocab), count, places, history).view(batch, width, count)
        if not self.scores_forced:
            return best
        first = torch.where(places < self.forced_counts[:, None], self._forced_at(places), best[..., 0])
        return torch.cat((first[..., None], best[..., 1:]), dim=2)

    def _drawn(self, logits: Tensor, count: int, places: Tensor, history: Tensor | None) -> Tensor:
        """The sampling's ``count`` best tokens ``[B * T, count]`` of logits ``[B * T, V]`` at ``places`` ``[B, T]``."""
        seeds = positions = self.seeds
        if self.sampling.temperature > 0:
            seeds = seeds[:, None].expand(places.shape).reshape(-1)
            positions = (self.prompt_lengths[:, None] + places).reshape(-1)
        return self.sampling.best(logits, count, seeds, positions, history)

    def _forced_at(self, places: Tensor) -> Tensor:
        """The forced tokens at ``places`` ``[B, T]``, any where none is forced."""
        return self.forced.gather(1, places.clamp(max=self.forced.shape[1] - 1))

    def _index(self, width: int, ahead: int | Tensor = 0) -> Tensor:
        """Places in the continuation of ``width`` tokens, ``[B, T]``, the first ``ahead`` places after the next."""
        if isinstance(ahead, int) and width == 1 and not ahead:
            return self.counts[:, None]
        first = self.counts + ahead
        return first[:, None] + torch.arange(width, device=self.counts.device)


class Alternatives:
    """Log-probabilities of other tokens than the forced ones: the likeliest, and those that the requests name.

    Args:
        requests: the batch.
        longest: places of the longest continuation; one more is for rows that are done.
        device: where the logits are.
        among: see ``Sequences``.
    """

    def __init__(self, requests: Sequence[Request], longest: int, device: torch.device, among: Sequence[Request]):
        batch = len(requests)
        self.top_tokens = max(request.top_tokens for request in among)
        self.top_ids = torch.zeros(batch, longest + 1, self.top_tokens, dtype=torch.int64, device=device)
        self.top_logprobs = torch.zeros(batch, longest + 1, self.top_tokens, dtype=torch.float32, device=device)
        width = max(0 if other.compared_ids is None else other.compared_ids.shape[1] for other in among)
        self.compared_ids = torch.zeros(batch, longest + 1, width, dtype=torch.int64, device=device)
        for row, request in enumerate(requests):
            if (ids := request.compared_ids) is not None:
                self.compared_ids[row, : ids.shape[0], : ids.shape[1]] = ids.to(device)
        self.compared_logprobs = torch.zeros(batch, longest + 1, width, dtype=torch.float32, device=device)

    def record(self, place: Tensor, logits: Tensor, total: Tensor) -> None:
        """Keep what is asked for at ``place`` ``[B, T]`` of logits ``[B, T, V]`` whose log-sum-exp is ``total``."""
        if self.top_tokens:
            values, ids = logits.topk(self.top_tokens, dim=2)
            at = place[..., None].expand(ids.shape)
            self.top_ids.scatter_(1, at, ids)
            self.top_logprobs.scatter_(1, at, values - total[..., None])
        if width := self.compared_ids.shape[2]:
            at = place[..., None].expand(*place.shape, width)
            self.compared_logprobs.scatter_(1, at, logits.gather(2, self.compared_ids.gather(1, at)) - total[..., None])

    def of(self, row: int, request: Request) -> dict[str, Tensor | None]:
        """Return a row's results as a completion holds them: copies, since another request may take the row."""
        places = len(request.forced_ids)
        compared = None if request.compared_ids is None else request.compared_ids.shape[1]
        top, named = (row, slice(places)), (row, slice(places), slice(compared))
        return {
            "top_ids": self.top_ids[top].to("cpu", copy=True) if request.top_tokens else None,
            "top_logprobs": self.top_logprobs[top].to("cpu", copy=True) if request.top_tokens else None,
            "compared_logprobs": self.compared_logprobs[named].to("cpu", copy=True) if compared else None,
        }
