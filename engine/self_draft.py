"""Any attention method as its own drafter: the model drafts a chain with it, step by step."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import Undo
from longdecode.engine.prefill import PrefillObserver
from longdecode.engine.request import Prompt
from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import DraftTree, Proposer, Speculation, Verified


class SelfDraft(Speculation):
    """The verifying model drafts ``tokens`` tokens with ``method`` instead of dense attention.

    They form a chain. With ``branches`` over 1 each of them stands beside the next best candidates for its place, which
    nothing follows: a miss that the drafter ranked second costs the rest of the chain, not the token.

    Source: Chen et al. 2024, MagicDec (arXiv 2408.11049), self-speculation with a sparse KV cache.
    """

    method: AttentionMethod

    def __init__(self, method: AttentionMethod, tokens: int, branches: int = 1):
        self.method, self.branches = method, branches
        chain = [max(0, 1 + (depth - 1) * branches) for depth in range(tokens)]
        self.tree = DraftTree(tuple(row for row in chain for _ in range(branches)))

    @property
    def passes(self) -> int:
        """See ``Speculation.passes``; a drafter that must feed its last draft too takes one more."""
        return self.tokens

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """See ``Speculation.traffic``."""
        one = self.method.traffic(context_tokens, bytes_per_element)
        return Traffic(self.tokens * one.kv_bytes, self.tokens * one.metadata_bytes, one.at_most)

    def observers(self) -> tuple[PrefillObserver, ...]:
        """See ``Speculation.observers``."""
        return self.method.observers()

    def start(self, decoder: Decoder, sequences: Sequences, state: DecodeState, prompt: Prompt) -> SelfDrafter:
        """See ``Speculation.start``.

        Raises:
            UnsupportedCellError: the draft has branches and the drafter's cache takes no verified tokens.
        """
        own = self.method.make_cache(state.cache.shape) is not None
        draft_state = self.method.start(prompt) if own else self.method.decode_in(state.cache)
        drafter = SelfDrafter(decoder, sequences, state, self.method, draft_state, self.tree, self.branches)
        if self.branches > 1 and not (drafter.shares_cache or drafter.takes_over):
            raise UnsupportedCellError(
                f"{self.method.name} drops tokens by scores of its own, so that it must be fed what is kept: a draft "
                "with branches may keep what it was not fed"
            )
        return drafter


class SelfDrafter(Proposer):
    """Draft in the verifier's cache, or in the method's own.

    In the verifier's cache the verified keys and values replace the drafted ones. A cache of the drafter's own takes
    back the steps whose tokens were refused, and takes the verified keys and values over in place of the others. Where
    it cannot (what it drops depends on scores of its own), the last draft is fed too, so that it has seen all that may
    be kept.
    """

    def __init__(
        self, decoder: Decoder, sequences: Sequences, verifier: DecodeState, method: AttentionMethod,
        state: DecodeState, tree: DraftTree, branches: int = 1,
    ):  # fmt: skip
        self.decoder, self.sequences, self.verifier = decoder, sequences, verifier
        self.method, self.state, self.tree, self.branches = method, state, tree, branches
        self.states = (state,)
        self.shares_cache = state.cache is verifier.cache
        """The drafter decodes in the verifier's cache."""
        self.takes_over = not self.shares_cache and state.cache.takes_over(tree.depth + 1)
        """The drafter's own cache takes the verified keys and values."""

    def propose(self) -> Tensor:
        """See ``Proposer.propose``."""
        state, sequences = self.state, self.sequences
        state.active.copy_(self.verifier.active)
        token, drafts, nodes = sequences.tokens, list[Tensor](), list[Tensor]()
        self.saved: list[Undo] = []
        for ahead in range(self.tree.depth + (not self.shares_cache and not self.takes_over)):
            if not self.shares_cache:
                self.saved.append(state.cache.before_step())
            logits = self.decoder.step(token, state, self.method)
            if ahead == self.tree.depth:
                break
            before = torch.stack(drafts, dim=1) if drafts else None
            nodes.append(sequences.candidates(logits[:, None], self.branches, before, ahead))
            token = nodes[-1][:, 0]
            drafts.append(token)
        return torch.cat(nodes, dim=1)

    def keep(self, verified: Verified) -> None:
        """See ``Proposer.keep``."""
        for step, undo in reversed(list(enumerate(self.saved))):
            self.state.cache.undo(undo, verified.kept <= step)
        if self.takes_over:
            k, v = self.verifier.dense.window(verified.starts, self.tree.depth + 1)
            self.state.cache.take_over(k, v, verified.starts, verified.kept)
        if self.shares_cache:
            self.method.after_rewrite(self.state, verified.starts, self.tree.rows)
