"""The contract between the decoder and an attention method: what each query reads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from longdecode.engine.decode_state import DecodeState, held_bytes
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import CacheShape, DenseCache, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import PrefillObserver
from longdecode.engine.request import Prompt
from longdecode.engine.token_block import BlockHeads, TokenBlock
from longdecode.kernels.prefill_attention import prefill_attention

if TYPE_CHECKING:
    from longdecode.engine.correction import Correction
    from longdecode.engine.speculation import Speculation


@dataclass(slots=True)
class Selection:
    """The part of one layer's cache that a decode step reads.

    ``indices`` is ``[B, Hs, N]`` int64, block numbers (``block_size`` tokens each). ``counts`` is ``[B, Hs]`` int64:
    how many leading entries of each list are valid, or ``EVERYTHING`` for a list that reads the whole row. ``Hs`` is
    the number of KV heads (a GQA group shares one list) or of query heads (each reads its own). ``uneven`` is a
    load-balancing hint for lists of different lengths; it has no effect on the output.
    """

    indices: Tensor
    counts: Tensor
    block_size: int
    uneven: bool = False


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes one decode step of one sequence must move for attention, summed over layers.

    ``at_most``: lists are as long as the data makes them, and ``kv_bytes`` is what they take at their longest.
    ``host_bytes`` is what comes from host memory where no listed block is on the device yet.
    """

    kv_bytes: int
    metadata_bytes: int = 0
    at_most: bool = False
    host_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Keys, values and whatever the selector reads to choose them."""
        return self.kv_bytes + self.metadata_bytes


class AttentionMethod(ABC):
    """Decide what each query reads; every hook defaults to dense attention.

    Subclasses declare ``name``, a frozen dataclass ``Params`` and ``from_budget``. What a generation changes lives in
    its ``DecodeState`` and is changed in place; every hook of a step keeps to fixed shapes and never waits for the
    host, so that the step can be captured as a CUDA graph.
    """

    name: ClassVar[str]
    Params: ClassVar[type]
    between_steps: ClassVar[tuple[str, ...]] = ()
    """Knobs that act on the prompt or between steps: a drafter, which does single steps, has no use for them."""
    used_with: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Knobs that have an effect only beside values of others: by knob, the others and the value that each needs."""
    correction: Correction | None = None
    """Repair of the cache that the generation makes every few steps; none by default.

    A rewrite changes stored keys: a method that keeps anything computed from them updates it in ``after_rewrite``.
    """
    window: int = 1
    """Tokens that a decode step runs: the newest, and those before it that are run again."""
    draft: Speculation | None = None
    """The drafter whose tokens this method verifies; none by default."""

    def __init__(self, params: Any, config: ModelConfig):
        self.params = params
        self.config = config

    @property
    def settings(self) -> tuple[Any, ...]:
        """All that cache and reads depend on; two methods of equal settings decode each other's prompts."""
        return type(self), self.config, self.params

    @property
    def described(self) -> str:
        """The name and the settings, for messages."""
        return f"{self.name} with {self.params}"

    @classmethod
    @abstractmethod
    def from_budget(cls, budget_tokens: int | None, config: ModelConfig, **overrides: Any) -> AttentionMethod:
        """Build the method for a budget in tokens per KV head (``None``: no budget, for methods that read everything).

        Raises:
            UnsupportedCellError: the budget is below what the method can honour.
            ConfigError: an override names no field of ``Params`` or has a value out of range.
        """

    def dense_layers(self) -> frozenset[int]:
        """Layers that read everything whatever the budget."""
        return frozenset()

    def dense_heads(self) -> tuple[frozenset[int], ...]:
        """Per layer, the KV heads that read everything whatever the budget; the budget governs the others."""
        dense, heads = self.dense_layers(), frozenset(range(self.config.num_kv_heads))
        return tuple(heads if layer in dense else frozenset() for layer in range(self.config.num_layers))

    def budget_of(self, layer: int, context_tokens: int) -> int | None:
        """Return the mean budget of a layer's governed KV heads at this context; ``None`` for the declared one.

        Layers and heads may differ. Over all that the budget governs, the mean is the declared budget at most.
        """
        return None

    def refuse_context(self, context_tokens: int) -> None:  # noqa: B027 (optional hook)
        """Refuse a context that the method cannot decode at its budget.

        Raises:
            UnsupportedCellError: as said.
        """

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Bytes a decode step reads at this context; the default is dense attention in every layer."""
        return Traffic(context_tokens * self.config.kv_bytes_per_token(bytes_per_element))

    def traffic_per_token(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Bytes read for each generated token: a step's, and its share of the correction where the cache is corrected.

        A correction reads all keys and values once: a rewrite between two steps, a dense step in the place of one.
        """
        step, correction = self.traffic(context_tokens, bytes_per_element), self.correction
        if correction is None:
            return step
        everything = context_tokens * self.config.kv_bytes_per_token(bytes_per_element)
        sparse_share = (correction.period - (correction.mode == "dense_step")) / correction.period
        return Traffic(
            round(step.kv_bytes * sparse_share + everything / correction.period),
            round(step.metadata_bytes * sparse_share),
            step.at_most,
        )

    def make_cache(self, shape: CacheShape) -> KVCache | None:
        """Return an empty cache of the method's own; ``None`` keeps every token in a dense one."""
        return None

    def observers(self) -> tuple[PrefillObserver, ...]:
        """Return what must see the queries, keys and values of the prefill."""
        return ()

    @property
    def prefills_densely(self) -> bool:
        """Return true where the method continues from a densely prefilled prompt, which others may share."""
        return type(self).attend_prompt is AttentionMethod.attend_prompt

    def attend_prompt(self, layer: int, q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
        """Attend for one piece of the prompt; the default is dense and causal.

        Args:
            q: ``[R, Hq, T, D]``, positions ``start ..``.
            keys: ``[R, Hkv, start + T, D]``.
            values: ``[R, Hkv, start + T, D]``.

        Returns:
            ``[R, Hq, T, D]``.
        """
        return prefill_attention(q, keys, values, start)

    def keep_layer(
        self, cache: KVCache, layer: int, keys: Tensor, values: Tensor, lengths: Tensor,
        observed: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        """Move what the method keeps of one densely prefilled layer into its own cache.

        Args:
            cache: what ``make_cache`` returned.
            keys: ``[B, Hkv, S, D]``; the slot of a token is its position.
            values: ``[B, Hkv, S, D]``.
            lengths: ``[B]`` int64, tokens of each row.
            observed: by observer key, what was kept of this layer. The cache stands at ``lengths`` already; a method
                that keeps fewer tokens says so to its cache.
        """
        cache.fill_layer(layer, keys, values, lengths)

    def start(self, prompt: Prompt, *, keep_prompt: bool = True) -> DecodeState:
        """Make the state of one generation from a prefilled prompt.

        Args:
            prompt: in a dense cache, or in the method's own if it was prefilled for this method alone.
            keep_prompt: leave ``prompt`` as it is and decode in a copy. Otherwise its cache may be taken over.
        """
        dense = prompt.cache
        if not isinstance(dense, DenseCache):
            return self.decode_in(dense.clone() if keep_prompt else dense)
        cache = self.make_cache(dense.shape)
        if cache is None:
            return self.decode_in(dense.clone() if keep_prompt else dense)
        cache.stand_at(dense.lengths)
        for layer in range(self.config.num_layers):
            seen = {key: layers[layer] for key, layers in prompt.observed.items()}
            self.keep_layer(cache, layer, dense.keys(layer), dense.values(layer), dense.lengths, seen)
        return self.decode_in(cache)

    def decode_in(self, cache: KVCache) -> DecodeState:
        """Make the state of a generation in a filled cache."""
        return DecodeState(cache, self.make_method_state(cache))

    def footprint(self, shape: CacheShape) -> tuple[int, int]:
        """Return the bytes of a generation's cache and of what the method keeps, on the device and on the host.

        On the meta device nothing is allocated.
        """
        state = self.decode_in(self.make_cache(shape) or DenseCache(shape))
        return state.cache.nbytes() + held_bytes(state.method_state), state.cache.host_nbytes()

    def make_method_state(self, cache: KVCache) -> Any:
        """Return whatever else the method keeps for a generation (page bounds, inherited selections)."""
        return None

    def step_block(self, tokens: Tensor, state: DecodeState) -> TokenBlock:
        """Return the block that a decode step feeds for the newest tokens ``[B]``; they come last in it."""
        return TokenBlock(tokens[:, None], state.cache.positions[:, None])

    def before_step(self, state: DecodeState) -> None:  # noqa: B027 (optional hook)
        """Work out once what ``select`` needs in every layer of the coming block."""

    def append(self, layer: int, heads: BlockHeads, state: DecodeState) -> Tensor:
        """Rotate a block's heads and store its keys and values; return the queries ``[B, Hq, T, D]``."""
        return state.cache.append(layer, heads)

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Choose what the queries ``[B, Hq, 1, D]`` of ``layer`` read; ``None`` means everything."""
        return None

    @property
    def looks_ahead(self) -> bool:
        """Return true where ``look_ahead`` is to be called; the default is not."""
        return False

    def look_ahead(self, layer: int, q: Tensor, state: DecodeState) -> None:  # noqa: B027 (optional hook)
        """Prepare for a layer while the one before it still runs; may change time alone.

        Args:
            layer: the next one.
            q: ``[B, Hq, T, D]``, a guess at its rotated queries.
        """

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Select and read in one layer, the block already stored.

        Args:
            q: ``[B, Hq, T, D]``, rotated.

        Returns:
            ``[B, Hq, T, D]``.

        Raises:
            UnsupportedCellError: the method selects for one row and the block has several.
        """
        selection = self.select(layer, q, state)
        if selection is None:
            return self.attend_all(layer, q, state)
        if q.shape[2] > 1:
            raise UnsupportedCellError(f"{self.name} selects for one row a step, the block has {q.shape[2]}")
        return self.attend_selected(layer, q, selection, state)

    def attend_selected(
        self, layer: int, q: Tensor, selection: Selection, state: DecodeState, **scoring: Any
    ) -> Tensor:
        """Read the listed part of a cache that keeps every token; shapes as in ``attend``.

        Args:
            scoring: ``bias``, ``scores``, ``score_rows`` and ``score_block`` of ``sparse_decode_attention``.
        """
        return state.whole.attend_listed(
            layer, q, selection.indices, selection.counts, block_size=selection.block_size, uneven=selection.uneven,
            kv_tokens_read=state.kv_tokens_read[layer], **scoring,
        )  # fmt: skip

    def attend_all(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Read everything that the cache stores of ``layer``; shapes as in ``attend``."""
        return state.cache.attend(layer, q, state.block.mask, state.kv_tokens_read[layer])

    def settle(self, state: DecodeState) -> None:  # noqa: B027 (optional hook)
        """Set the method's state as long after the prompt: a step that is timed does all that a step may have to do."""

    def after_step(self, state: DecodeState) -> None:  # noqa: B027 (optional hook)
        """React to a finished block, before lengths advance."""

    def after_rewrite(self, state: DecodeState, starts: Tensor, width: int) -> None:  # noqa: B027 (optional hook)
        """React to keys and values that were written over or forgotten.

        Args:
            state: after the change; ``state.cache.lengths`` are the tokens that are left.
            starts: ``[B]`` int64, first slots that changed.
            width: slots that may have changed, from there on.
        """


class DenseAttention(AttentionMethod):
    """Dense attention for passes that no registered method asked for."""

    name = "dense"

    @classmethod
    def from_budget(cls, budget_tokens: int | None, config: ModelConfig, **overrides: Any) -> DenseAttention:
        """Build it; a budget or a parameter means nothing here."""
        return cls((), config)
