"""TriForce: a retrieval cache drafts for the full one, and something smaller for the retrieval cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import PrefillObserver
from longdecode.engine.request import Prompt
from longdecode.engine.self_draft import SelfDrafter
from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import DraftTree, Proposer, Speculation, Verified
from longdecode.methods.partial_attention import PartialAttention, RenewingProposer
from longdecode.methods.registry import get_method
from longdecode.methods.speculative import SpeculativeMethod
from longdecode.methods.triforce.hierarchy import Hierarchy, Inner
from longdecode.methods.triforce.small import Small, SmallModel, SmallWindow


@dataclass(frozen=True, slots=True)
class TriForceParams:
    """Knobs of TriForce."""

    drafter: str = "streaming"
    rounds: Annotated[int, Field(ge=1, le=16)] = 3
    inner: Inner = "keyed"
    chunk: Annotated[int, Field(ge=1)] = 8
    window: Annotated[int, Field(ge=32)] = 256
    sinks: Annotated[int, Field(ge=0)] = 16


class TriForce(SpeculativeMethod):
    """The model over ``budget`` tokens in chunks drafts a chain, dense attention verifies it.

    The chunks are those whose mean key the last query scores highest; new tokens take the place of the lowest, and the
    cache is built anew before the first chunk would go. The chain grows in ``rounds`` of one or two tokens, the second
    one where a small drafter's guess was accepted: ``streaming`` is the model over a window, a path another checkpoint,
    ``none`` leaves the level out.

    Source: Sun et al. 2024, TriForce (arXiv 2404.11912); TokenSwift (arXiv 2502.18890), table 3, for the renewal;
    deviations in card.yaml.
    """

    name: ClassVar[str] = "triforce"
    Params: ClassVar[type] = TriForceParams
    params: TriForceParams

    def __init__(self, params: TriForceParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        if params.window - params.sinks < 2 * params.rounds + 1:
            raise ConfigError(
                f"triforce: a window of {params.window} tokens, {params.sinks} of them sinks, is shorter than the "
                f"{2 * params.rounds + 1} tokens of a step"
            )
        self.draft = TriForceDraft(params, config, budget_tokens)

    @classmethod
    def minimum_budget(cls, params: TriForceParams) -> tuple[int, str]:
        """Return the first chunk and the tokens that two steps may add before the cache is built anew."""
        most = 2 * params.rounds + 1
        return params.chunk + 2 * most, f"a chunk of {params.chunk} and two steps of {most} tokens"


class TriForceDraft(Speculation):
    """A chain of ``2 * rounds`` tokens."""

    method: PartialAttention

    def __init__(self, params: TriForceParams, config: ModelConfig, budget: int):
        self.params, self.config = params, config
        self.tree = DraftTree.chain(2 * params.rounds)
        self.method = PartialAttention(config, budget, params.chunk, params.chunk, self.tree.depth)
        self.window = None
        if params.drafter == "streaming":
            self.window = get_method("streaming").from_budget(params.window, config, sinks=params.sinks)

    @property
    def passes(self) -> int:
        """See ``Speculation.passes``: those of the model itself."""
        return self.tree.depth if self.params.drafter == "none" else self.params.rounds * (1 + bool(self.window))

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """See ``Speculation.traffic``."""
        chain = self.tree.depth if self.params.drafter == "none" else self.params.rounds
        read = chain * self.method.traffic(context_tokens, bytes_per_element).kv_bytes
        if self.window is not None:
            read += self.params.rounds * self.window.traffic(context_tokens, bytes_per_element).kv_bytes
        return Traffic(read)

    def observers(self) -> tuple[PrefillObserver, ...]:
        """See ``Speculation.observers``."""
        return self.method.observers()

    def start(self, decoder: Decoder, sequences: Sequences, state: DecodeState, prompt: Prompt) -> Proposer:
        """See ``Speculation.start``.

        Raises:
            CheckpointError: the smaller model cannot be loaded.
            UnsupportedCellError: it has another vocabulary or too short a context.
        """
        own = self.method.make_cache(state.cache.shape) is not None
        middle = self.method.start(prompt) if own else self.method.decode_in(state.cache)
        if self.params.drafter == "none":
            drafter = RetrievalDrafter(decoder, sequences, state, self.method, middle, self.tree)
            drafter.renew(self.method, middle, state)
            return drafter
        small: Small
        if self.window is not None:
            small = SmallWindow(decoder, self.window, prompt)
        else:
            small = SmallModel(self.params.drafter, decoder, prompt)
        return Hierarchy(decoder, sequences, state, self.method, middle, small, self.params.rounds, self.params.inner)


class RetrievalDrafter(RenewingProposer, SelfDrafter):
    """The model drafts token by token over the retrieval cache, which is built anew before it is used up."""

    def propose(self) -> Tensor:
        """See ``Proposer.propose``."""
        self.begin_renewal()
        return super().propose()

    def keep(self, verified: Verified) -> None:
        """See ``Proposer.keep``."""
        self.end_renewal(verified)
        super().keep(verified)


METHOD = TriForce
