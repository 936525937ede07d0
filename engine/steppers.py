"""Steppers: what advances a batch of sequences, one graph-capturable step at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, DenseAttention
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import DenseCache
from longdecode.engine.request import Prompt, Request
from longdecode.engine.sampling import Sampling
from longdecode.engine.sequences import Sequences
from longdecode.engine.token_block import TokenBlock

if TYPE_CHECKING:
    from longdecode.engine.correction import Correction
    from longdecode.engine.pace import Pace
    from longdecode.engine.speculation import AcceptRule, PlacedTree, Proposer

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

        def advance(done: int) -> None:
            for kind in self.due(done, steps):
                works[kind]()

        return advance

    def due(self, done: int, steps: int) -> tuple[int, ...]:
        """Return which of ``works`` the next of ``steps`` steps takes, in their order, when so many are done."""
        return (0,)

    def _feed(self, reads: str) -> None:
        tokens = self.sequences.tokens
        if reads == "dense":
            block = TokenBlock(tokens[:, None], self.state.cache.positions[:, None], reads="dense")
        else:
            block = self.method.step_block(tokens, self.state)
        hidden = self.decoder.forward(block, self.state, self.method)
        self.state.accept()
        logits = self.decoder.logits(hidden[:, -1:])
        self.sequences.emit(self.sequences.choose(logits), logits)


@dataclass(slots=True)
class CorrectedStepper(Stepper):
    """Decoding with Cache Correction: every ``period`` steps a dense step, or a dense rewrite of the latest tokens."""

    correction: Correction

    def works(self, steps: int) -> tuple[Work, ...]:
        """See ``Stepper.works``."""
        return (self.step, self.correct) if steps >= self.correction.period else (self.step,)

    def due(self, done: int, steps: int) -> tuple[int, ...]:
        """See ``Stepper.due``; after the last step nothing reads the cache again, so that nothing is rewritten."""
        if (done + 1) % self.correction.period:
            return (0,)
        if self.correction.mode == "dense_step":
            return (1,)
        return (0, 1) if done + 1 < steps else (0,)

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
    """Speculative decoding: a proposer drafts a tree of tokens, dense attention verifies it as one block.

    Of the tree a path is accepted, and one token more. Under the exact rule that path is what plain decoding would have
    chosen under the same noise, so that the output is that of plain decoding. With a ``pace`` some steps verify the
    first rows of the tree alone, the second of the ``trees``.

    Source: Leviathan et al. 2023 (arXiv 2211.17192); Cai et al. 2024, Medusa (arXiv 2401.10774), tree attention.
    """

    proposer: Proposer
    trees: tuple[PlacedTree, ...]
    rule: AcceptRule
    pace: Pace | None

    @property
    def states(self) -> tuple[DecodeState, ...]:
        """See ``Stepper.states``."""
        return (self.state, *self.proposer.states)

    def step(self) -> None:
        """Draft, verify and keep 1 to ``depth + 1`` tokens in every active row."""
        self._verify_rows(self.trees[0])

    def step_narrow(self) -> None:
        """Do a step that verifies the narrow tree's rows alone."""
        self._verify_rows(self.trees[1])

    def refresh(self) -> None:
        """Do a step whose verification the proposer watches layer by layer."""
        self.proposer.refreshing = True
        self.step()
        self.proposer.refreshing = False

    def works(self, steps: int) -> tuple[Work, ...]:
        """See ``Stepper.works``."""
        return self.step, *[self.step_narrow] * (self.pace is not None), *[self.refresh] * self.proposer.refreshes

    def due(self, done: int, steps: int) -> tuple[int, ...]:
        """See ``Stepper.due``."""
        renewing = self.proposer.refreshes and self.proposer.refresh_due()
        narrow = self.pace is not None and self.pace.takes_narrow(renewing)
        return (len(self.works(steps)) - 1 if renewing else int(narrow),)

    def _verify_rows(self, placed: PlacedTree) -> None:
        starts = self.state.dense.lengths.clone()
        nodes = self.proposer.propose()[:, : placed.tree.rows - 1]
        self.accept(placed, starts, nodes, *self.verify(placed, starts, nodes))

    def verify(self, placed: PlacedTree, starts: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Run the newest token and the drafts as one dense block from ``starts`` on.

        Returns:
            Hidden states ``[B, T, H]`` and logits ``[B, T, V]``.
        """
        tokens = torch.cat((self.sequences.tokens[:, None], nodes.clamp(min=0)), dim=1)
        positions = starts[:, None] + placed.depths
        block = TokenBlock(tokens, positions, placed.mask, starts, reads="dense")
        method = _Watched(self.proposer, self.decoder) if self.proposer.refreshing else self.method
        hidden = self.decoder.forward(block, self.state, method)
        self.state.accept(torch.zeros_like(starts))
        return hidden, self.decoder.logits(hidden)

    def accept(self, placed: PlacedTree, starts: Tensor, nodes: Tensor, hidden: Tensor, logits: Tensor) -> None:
        """Emit the path that the rule accepts, keep its keys and values, and tell the proposer."""
        from longdecode.engine.acceptance import accept  # plain decoding has no use for it
        from longdecode.engine.speculation import Verified

        accepted = accept(placed, nodes, logits, self.sequences, self.rule)
        kept = self.sequences.emit(accepted.chosen, logits, accepted.counts, accepted.rows)
        cache = self.state.dense
        if placed.mask is not None:
            cache.compact(starts, accepted.rows)
        cache.advance(starts + kept - cache.lengths)
        self.proposer.keep(Verified(starts, accepted.rows, accepted.chosen, kept, hidden))


class _Watched(DenseAttention):
    """Dense attention of a verification that a proposer watches."""

    def __init__(self, proposer: Proposer, decoder: Decoder):
        super().__init__((), decoder.config)
        self.proposer = proposer

    def attend_all(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Attend, then show the layer to the proposer."""
        out = super().attend_all(layer, q, state)
        self.proposer.see_layer(layer, q, state)
        return out


def make_stepper(
    decoder: Decoder, sampling: Sampling, prompt: Prompt, method: AttentionMethod, *, keep_prompt: bool = True,
    among: Sequence[Request] = (),
) -> Stepper:  # fmt: skip
    """Start a method on a prefilled prompt and choose the first token of every row.

    Args:
        keep_prompt: leave the prompt as it is and decode in a copy.
        among: see ``Sequences``.

    Raises:
        UnsupportedCellError: the method corrects or verifies in a cache that does not keep every token on the device.
    """
    state = method.start(prompt, keep_prompt=keep_prompt)
    sequences = Sequences(prompt.requests, sampling, state.active, among)
    logits = prompt.logits[:, None]
    sequences.emit(sequences.choose(logits), logits)
    stepper: Stepper
    if (draft := method.draft) is not None:
        from longdecode.engine.pace import Pace
        from longdecode.engine.speculation import PlacedTree

        _dense(state, f"{method.name} verifies")
        proposer = draft.start(decoder, sequences, state, prompt)
        trees = tuple(PlacedTree(tree, decoder.device) for tree in (draft.tree, draft.narrow) if tree is not None)
        for placed in trees:
            placed.history_index(sequences.history_tokens)
        pace = Pace(sequences) if draft.narrow is not None else None
        stepper = SpeculativeStepper(decoder, sequences, state, method, proposer, trees, draft.rule, pace)
    elif (correction := method.correction) is not None:
        _dense(state, f"{method.name}: correction = {correction.mode}")
        stepper = CorrectedStepper(decoder, sequences, state, method, correction)
    else:
        stepper = Stepper(decoder, sequences, state, method)
    return stepper


def _dense(state: DecodeState, what: str) -> DenseCache:
    if not isinstance(state.cache, DenseCache):
        raise UnsupportedCellError(
            f"{what} needs a cache that keeps every token on the device; a {type(state.cache).__name__} does not"
        )
    return state.cache


@contextmanager
def warming_up(device: torch.device) -> Iterator[None]:
    """Run what is inside on a side stream, as the warm-up of what is captured afterwards has to."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)


def capture(work: Work, device: torch.device) -> Work:
    """Capture work as a CUDA graph and return its replay.

    Capturing records without running. What has to run once beforehand (library set-up, kernel compilation) runs on a
    scratch stepper instead.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        work()
    return graph.replay
