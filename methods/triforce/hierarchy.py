"""TriForce's inner loop: a small drafter, checked token by token by the model over a retrieval cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.kv_cache import DenseCache
from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import DraftTree, Verified
from longdecode.engine.token_block import TokenBlock, read_tokens
from longdecode.kernels.draw import gumbel_noise, uniform_noise
from longdecode.methods.partial_attention import PartialAttention, RenewingProposer
from longdecode.methods.partial_cache import PartialCache
from longdecode.methods.triforce.small import Small

Inner = Literal["keyed", "residual", "released"]
_ACCEPT_NOISE = 0x510E527FADE682D1
_RESAMPLE_NOISE = 0x1BE0CD19137E2179


class Hierarchy(RenewingProposer):
    """Draft a chain in rounds; each adds one token, or two where the small drafter's was accepted.

    A round feeds the chain's newest token and one small draft to the model over the retrieval cache, as a block of two.
    A chain that ends short drafts nothing in its last rows.

    Args:
        decoder: the model.
        sequences: the batch.
        verifier: the verifying state.
        method: attention over the retrieval cache.
        state: its state, in a ``PartialCache``, or in a dense one that holds everything.
        small: the lowest level.
        rounds: rounds in a step.
        inner: rule by which a small draft is accepted.
    """

    def __init__(
        self, decoder: Decoder, sequences: Sequences, verifier: DecodeState, method: PartialAttention,
        state: DecodeState, small: Small, rounds: int, inner: Inner,
    ):  # fmt: skip
        self.decoder, self.sequences, self.verifier = decoder, sequences, verifier
        self.method, self.state, self.small, self.rounds, self.inner = method, state, small, rounds, inner
        self.tree = DraftTree.chain(2 * rounds)
        self.states = (state, small.state)
        self.renew(method, state, verifier)
        self.drafted = torch.zeros_like(sequences.counts)
        self.accepted = torch.zeros_like(sequences.counts)

    def propose(self) -> Tensor:
        """See ``Proposer.propose``."""
        sequences, state, active = self.sequences, self.state, self.verifier.active
        state.active.copy_(active)
        self.begin_renewal()
        self.small.begin(active)
        depth, newest = self.tree.depth, sequences.tokens
        count = torch.zeros_like(newest)
        drafts = torch.full((len(newest), depth + 1), -1, dtype=torch.int64, device=newest.device)
        for _ in range(self.rounds):
            small = self.small.logits(newest)[:, None]
            draft = sequences.choose(small, drafts[:, :depth], count)
            drafts.scatter_(1, count[:, None], draft)
            logits = self._check(newest, draft[:, 0])
            first, second = sequences.choose(logits, drafts[:, :depth], count).unbind(dim=1)
            agreed = draft[:, 0] == first
            if self.inner != "keyed":
                agreed, first = self._by_chance(small[:, 0], logits[:, 0], draft[:, 0], drafts, count)
            drafts.scatter_(1, count[:, None], first[:, None])
            after = torch.where(agreed, count + 1, depth)
            drafts.scatter_(1, after[:, None], second[:, None])
            newest = torch.where(agreed, second, first)
            k, v = self._stored()
            state.accept(active * (1 + agreed.long()))
            self.small.go_on(draft[:, 0], agreed, k, v)
            count = count + 1 + agreed
            self.drafted += active
            self.accepted += active & agreed
        self.small.end(newest)
        # The spare last column holds what no row drafted.
        place = torch.arange(depth, device=newest.device)
        return torch.where(place < count[:, None], drafts[:, :depth], -1)

    def keep(self, verified: Verified) -> None:
        """See ``Proposer.keep``."""
        self.end_renewal(verified)
        k, v = self.verifier.dense.window(verified.starts, self.tree.rows)
        if self.state.cache is not self.verifier.cache:
            self.state.cache.take_over(k, v, verified.starts, verified.kept)
        self.small.keep(verified, k, v)

    def counts(self) -> Mapping[str, Tensor]:
        """See ``Proposer.counts``."""
        return {"inner_rounds": self.drafted, "inner_accepted": self.accepted}

    def _check(self, newest: Tensor, draft: Tensor) -> Tensor:
        """Run the newest token and the small draft over the retrieval cache; logits ``[B, 2, V]``."""
        positions = self.state.cache.positions[:, None] + torch.arange(2, device=newest.device)
        block = TokenBlock(torch.stack((newest, draft), dim=1), positions)
        return self.decoder.logits(self.decoder.forward(block, self.state, self.method))

    def _stored(self) -> tuple[Tensor, Tensor]:
        """Return keys and values of the block just run, ``[L, B, Hkv, 2, D]``."""
        cache = self.state.cache
        assert isinstance(cache, DenseCache | PartialCache)
        return read_tokens(cache.k, cache.slot_mapping), read_tokens(cache.v, cache.slot_mapping)

    def _by_chance(
        self, small: Tensor, logits: Tensor, draft: Tensor, drafts: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Accept a draft with ``min(1, r / s)``, ``r`` and ``s`` its probabilities in both levels; else draw another.

        ``released`` draws it from ``r``, so that what is proposed leans to the small drafter; ``residual`` draws from
        ``max(0, r - s)``, so that it has the law ``r``.

        Source: TriForce's code, as its evidence in TokenSwift's comparison describes it; Leviathan et al. 2023.
        """
        sequences, sampling = self.sequences, self.sequences.sampling
        history = sequences.history(drafts[:, :-1], count)
        ours, theirs = (sampling.processed(rows, history).softmax(dim=1) for rows in (logits, small))
        place = sequences.prompt_lengths + sequences.counts + count
        chance = ours.gather(1, draft[:, None]) / theirs.gather(1, draft[:, None])
        agreed = uniform_noise(sequences.seeds + _ACCEPT_NOISE, place, 1) < chance
        law = ours
        if self.inner == "residual":
            rest = (ours - theirs).clamp(min=0)
            law = torch.where(rest.sum(dim=1, keepdim=True) > 0, rest, ours)
        noise = gumbel_noise(sequences.seeds + _RESAMPLE_NOISE, place, law.shape[1])
        drawn = (law.double().log() + noise).argmax(dim=1)
        forced, is_forced = sequences.forced_ahead(1, count)
        first = torch.where(agreed[:, 0], draft, drawn)
        agreed = torch.where(is_forced, draft[:, None] == forced, agreed)
        return agreed[:, 0], torch.where(is_forced[:, 0], forced[:, 0], first)
