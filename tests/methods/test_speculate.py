"""Speculative decoding gives the tokens of plain dense decoding, whoever drafts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from decoding import THREE_LAYERS, sharp_decoder, writes_as_full
from longdecode.engine.correction import Correction
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.generation import Completion, Generator, Request, Sampling
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.run_config import build_run_config
from longdecode.methods.registry import get_method, load_card, method_names
from small_run import run_values

CONFIG = replace(
    THREE_LAYERS, vocab_size=96, hidden_size=64, intermediate_size=96, num_layers=6, head_dim=32, max_positions=768
)
DRAFTERS: dict[str, dict[str, Any]] = {
    "quest": {}, "streaming": {}, "lychee": {"block_size": 16, "sink_tokens": 16, "recent_tokens": 16}, "tidal": {},
    "duo": {}, "h2o": {}, "tova": {}, "snapkv": {"window": 8}, "shadowkv": {"offload": True, "long_generation": True},
}  # fmt: skip
BUDGET = 48
PENALISED = Sampling(0.9, top_p=0.9, penalty=1.2, penalty_window=32)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return sharp_decoder(CONFIG)


@pytest.fixture(scope="module")
def shallow() -> Decoder:
    """Three layers: quick, and its drafts are right more often."""
    return sharp_decoder(replace(CONFIG, num_layers=3))


REFUSED = ("full", "full_fp8", "full_int4", "retro")
"""Drafters that take no budget, and one that writes over the verifier's tokens."""


def speculate(drafter: str, tokens: int = 4, config: ModelConfig = CONFIG, params: Any = None) -> Any:
    own = DRAFTERS[drafter] if params is None else params
    more = {"drafter": drafter, "draft_tokens": tokens, "drafter_params": own}
    return get_method("speculate").from_budget(BUDGET, config, **more)


def texts(completions: list[Completion]) -> list[tuple[Any, ...]]:
    return [(c.output_ids, c.finish_reason) for c in completions]


@pytest.mark.parametrize(
    ("drafter", "sampling"), [("quest", PENALISED), ("streaming", Sampling()), ("lychee", PENALISED)]
)
def test_100_tokens_are_those_of_dense_decoding(drafter: str, sampling: Sampling, random_ids: Callable) -> None:
    """In float64, where rounding leaves no draw in doubt."""
    model = sharp_decoder(replace(CONFIG, num_layers=3), torch.float64)
    requests = [Request(random_ids(n, CONFIG.vocab_size), 100, seed=row) for row, n in enumerate((130, 77, 31))]
    generator, method = Generator(model, sampling), speculate(drafter, config=model.config)
    got = writes_as_full(generator, requests, method)
    assert all(len(completion.output_ids) == 100 for completion in got)
    (alone,) = generator.run([replace(requests[0], max_new_tokens=40)], method)
    assert alone.output_ids == got[0].output_ids[:40]
    assert any(completion.tokens_per_step > 1 for completion in got), "no draft was ever kept"


@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
def test_every_drafter_stops_in_a_block(decoder: Decoder, shallow: Decoder, drafter: str, random_ids: Callable) -> None:
    """Short and long blocks, greedy and drawn: each pair of these with half of the drafters."""
    vocab, model = CONFIG.vocab_size, decoder if drafter == "tidal" else shallow
    requests = [
        Request(random_ids(90, vocab), 21, random_ids(7, vocab), frozenset({5, 17}), 1),
        Request(random_ids(64, vocab), 0, random_ids(12, vocab)),
        Request(random_ids(33, vocab), 26, (), frozenset({9}), 3),
        Request(random_ids(12, vocab), 1),
    ]
    lengths = (1, 5) if sorted(DRAFTERS).index(drafter) % 2 else (5, 1)
    for sampling, tokens in zip((Sampling(), Sampling(1.1, min_p=0.02)), lengths, strict=True):
        generator = Generator(model, sampling)
        want = generator.run(requests, get_method("full").from_budget(None, model.config))
        got = generator.run(requests, speculate(drafter, tokens, model.config))
        assert texts(got) == texts(want)
        for ours, theirs in zip(got, want, strict=True):
            assert ours.forced_logprobs == pytest.approx(theirs.forced_logprobs, abs=2e-4)
            assert ours.forced_greedy == theirs.forced_greedy


@pytest.fixture(scope="module")
def ragged() -> list[Request]:
    """Three prompts and texts of unequal lengths."""
    draw = torch.Generator().manual_seed(7)
    return [
        Request(tuple(torch.randint(0, CONFIG.vocab_size, (n,), generator=draw).tolist()), new, seed=n)
        for n, new in ((90, 19), (57, 10), (33, 14))
    ]


@pytest.fixture(scope="module")
def dense_texts(ragged: list[Request]) -> Callable[[Decoder, Sampling], list[Any]]:
    """Texts of dense decoding after them, written once for each model and way to draw."""
    known: dict[tuple[int, Sampling], list[Any]] = {}

    def written(model: Decoder, sampling: Sampling) -> list[Any]:
        at, full = (model.config.num_layers, sampling), get_method("full").from_budget(None, model.config)
        if at not in known:
            known[at] = texts(Generator(model, sampling).run(ragged, full))
        return known[at]

    return written


@pytest.mark.parametrize(
    ("number", "drafter"), [*enumerate(name for name in method_names() if load_card(name).kind == "attention")]
)
def test_a_ragged_batch_is_that_of_dense_decoding_for_short_and_long_drafts(
    number: int, drafter: str, decoder: Decoder, shallow: Decoder, ragged: list[Request], dense_texts: Callable
) -> None:
    """Three unequal prompts and lengths, by every method of the registry that drafts.

    Greedy and drawn with the penalty: each with short drafts for half of the methods, with long ones for the others.
    """
    model = decoder if drafter in ("tidal", "omnikv") else shallow
    params = DRAFTERS.get(drafter) or dict(load_card(drafter).conformance.params)
    for tokens, sampling in zip((2, 8), (Sampling(), PENALISED)[:: 1 if number % 2 else -1], strict=True):
        try:
            method = speculate(drafter, tokens, model.config, params)
        except (UnsupportedCellError, ConfigError) as error:
            assert drafter in REFUSED, error
            return
        assert texts(Generator(model, sampling).run(ragged, method)) == dense_texts(model, sampling)


def test_a_drafter_that_reads_everything_is_always_right(decoder: Decoder, random_ids: Callable) -> None:
    request = Request(random_ids(20, CONFIG.vocab_size), 41)
    method = get_method("speculate").from_budget(400, CONFIG, drafter="streaming", draft_tokens=4)
    (completion,) = Generator(decoder).run([request], method)
    assert completion.tokens_per_step == 5 and completion.decode_steps == 8


def test_a_drafter_s_own_cache_holds_the_kept_tokens_alone(decoder: Decoder, random_ids: Callable) -> None:
    """After refusals its counters are those of plain decoding with the same method.

    What it stores is what that stores, or, where verified keys and values are taken over, dense attention's at the same
    positions.
    """
    from longdecode.engine.self_draft import SelfDrafter
    from longdecode.engine.steppers import SpeculativeStepper, make_stepper

    requests = [Request(random_ids(length, CONFIG.vocab_size), 60, seed=length) for length in (90, 57)]
    for drafter in ("streaming", "snapkv", "duo", "h2o"):
        method = speculate(drafter, 3)
        prompt = Generator(decoder, Sampling(1.0)).prefill(requests, [method])
        stepper = make_stepper(decoder, Sampling(1.0), prompt, method)
        assert isinstance(stepper, SpeculativeStepper) and isinstance(stepper.proposer, SelfDrafter)
        assert not stepper.proposer.shares_cache and stepper.proposer.takes_over == (drafter != "h2o")
        for _ in range(9):
            stepper.step()
        plain = method.draft.method.start(prompt)
        counts, chosen = stepper.sequences.counts.tolist(), stepper.sequences.chosen
        for step in range(max(counts) - 1):
            plain.active.copy_(torch.tensor([step < count - 1 for count in counts]))
            saved = plain.cache.before_step()
            decoder.step(chosen[:, step].clamp(min=0), plain, method.draft.method)
            plain.cache.undo(saved, ~plain.active)
        drafted, dense = stepper.proposer.state.cache, stepper.state.cache
        for (ours, _), (theirs, _) in zip(drafted.counters(), plain.cache.counters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        for layer, row, head in itertools.product(range(CONFIG.num_layers), range(2), range(CONFIG.num_kv_heads)):
            want = plain.cache.stored_kv(layer, row, head)
            if stepper.proposer.takes_over:
                every, kept = dense.stored_kv(layer, row, head), len(want[0])
                tokens = torch.cdist(drafted.stored_kv(layer, row, head)[0], every[0]).argmin(dim=1)
                latest = set(range(len(every[0]) - min(20, kept // 2), len(every[0])))
                assert len(set(tokens.tolist())) == kept and latest <= set(tokens.tolist())
                want = every[0][tokens], every[1][tokens]
            for left, right in zip(drafted.stored_kv(layer, row, head), want, strict=True):
                torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


def test_bad_drafters_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown method 'questt'"):
        get_method("speculate").from_budget(48, CONFIG, drafter="questt")
    with pytest.raises(ConfigError, match="drafts itself"):
        get_method("speculate").from_budget(48, CONFIG, drafter="speculate")
    with pytest.raises(ConfigError, match="quest has no parameter 'sinks'"):
        get_method("speculate").from_budget(48, CONFIG, drafter="quest", drafter_params={"sinks": 4})


@pytest.mark.parametrize(
    ("drafter", "params", "why"),
    [
        ("lychee", {"block_size": 16, "correction": "rewrite"}, "correction = 'rewrite' of lychee .* while drafting"),
        ("lychee", {"block_size": 16, "correction_period": 8}, "correction_period = 8 of lychee .* while drafting"),
        ("tidal", {"correction": "dense_step"}, "correction = 'dense_step' of tidal .* while drafting"),
        ("lychee", {"mode": "token", "top_p": 0.5}, "top_p = 0.5 of lychee has no effect without strategy = 'top_p'"),
        ("lychee", {"mode": "token", "block_size": 16}, "block_size = 16 of lychee .* without mode = 'block'"),
        ("duo", {"roles_seed": 3}, "roles_seed = 3 of duo has no effect without roles = 'random'"),
        ("nosa", {"heads": "zero", "prefill": "dense"}, "prefill = 'dense' of nosa has no effect while drafting"),
        ("infllm2", {"spare_slots": 2}, "spare_slots = 2 of infllm2 has no effect without offload = True"),
    ],
)
def test_knobs_that_a_drafter_has_no_use_for_are_refused(drafter: str, params: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        get_method("speculate").from_budget(64, CONFIG, drafter=drafter, drafter_params=params)


def test_a_drafter_that_corrects_its_cache_unasked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_method("quest"), "correction", Correction("rewrite"))
    with pytest.raises(ConfigError, match="'quest' corrects its cache"):
        get_method("speculate").from_budget(64, CONFIG, drafter="quest")


def test_knobs_at_their_defaults_and_in_use_are_accepted() -> None:
    for drafter, params in (
        ("lychee", {"block_size": 16, "correction": "none", "correction_period": 32, "ratio": 0.7}),
        ("lychee", {"mode": "token", "strategy": "top_p", "top_p": 0.5, "roles": "random", "roles_seed": 2}),
        ("infllm2", {"offload": True, "spare_slots": 2, "prefetch": True, "overlap": True}),
    ):
        get_method("speculate").from_budget(64, CONFIG, drafter=drafter, drafter_params=params)


def test_an_offloaded_drafter_writes_as_dense(shallow: Decoder, ragged: list[Request], dense_texts: Callable) -> None:
    params = {"offload": True, "spare_slots": 2, "prefetch": True, "overlap": True}
    method = get_method("speculate").from_budget(64, shallow.config, drafter="infllm2", drafter_params=params)
    assert texts(Generator(shallow).run(ragged, method)) == dense_texts(shallow, Sampling())


def test_a_configuration_sets_the_drafters_knobs() -> None:
    entry = {"method": "speculate", "params": {"drafter": "snapkv", "drafter_params": {"window": 8}}}
    values = run_values(methods={"full": {}, "drafted": entry}, budgets=[64])
    spec = build_run_config(values, "test.yaml").methods["drafted"]
    method = get_method("speculate").from_budget(BUDGET, CONFIG, **spec.params_of("m"))
    assert method.draft is not None and method.draft.method.params.window == 8
    entry["params"]["drafter_params"] = {"windw": 8}
    with pytest.raises(ConfigError, match="snapkv has no parameter 'windw'; nearest valid name: 'window'"):
        build_run_config(values, "test.yaml")


DRAWN = Sampling(0.9, min_p=0.05, penalty=1.2, penalty_window=32)


@pytest.mark.parametrize(("drafter", "sampling"), [("quest", Sampling()), ("streaming", DRAWN), ("snapkv", DRAWN)])
def test_branches_write_the_same_text(shallow: Decoder, drafter: str, sampling: Sampling, random_ids: Callable) -> None:
    """In the verifier's cache and in caches of their own; a kept sibling is a token that the drafter was not fed."""
    requests = [Request(random_ids(length, CONFIG.vocab_size), 48, seed=length) for length in (130, 77)]
    method = get_method("speculate")
    params = {"drafter": drafter, "draft_tokens": 3, "drafter_params": DRAFTERS[drafter]}
    tree, chain = (method.from_budget(BUDGET, shallow.config, branches=count, **params) for count in (3, 1))
    assert tree.draft.tree.parents == (0, 0, 0, 1, 1, 1, 4, 4, 4) and chain.draft.tree.is_chain
    generator = Generator(shallow, sampling)
    got = writes_as_full(generator, requests, tree)
    assert sum(c.decode_steps for c in got) < sum(c.decode_steps for c in generator.run(requests, chain))


def test_a_drafter_that_must_be_fed_what_is_kept_has_no_branches(shallow: Decoder, random_ids: Callable) -> None:
    method = get_method("speculate").from_budget(BUDGET, shallow.config, drafter="h2o", branches=2)
    with pytest.raises(UnsupportedCellError, match="must be fed what is kept"):
        Generator(shallow).run([Request(random_ids(90, CONFIG.vocab_size), 8)], method)
