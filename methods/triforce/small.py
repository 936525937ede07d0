"""The lowest level of TriForce's hierarchy: the model itself over a small window, or a smaller model."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, DenseAttention
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.request import Prompt
from longdecode.engine.speculation import Verified
from longdecode.engine.weights import load_decoder


class Small(ABC):
    """Drafts one token at a time, one after each token of a chain that a larger level chooses."""

    state: DecodeState

    def begin(self, active: Tensor) -> None:
        """Begin a chain at the newest token."""
        self.state.active.copy_(active)

    @abstractmethod
    def logits(self, tokens: Tensor) -> Tensor:
        """Feed the chain's newest tokens ``[B]`` and return what follows, ``[B, V]``."""

    @abstractmethod
    def go_on(self, drafts: Tensor, accepted: Tensor, k: Tensor, v: Tensor) -> None:
        """React to a round.

        Args:
            drafts: ``[B]``, the tokens drafted.
            accepted: ``[B]`` bool, where they were.
            k: keys of the tokens fed and drafted as the level above has them, ``[L, B, Hkv, 2, D]``.
            v: values, likewise.
        """

    @abstractmethod
    def end(self, tokens: Tensor) -> None:
        """End the chain; ``tokens`` ``[B]`` are its newest, not yet fed."""

    @abstractmethod
    def keep(self, verified: Verified, k: Tensor, v: Tensor) -> None:
        """Stand after the verified tokens, whose keys and values ``[L, B, Hkv, W, D]`` dense attention computed."""


class SmallWindow(Small):
    """The verifying model over sinks and a window, whose keys and values the levels above replace.

    What a chain writes is taken back from a copy of the window, made when it begins.
    """

    def __init__(self, decoder: Decoder, method: AttentionMethod, prompt: Prompt):
        self.decoder, self.method = decoder, method
        self.state = method.start(prompt)
        cache = self.state.cache
        kept = [*cache.tensors(), *(counter for counter, _ in cache.counters())]
        self.copies = [(tensor, torch.zeros_like(tensor)) for tensor in kept]

    def begin(self, active: Tensor) -> None:
        """See ``Small.begin``."""
        super().begin(active)
        for tensor, copy in self.copies:
            copy.copy_(tensor)

    def logits(self, tokens: Tensor) -> Tensor:
        """See ``Small.logits``."""
        self.starts = self.state.cache.positions.clone()
        return self.decoder.step(tokens, self.state, self.method)

    def go_on(self, drafts: Tensor, accepted: Tensor, k: Tensor, v: Tensor) -> None:
        """See ``Small.go_on``."""
        self.state.cache.take_over(k, v, self.starts, self.state.active * (1 + accepted.long()))

    def end(self, tokens: Tensor) -> None:
        """See ``Small.end``."""

    def keep(self, verified: Verified, k: Tensor, v: Tensor) -> None:
        """See ``Small.keep``."""
        for tensor, copy in self.copies:
            tensor.copy_(copy)
        self.state.cache.take_over(k, v, verified.starts, verified.kept)


class SmallModel(Small):
    """Another checkpoint with the same vocabulary, which reads the whole text.

    Args:
        path: the checkpoint.
        decoder: the model that verifies.
        prompt: what it has read.

    Raises:
        UnsupportedCellError: the vocabularies differ, or the text may outgrow the smaller model's context.
    """

    def __init__(self, path: str, decoder: Decoder, prompt: Prompt):
        self.decoder = load_decoder(path, device=decoder.device, dtype=decoder.dtype)
        ours, theirs = self.decoder.config, decoder.config
        if ours.vocab_size != theirs.vocab_size:
            raise UnsupportedCellError(
                f"drafter {path} has a vocabulary of {ours.vocab_size:,}, the verifier {theirs.vocab_size:,}"
            )
        capacity = prompt.cache.shape.capacity
        if capacity > ours.max_positions:
            raise UnsupportedCellError(
                f"drafter {path} has a context of {ours.max_positions:,} tokens, up to {capacity:,} are needed"
            )
        cache = self.decoder.new_cache(len(prompt.requests), capacity)
        prompts = [torch.tensor(request.prompt_ids) for request in prompt.requests]
        self.decoder.prefill(prompts, cache, 16384)
        self.method = DenseAttention((), ours)
        self.state = DecodeState(cache)

    def logits(self, tokens: Tensor) -> Tensor:
        """See ``Small.logits``."""
        return self.decoder.step(tokens, self.state, self.method)

    def go_on(self, drafts: Tensor, accepted: Tensor, k: Tensor, v: Tensor) -> None:
        """See ``Small.go_on``; a refused draft is forgotten by its length."""
        self.decoder.step(drafts, self.state, self.method)
        self.state.cache.advance(-(self.state.active & ~accepted).long())

    def end(self, tokens: Tensor) -> None:
        """See ``Small.end``; the newest token may be kept, so that it is fed too."""
        self.decoder.step(tokens, self.state, self.method)

    def keep(self, verified: Verified, k: Tensor, v: Tensor) -> None:
        """See ``Small.keep``."""
        self.state.dense.stand_at(verified.starts + verified.kept)
