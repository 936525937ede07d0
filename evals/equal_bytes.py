"""Find each method's native budget for a target of bytes a step, selector included."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.config_reader import read_config
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.budgets import Budget, bytes_share
from longdecode.evals.run_config import RunConfig, load_run_config
from longdecode.methods.registry import get_method

BFLOAT16_BYTES = 2
TOLERANCE = 0.05
"""A native budget may read this share less than the bytes asked for; what it reads is in its records."""


@dataclass(frozen=True, slots=True)
class PricedBudget:
    """A native budget in tokens per KV head, and the bytes a step reads at it: keys, values and selector metadata."""

    tokens: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class EqualBytes:
    """One rival at one context: the budgets on both sides of the target; ``None`` where the method has none there."""

    label: str
    context: int
    target_bytes: int
    below: PricedBudget | None
    above: PricedBudget | None


def bracket(
    build: Callable[[int], AttentionMethod], context: int, target_bytes: int, itemsize: int = BFLOAT16_BYTES
) -> tuple[PricedBudget | None, PricedBudget | None]:
    """Return the largest budget that reads at most the target, and the smallest that reads at least as much.

    Args:
        build: makes the method for a budget in tokens; bytes must not fall as the budget grows.
        context: tokens in the cache.
        target_bytes: bytes a step, ``Traffic.total_bytes``.
        itemsize: bytes of a stored element.
    """

    def price(tokens: int) -> int | None:
        try:
            return build(tokens).traffic_per_token(context, itemsize).total_bytes
        except UnsupportedCellError:
            return None

    def first(holds: Callable[[int], bool]) -> int:
        low, high = 1, context + 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle + 1, high)
        return low

    def priced(tokens: int) -> PricedBudget | None:
        found = price(tokens) if 1 <= tokens <= context else None
        return None if found is None else PricedBudget(tokens, found)

    above = first(lambda tokens: (price(tokens) or 0) >= target_bytes)
    beyond = first(lambda tokens: (price(tokens) or 0) > target_bytes)
    return priced(beyond - 1), priced(above)


class NativeBudgets:
    """A method's budgets in tokens for shares of the bytes that Full reads in a step, by budget text and context.

    Args:
        build: makes the method for a budget in tokens.
        config: shape of the model.
        itemsize: bytes of a stored element.
    """

    def __init__(
        self, build: Callable[[int | None], AttentionMethod], config: ModelConfig, itemsize: int = BFLOAT16_BYTES
    ):
        self.build = build
        self.config = config
        self.itemsize = itemsize
        self._known: dict[tuple[str, int], int] = {}

    def __getitem__(self, place: tuple[str, int]) -> int:
        """Return the largest budget that reads no more than the share, within ``TOLERANCE`` of it.

        Raises:
            UnsupportedCellError: the method reads more at its smallest budget, or jumps over the share.
        """
        if place not in self._known:
            self._known[place] = self._solved(*place)
        return self._known[place]

    def _solved(self, text: str, context: int) -> int:
        share = bytes_share(text)
        if share is None:
            raise ConfigError(f"{text}: no budget in bytes")
        full = context * self.config.kv_bytes_per_token(self.itemsize)
        below, above = bracket(self.build, context, round(share * full), self.itemsize)
        if below is not None and below.total_bytes >= (1 - TOLERANCE) * share * full:
            return below.tokens
        sides = [f"{100 * side.total_bytes / full:.1f} % at {side.tokens} tokens" for side in (below, above) if side]
        least = "reads more at every budget: " if below is None else "jumps over it: "
        raise UnsupportedCellError(
            f"no budget reads {100 * share:g} % of Full's bytes at {context} tokens; the method "
            f"{least}{' and '.join(sides) or 'none runs'}"
        )


def equal_budgets(
    config: RunConfig, model: str, label: str, budget: Budget, rivals: Sequence[str], contexts: Sequence[int]
) -> Iterator[EqualBytes]:
    """Yield, per context and rival, the native budgets around the bytes that ``label`` reads at ``budget``.

    Raises:
        UnsupportedCellError: ``label`` cannot honour the budget at a context.
    """
    model_config = read_config(Path(config.models[model].path))

    def build(name: str, tokens: int | None) -> AttentionMethod:
        spec = config.methods[name]
        return get_method(spec.method).from_budget(tokens, model_config, **spec.params_of(model))

    for context in contexts:
        ours = build(label, budget.tokens(context))
        target = ours.traffic_per_token(context, BFLOAT16_BYTES).total_bytes
        for rival in rivals:
            yield EqualBytes(rival, context, target, *bracket(partial(build, rival), context, target))


def common_share(found: Sequence[EqualBytes]) -> float | None:
    """Return the smallest share of the context, to four decimals, that reads the target's bytes at every context."""
    if any(row.above is None for row in found):
        return None
    return max(math.ceil(1e4 * row.above.tokens / row.context) / 1e4 for row in found if row.above is not None)


def main(arguments: list[str] | None = None) -> int:
    """Print the native budgets of every rival that read as many bytes as one label does."""
    parser = argparse.ArgumentParser(prog="python -m longdecode.evals.equal_bytes", description=__doc__)
    parser.add_argument("label", help="label whose bytes are the target")
    parser.add_argument("--config", type=Path, default=Path("config/h200.yaml"))
    parser.add_argument("--model", default="miniature")
    parser.add_argument("--budget", type=float, default=0.1, help="its budget, as a share of the context")
    parser.add_argument("--rivals", nargs="+", required=True)
    parser.add_argument("--contexts", nargs="+", type=int, default=[2048, 4096, 8192, 16384])
    given = parser.parse_args(arguments)
    config = load_run_config(given.config)
    rows = list(
        equal_budgets(config, given.model, given.label, Budget(given.budget), given.rivals, given.contexts)
    )  # fmt: skip
    print("rival context target_bytes below_tokens below_bytes above_tokens above_bytes")
    for row in rows:
        sides = [(side.tokens, side.total_bytes) if side else ("-", "-") for side in (row.below, row.above)]
        print(row.label, row.context, row.target_bytes, *sides[0], *sides[1])
    for rival in given.rivals:
        print(f"{rival}: share at every context {common_share([row for row in rows if row.label == rival]) or '-'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
