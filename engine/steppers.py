"""Steppers: what advances a batch of sequences, one graph-capturable step at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, DenseAttention, Draft
from longdecode.engine.correction import Correction
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import DenseCache, Undo
from longdecode.engine.request import Prompt
from longdecode.engine.sampling import Sampling
from longdecode.engine.sequences import Sequences
from longdecode.engine.token_block import TokenBlock

Work = Callable[[], None]


@dataclass(slots=True)
class Stepper:
    """Plain decoding: a step feeds each row's newest token and chooses its next.

    A step has fixed shapes, never waits for the host, and is the same function whether it runs eagerly or is replayed
    from a CUDA graph.
    """

    decoder: Decoder
    sequences: Sequences
    state: DecodeState
    method: AttentionMethod

    @property
    def states(self) -> tuple[DecodeState, ...]:
        """States whose reads make up the cost of a step."""
        return (self.state,)

    def step(self) -> None:
        """Advance every active row by one token."""
        self._feed("method")

    def works(self, steps: int) -> tuple[Work, ...]:
        """Return the kinds of work that up to ``steps`` steps need; each may become a CUDA graph."""
        return (self.step,)

    def plan(self, works: tuple[Work, ...], steps: int) -> Callable[[int], None]:
        """Return a function that advances one step, given how many are done.

        Args:
            works: what ``works`` returned, or replays of it.
            steps: how many steps there will be at most.
        """
        (step,) = works
        return lambda done: step()

    def _feed(self, reads: str) -> None:
        tokens, positions = self.sequences.tokens[:, None], self.state.cache.positions[:, None]
        block = TokenBlock(tokens, positions, reads="dense" if reads == "dense" else "method")
        hidden = self.decoder.forward(block, self.state, self.method)
        self.state.accept()
        logits = self.decoder.logits(hidden)
        self.sequences.emit(self.sequences.choose(logits), logits)


@dataclass(slots=True)
class CorrectedStepper(Stepper):
    """Decoding with Cache Correction: every ``period`` steps a dense step, or a dense rewrite of the latest tokens."""

    correction: Correction

    def works(self, steps: int) -> tuple[Work, ...]:
        """See ``Stepper.works``."""
        return (self.step, self.correct) if steps >= self.correction.period else (self.step,)

    def plan(self, works: tuple[Work, ...], steps: int) -> Callable[[int], None]:
        """See ``Stepper.plan``; after the last step nothing reads the cache again, so that nothing is rewritten."""
        if len(works) == 1:
            return lambda done: works[0]()
        step, correct = works
        in_place = self.correction.mode == "dense_step"

        def advance(done: int) -> None:
            due = (done + 1) % self.correction.period == 0
            if not (due and in_place):
                step()
            if due and (in_place or done + 1 < steps):
                correct()

        return advance

    def correct(self) -> None:
        """Do the work of one correction: a dense step, or a rewrite after a step."""
        if self.correction.mode == "dense_step":
            self._feed("dense")
        else:
            self.rewrite(self.correction.period)

    def rewrite(self, width: int) -> None:
        """Run the last ``width`` tokens that each active row fed again, densely; what was chosen stays.

        Their keys and values replace those in the cache, layer by layer, so that each layer's queries read the new
        ones. A finished row may have fed fewer tokens: it runs along on any and keeps its cache.
        """
        sequences, cache = self.sequences, self.state.dense
        columns = torch.arange(width, device=cache.device)
        at = (sequences.counts - 1 - width)[:, None] + columns
        fed = sequences.chosen.gather(1, at.clamp(min=0, max=sequences.longest)).clamp(min=0)
        starts = (cache.lengths - width).clamp(min=0)
        block = TokenBlock(fed, starts[:, None] + columns, starts=starts, reads="dense")
        self.decoder.forward(block, self.state, DenseAttention((), self.decoder.config))
        self.state.accept(torch.zeros_like(cache.lengths))
        self.method.after_rewrite(self.state, starts, width)


@dataclass(slots=True)
class SpeculativeStepper(Stepper):
    """Speculative decoding: a method drafts, dense attention verifies the drafts as one block, what agrees stays.

    A drafted token is kept where it is the token that plain decoding would have chosen there, under the same noise, so
    that the output is that of plain decoding. A drafter that keeps every token works in the verifier's cache, where
    the verified keys and values replace the drafted ones. A drafter with a cache of its own takes back the steps whose
    tokens were refused, and feeds its last draft too, so that it has seen all that may be kept.

    Source: Leviathan et al. 2023 (arXiv 2211.17192); Chen et al. 2024, MagicDec (arXiv 2408.11049), self-speculation
    with a sparse KV cache.
    """

    draft: Draft
    draft_state: DecodeState

    @property
    def states(self) -> tuple[DecodeState, ...]:
        """See ``Stepper.states``."""
        return (self.state, self.draft_state)

    @property
    def shares_cache(self) -> bool:
        """Return true where the drafter decodes in the verifier's cache."""
        return self.draft_state.cache is self.state.cache

    def step(self) -> None:
        """Draft, verify and keep 1 to ``draft.tokens + 1`` tokens in every active row."""
        starts = self.state.dense.lengths.clone()
        drafts, saved = self.propose()
        self.accept(starts, drafts, self.verify(starts, drafts), saved)

    def propose(self) -> tuple[Tensor, list[Undo]]:
        """Draft tokens ``[B, G]`` and return what takes each drafting step back (nothing where the cache is shared)."""
        state, sequences = self.draft_state, self.sequences
        state.active.copy_(self.state.active)
        token, drafts, saved = sequences.tokens, list[Tensor](), list[Undo]()
        for ahead in range(self.draft.tokens + (not self.shares_cache)):
            if not self.shares_cache:
                saved.append(state.cache.before_step())
            logits = self.decoder.step(token, state, self.draft.method)
            if ahead == self.draft.tokens:
                break
            before = torch.stack(drafts, dim=1) if drafts else None
            token = sequences.choose(logits[:, None], before, ahead)[:, 0]
            drafts.append(token)
        return torch.stack(drafts, dim=1), saved

    def verify(self, starts: Tensor, drafts: Tensor) -> Tensor:
        """Run the newest token and the drafts as one dense block from ``starts`` on; logits ``[B, G + 1, V]``."""
        tokens = torch.cat((self.sequences.tokens[:, None], drafts), dim=1)
        positions = starts[:, None] + torch.arange(tokens.shape[1], device=starts.device)
        block = TokenBlock(tokens, positions, starts=starts, reads="dense")
        hidden = self.decoder.forward(block, self.state, self.method)
        self.state.accept(torch.zeros_like(starts))
        return self.decoder.logits(hidden)

    def accept(self, starts: Tensor, drafts: Tensor, logits: Tensor, saved: list[Undo]) -> None:
        """Emit the drafts that plain decoding would have chosen and the token after them; forget the others."""
        chosen = self.sequences.choose(logits, drafts)
        agreed = (drafts == chosen[:, :-1]).long().cumprod(dim=1).sum(dim=1)
        self.keep(starts, self.sequences.emit(chosen, logits, agreed + 1), saved)

    def keep(self, starts: Tensor, kept: Tensor, saved: list[Undo]) -> None:
        """Set both caches to hold ``kept`` (``[B]`` int64) tokens from ``starts`` on."""
        cache = self.state.dense
        cache.advance(starts + kept - cache.lengths)
        for step, undo in reversed(list(enumerate(saved))):
            self.draft_state.cache.undo(undo, kept <= step)
        if self.shares_cache:
            self.draft.method.after_rewrite(self.draft_state, starts, self.draft.tokens + 1)


def make_stepper(
    decoder: Decoder, sampling: Sampling, prompt: Prompt, method: AttentionMethod, *, keep_prompt: bool = True
) -> Stepper:
    """Start a method on a prefilled prompt and choose the first token of every row.

    Args:
        keep_prompt: leave the prompt as it is and decode in a copy.

    Raises:
        UnsupportedCellError: the method corrects or verifies in a cache that drops tokens.
    """
    state = method.start(prompt, keep_prompt=keep_prompt)
    sequences = Sequences(prompt.requests, sampling, state.active)
    logits = prompt.logits[:, None]
    sequences.emit(sequences.choose(logits), logits)
    stepper: Stepper
    if (draft := method.draft) is not None:
        cache = _dense(state, f"{method.name} verifies")
        own = draft.method.make_cache(cache.shape) is not None
        draft_state = draft.method.start(prompt) if own else draft.method.decode_in(cache)
        stepper = SpeculativeStepper(decoder, sequences, state, method, draft, draft_state)
    elif (correction := method.correction) is not None:
        _dense(state, f"{method.name}: correction = {correction.mode}")
        stepper = CorrectedStepper(decoder, sequences, state, method, correction)
    else:
        stepper = Stepper(decoder, sequences, state, method)
    return stepper


def _dense(state: DecodeState, what: str) -> DenseCache:
    if not isinstance(state.cache, DenseCache):
        raise UnsupportedCellError(
            f"{what} needs a cache that keeps every token; a {type(state.cache).__name__} drops some"
        )
    return state.cache


def capture(work: Work, device: torch.device) -> Work:
    """Capture work as a CUDA graph and return its replay.

    Capturing records without running. What has to run once beforehand (library set-up, kernel compilation) runs on a
    scratch stepper instead.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        work()
    return graph.replay
