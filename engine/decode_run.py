"""One batch's decoding on the device: the step, its static buffers, and its capture as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, DecodeState
from longdecode.engine.correction import Correction
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.request import Prompt
from longdecode.engine.sampling import Sampling

WARMUP_STEPS = 2


class DecodeRun:
    """The tensors one decode keeps on the device, and the step that moves them.

    Token ``i`` of a row's continuation is forced while ``i`` is below the row's forced count and drawn from then on. A
    step feeds the token chosen last and chooses the next; it has fixed shapes, never waits for the host, and is the
    same function whether it runs eagerly or is replayed from a graph. A row that is done stays in the batch and writes
    to a spare last column only.
    """

    def __init__(self, decoder: Decoder, sampling: Sampling, prompt: Prompt, method: AttentionMethod):
        requests = prompt.requests
        self.decoder = decoder
        self.sampling = sampling
        self.method = method
        self.state: DecodeState = method.start(prompt.cache)
        self.correction = method.correction
        if self.correction is not None and self.state.cache.evicts:
            raise UnsupportedCellError(
                f"{method.name}: correction = {self.correction.mode} needs a cache that keeps every token; the method "
                f"decodes in a {type(self.state.cache).__name__}, which drops some"
            )
        self.longest = max(request.continuation_tokens for request in requests)
        self.scores_forced = any(request.forced_ids for request in requests)
        self.generates = any(request.max_new_tokens for request in requests)
        self.can_stop = any(request.stop_ids and request.max_new_tokens for request in requests)
        self.tokens = self._ints([0] * len(requests))
        self.chosen_count = self._ints([0] * len(requests))
        self.seeds = self._ints([request.seed for request in requests])
        self.totals = self._ints([request.continuation_tokens for request in requests])
        self.forced_counts = self._ints([len(request.forced_ids) for request in requests])
        self.forced = self._table([request.forced_ids for request in requests], 0)
        self.stops = self._table([tuple(sorted(request.stop_ids)) for request in requests], -1)
        spare = self.longest
        self.chosen = torch.full((len(requests), spare + 1), -1, dtype=torch.int64, device=decoder.device)
        self.logprobs = torch.zeros(len(requests), spare + 1, dtype=torch.float32, device=decoder.device)
        self.greedy = torch.zeros(len(requests), spare + 1, dtype=torch.bool, device=decoder.device)
        self.state.active.copy_(self.totals > 0)
        self.choose(prompt.logits)

    def step(self) -> None:
        """Feed each active row's last token and choose its next."""
        self.choose(self.decoder.step(self.tokens, self.state, self.method))

    def dense_step(self) -> None:
        """A step in which all heads read everything."""
        self.state.dense = True
        try:
            self.step()
        finally:
            self.state.dense = False

    def rewrite(self, width: int) -> None:
        """Run the last ``width`` tokens that each active row fed again as one dense chunk; what was chosen stays.

        An active row has fed one token a step, so that all of them have fed as many.
        """
        at = (self.chosen_count - 1)[:, None] - width + torch.arange(width, device=self.tokens.device)
        # A finished row may have fed fewer tokens: it runs along on any and keeps its cache.
        fed = self.chosen.gather(1, at.clamp(min=0, max=self.longest))
        self.decoder.rewrite(fed.clamp(min=0), self.state)

    def correct(self, correction: Correction) -> None:
        """The work of one correction: a dense step, or a rewrite after a step."""
        if correction.mode == "dense_step":
            self.dense_step()
        else:
            self.rewrite(correction.period)

    def choose(self, logits: Tensor) -> None:
        """Choose each active row's next token from its logits ``[B, V]`` float32 and record it."""
        active, state = self.state.active, self.state
        forced_now = self.chosen_count < self.forced_counts
        at = self.chosen_count.clamp(max=self.forced.shape[1] - 1)[:, None]
        token = self.forced.gather(1, at)[:, 0]
        if self.generates:
            drawn = self.sampling.choose(logits, self.seeds, state.cache.positions)
            token = torch.where(forced_now, token, drawn)
        slot = torch.where(active, self.chosen_count, self.longest)[:, None]
        self.chosen.scatter_(1, slot, token[:, None])
        if self.scores_forced:
            logit = logits.gather(1, token[:, None])
            self.logprobs.scatter_(1, slot, logit - logits.logsumexp(dim=1, keepdim=True))
            self.greedy.scatter_(1, slot, logit >= logits.amax(dim=1, keepdim=True))
        self.tokens.copy_(torch.where(active, token, self.tokens))
        self.chosen_count.add_(active)
        done = self.chosen_count >= self.totals
        if self.can_stop:
            done |= ~forced_now & (token[:, None] == self.stops).any(dim=1)
        active.logical_and_(~done)

    def advance(self, steps: int, graph: bool) -> Callable[[int], None]:
        """What takes the run through its next step, given how many it has done; ``steps`` is how many there will be.

        Every ``period`` steps a correction is due: in place of the step or after it. After the last step nothing reads
        the cache again, so that nothing is rewritten. With ``graph`` each kind of work is a CUDA graph of its own.
        """
        prepare = self.capture if graph else _as_it_is
        step, correction = prepare(self.step), self.correction
        if correction is None or steps < correction.period:
            return lambda done: step()
        in_place = correction.mode == "dense_step"
        corrected = prepare(lambda: self.correct(correction))

        def run(done: int) -> None:
            due = (done + 1) % correction.period == 0
            if not (due and in_place):
                step()
            if due and (in_place or done + 1 < steps):
                corrected()

        return run

    def capture(self, work: Callable[[], None] | None = None) -> Callable[[], None]:
        """Capture ``step``, or other ``work`` of this run, as a CUDA graph and return its replay.

        Capturing records without running, so this run's state stays untouched; what has to run once beforehand (library
        set-up, kernel compilation) runs on a scratch run instead, see ``warm_up``.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.decoder.device), torch.cuda.graph(graph):
            (work or self.step)()
        return graph.replay

    def _ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.decoder.device)

    def _table(self, rows: list[tuple[int, ...]], fill: int) -> Tensor:
        """Ragged rows as ``[B, longest]`` int64, at least one column wide."""
        width = max(1, *map(len, rows))
        padded = [[*row, *[fill] * (width - len(row))] for row in rows]
        return torch.tensor(padded, dtype=torch.int64, device=self.decoder.device)


def _as_it_is(work: Callable[[], None]) -> Callable[[], None]:
    return work


def warm_up(decoder: Decoder, sampling: Sampling, prompt: Prompt, method: AttentionMethod) -> None:
    """Run a few steps of a scratch copy, and a correction where one will be due, as graph capture asks for; drop it."""
    device = decoder.device
    scratch = DecodeRun(decoder, sampling, prompt, method)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARMUP_STEPS):
            scratch.step()
        if scratch.correction is not None and scratch.longest > scratch.correction.period:
            scratch.correct(scratch.correction)
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
