"""TokenSwift, Medusa and prompt lookup write the text of plain decoding; caches and heads against loops."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decoding import THREE_LAYERS as CONFIG
from decoding import moved, sharp_decoder, writes_as_full
from longdecode.engine import kv_cache, pace
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import CheckpointError, ConfigError, DataUnavailableError, UnsupportedCellError
from longdecode.engine.generation import Completion, Generator, Request, Sampling
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.steppers import SpeculativeStepper, make_stepper
from longdecode.engine.weights import load_decoder, model_hash, random_decoder
from longdecode.kernels.decode_attention import naive
from longdecode.methods import ngram_table
from longdecode.methods.conformance import check_method
from longdecode.methods.draft_heads import DraftHeads, load_heads, write_heads
from longdecode.methods.partial_attention import PartialAttention, Renewal
from longdecode.methods.partial_cache import PartialCache
from longdecode.methods.registry import get_method, method_names
from longdecode.methods.tokenswift.method import TokenSwiftProposer

MINIATURE = Path(__file__).resolve().parents[2] / "models" / "miniature" / "weights"
METHODS: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "tokenswift": ("tokenswift", 40, {"heads": "random:1", "ngrams": 6}),
    "tokenswift_lag": ("tokenswift", 56, {"heads": "random:1", "ngrams": 3, "tree": "2,2", "ngram_lag": 4}),
    "tokenswift_pace": ("tokenswift", 40, {"heads": "random:1", "ngrams": 6, "ngrams_few": 2}),
    "medusa": ("medusa", None, {"heads": "random:1"}),
    "medusa_two_pass": ("medusa", None, {"heads": "random:1", "passes": 2, "ngrams": 4}),
    "ngram": ("ngram", None, {"places": 3}),
    "triforce": ("triforce", 40, {"window": 32, "chunk": 5}),
    "triforce_released": ("triforce", 40, {"window": 32, "inner": "released", "rounds": 2}),
    "triforce_residual": ("triforce", 500, {"inner": "residual", "rounds": 2}),
    "triforce_chain": ("triforce", 48, {"drafter": "none", "rounds": 2}),
}
PENALISED = Sampling(0.9, min_p=0.02, penalty=1.15, penalty_window=24)
LONG = pytest.mark.skipif("LONGDECODE_LONG_TESTS" not in os.environ, reason="minutes; LONGDECODE_LONG_TESTS=1 runs it")


def build(name: str, config: ModelConfig = CONFIG, **more: Any) -> Any:
    method, budget, params = METHODS[name]
    return get_method(method).from_budget(budget, config, **params | more)


def ragged(random_ids: Callable, tokens: int) -> list[Request]:
    return [Request(random_ids(n, 64), tokens, random_ids(3 * row, 64), seed=row) for row, n in enumerate((97, 50, 9))]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return sharp_decoder(CONFIG)


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        *(pytest.param(name, Sampling(), id=f"{name}-greedy") for name in METHODS if name in method_names()),
        *(pytest.param(name, PENALISED, id=f"{name}-penalised") for name in METHODS),
    ],
)
@pytest.mark.parametrize("tokens", [64, pytest.param(2000, marks=[pytest.mark.slow, LONG])])
def test_the_text_is_that_of_plain_decoding(
    decoder: Decoder, name: str, sampling: Sampling, tokens: int, random_ids: Callable
) -> None:
    """Every variant with draws, of which greedy choices are a special case; each method by its defaults greedily."""
    assert_same_text(decoder, name, ragged(random_ids, tokens), sampling)


@pytest.mark.parametrize("more", [{}, {"tree": "1,1,1", "ngrams_few": 0}], ids=["tree", "chain"])
def test_the_text_is_the_same_whichever_tree_a_step_takes(
    decoder: Decoder, more: dict[str, Any], random_ids: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of two steps on a clock that jumps: ragged rows change trees often; a narrow tree may be a chain."""
    jumps = accumulate(random.Random(0).choices((0.1, 1.0, 10.0), k=999))
    monkeypatch.setattr(pace, "LOOK", 2)
    monkeypatch.setattr(pace, "Pace", partial(pace.Pace, clock=lambda: next(jumps)))
    for done in assert_same_text(decoder, "tokenswift_pace", ragged(random_ids, 64), PENALISED, **more):
        assert 4 < done.draft_counts["narrow_steps"] < done.decode_steps - 4


def test_two_trees_in_turn_pass_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "LOOK", 1)  # its texts are shorter than a window
    check_method("tokenswift", "cpu", {"ngrams_few": 2})


def test_a_narrow_step_drops_ngrams(decoder: Decoder, random_ids: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of a method with fewer of them."""
    monkeypatch.setattr(pace.Pace, "takes_narrow", lambda self, renewing: not renewing)
    requests = [Request(random_ids(n, 64), 48, seed=n) for n in (97, 50)]
    both = (METHODS["tokenswift_pace"][2], {"heads": "random:1", "ngrams": 2})
    methods = (get_method("tokenswift").from_budget(500, CONFIG, **params) for params in both)
    narrow, few = (Generator(decoder, PENALISED).run(requests, method) for method in methods)
    assert [(c.output_ids, c.decode_steps) for c in narrow] == [(c.output_ids, c.decode_steps) for c in few]
    assert all(c.draft_counts["narrow_steps"] == c.decode_steps for c in narrow)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tokenswift", "tokenswift_pace", "medusa"])
def test_captured_as_eager(decoder: Decoder, name: str, random_ids: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with renewals of the partial cache, and what plain decoding writes: float32 leaves no draw in doubt."""
    monkeypatch.setattr(pace, "LOOK", 2)  # a renewal drops longer windows
    made = Decoder(CONFIG, moved(decoder.weights, "cuda"), torch.device("cuda"), torch.float32)
    requests = [Request(random_ids(n, 64), 120, seed=n) for n in (97, 50)]
    texts, full = [], get_method("full").from_budget(None, CONFIG)
    for method, graph in ((full, True), (build(name), True), (build(name), False)):
        texts.append([c.output_ids for c in Generator(made, PENALISED, cuda_graph=graph).run(requests, method)])
    assert texts[1] == texts[2] == texts[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the model is on the CPU, where Triton is interpreted")
def test_kernels_write_the_same_text(decoder: Decoder, random_ids: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws, walks, tables and moves through Triton, in a whole step: plain torch elsewhere."""
    requests = [Request(random_ids(n, 64), 14, stop_ids=frozenset({9}), seed=n) for n in (97, 50)]
    generator = Generator(decoder, PENALISED)
    want = generator.run(requests, get_method("full").from_budget(None, CONFIG))

    def integers_logits_or_caches(x: Tensor) -> bool:
        return x.dtype == torch.int64 or x.shape[-1] == CONFIG.vocab_size or x.dim() == 5

    monkeypatch.setattr("longdecode.kernels.dispatch.use_triton", integers_logits_or_caches)
    for name in ("full", "tokenswift"):
        method = build(name, ngrams=2, tree="1,2,2") if name != "full" else get_method(name).from_budget(None, CONFIG)
        assert [c.output_ids for c in generator.run(requests, method)] == [c.output_ids for c in want]
        assert generator.run(requests[1:], method)[0].output_ids == want[1].output_ids


def assert_same_text(
    decoder: Decoder, name: str, requests: list[Request], sampling: Sampling, **more: Any
) -> list[Completion]:
    """Batch and single rows write what dense attention writes, in fewer steps; return the batch."""
    generator = Generator(decoder, sampling)
    got = writes_as_full(generator, requests, build(name, decoder.config, **more))
    (alone,) = generator.run(requests[1:2], build(name, decoder.config, **more))
    assert alone.output_ids == got[1].output_ids and len(alone.output_ids) == requests[1].max_new_tokens
    assert max(c.tokens_per_step for c in got) > 1
    return got


@pytest.mark.parametrize("name", ["tokenswift", "ngram"])
def test_the_miniature_writes_the_same_text_faster(name: str) -> None:
    made = load_decoder(MINIATURE, device="cpu", dtype=torch.float32)
    text = "The ledger entry for oak is 4711. The ledger entry for elm is 1288. " * 6
    requests = [Request(tuple(text.encode()[: 300 - 40 * row]), 48, seed=row) for row in range(2)]
    got = assert_same_text(made, name, requests, Sampling(0.5, penalty=1.05, penalty_window=64))
    assert sum(c.tokens_per_step for c in got) / 2 > 1.15


def test_faithful_tokenswift_writes_another_text(decoder: Decoder, random_ids: Callable) -> None:
    """Its law is not the target's, but greedily there is one token to draw."""
    requests = [Request(random_ids(60, 64), 40, seed=row) for row in range(2)]
    for mode in ("faithful", "released"):
        writes_as_full(Generator(decoder), requests, build("tokenswift", mode=mode))
        drawn = Generator(decoder, PENALISED)
        faithful = drawn.run(requests, build("tokenswift", mode=mode))
        exact = drawn.run(requests, build("tokenswift", noisy_ranks=False))
        assert [c.output_ids for c in faithful] != [c.output_ids for c in exact]
        assert sum(c.tokens_per_step for c in faithful) > 1.1 * sum(c.tokens_per_step for c in exact)


def plain_choice(q: Tensor, keys: Tensor, budget: int, sinks: int) -> list[int]:
    """Sinks, then other tokens by descending sum of the group's scores; ``q`` ``[g, D]``, ``keys`` ``[n, D]``."""
    scores = (keys @ q.sum(dim=0)).tolist()
    rest = sorted(range(sinks, len(keys)), key=lambda token: -scores[token])
    return [*range(min(sinks, len(keys))), *rest][:budget]


@pytest.mark.parametrize("name", ["tokenswift", "tokenswift_pace"])
def test_the_partial_cache_follows_the_rule(name: str, random_ids: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each KV head stores what a loop over its tokens says, build after build, for rows above and below the budget."""
    monkeypatch.setattr(pace, "LOOK", 2)
    decoder = random_decoder(CONFIG, 3, "cpu", torch.float64)
    requests = [Request(random_ids(n, 64), 90, seed=n) for n in (90, 51, 9)]
    method = build(name)
    prompt = Generator(decoder, PENALISED).prefill(requests, [method])
    stepper = make_stepper(decoder, PENALISED, prompt, method)
    assert isinstance(stepper, SpeculativeStepper) and isinstance(stepper.proposer, TokenSwiftProposer)
    partial, dense, group = stepper.proposer.partial, stepper.state.dense, CONFIG.group_size
    assert isinstance(partial, PartialCache) and partial.room == 24
    built: dict[int, Tensor] = {}
    see = Renewal.see_layer

    def seen(self: Renewal, layer: int, q: Tensor, state: DecodeState) -> None:
        built[layer] = q[:, :, 0].clone()
        see(self, layer, q, state)

    monkeypatch.setattr(Renewal, "see_layer", seen)
    places = [(layer, row, head) for layer in range(3) for row in range(3) for head in range(2)]
    (observed,) = prompt.observed.values()
    slots: dict[tuple[int, int, int], list[int]] = {}
    since, renewals = [0, 0, 0], 0

    def choose(place: tuple[int, int, int], queries: Tensor, n: int) -> None:
        layer, row, head = place
        q = queries[row, head * group : (head + 1) * group]
        slots[place] = plain_choice(q, dense.k[layer, row, head, :n], 40, 16)

    for place in places:
        choose(place, observed[place[0]][:, :, 0], len(requests[place[1]].prompt_ids))
    held = [len(slots[0, row, 0]) for row in range(3)]
    advance = stepper.plan(stepper.works(60), 60)
    for done in range(45):
        before, active = dense.lengths.tolist(), stepper.state.active.tolist()
        built.clear()
        advance(done)
        for row in range(3):
            if built and 2 * since[row] > 24 and active[row]:
                renewals += 1
                since[row], held[row] = 0, min(before[row], 40)
                for place in places:
                    if place[1] == row:
                        choose(place, built[place[0]], before[row])
            for token in range(before[row], int(dense.lengths[row])):
                for layer, head in ((layer, head) for layer in range(3) for head in range(2)):
                    stored = slots[layer, row, head]
                    if held[row] + since[row] < 40:
                        stored.append(token)
                    else:
                        stored[40 - 1 - since[row]] = token
                since[row] += 1
        for layer, row, head in places:
            keys, values = partial.stored_kv(layer, row, head)
            torch.testing.assert_close(keys, dense.k[layer, row, head, slots[layer, row, head]])
            torch.testing.assert_close(values, dense.v[layer, row, head, slots[layer, row, head]])
    assert renewals >= 3


def test_chunks_are_chosen_by_their_mean_key(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, keys = (torch.randn(2, n, m, 16, generator=generator, dtype=torch.float64) for n, m in ((4, 1), (2, 37)))
    method, lengths = PartialAttention(CONFIG, 15, 5, 5, 1), torch.tensor([37, 22])
    keys[1, :, 22:] = float("nan")
    found = method.choose(q, keys, lengths)
    for row, head in ((row, head) for row in range(2) for head in range(2)):
        length, query = int(lengths[row]), q[row, 2 * head : 2 * head + 2, 0].sum(dim=0)
        chunks = [range(first, min(first + 5, length)) for first in range(0, length, 5)]
        means = [float(keys[row, head, list(chunk)].mean(dim=0) @ query) for chunk in chunks]
        order = [0, *sorted(range(1, len(chunks)), key=lambda chunk: -means[chunk])]
        assert found[row, head].tolist() == [token for chunk in order for token in chunks[chunk]][:15]


def test_heads_are_chained_and_the_lm_head_is_read_once(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = load_heads("random:5", "chained", 3, decoder)
    z = torch.randn(2, CONFIG.hidden_size, generator=torch.Generator().manual_seed(0))

    def norm(x: Tensor) -> Tensor:
        return x / (x.square().mean(dim=-1, keepdim=True) + CONFIG.rms_norm_eps).sqrt()

    for head, state in enumerate(heads.states(z, norm(z))):
        z = z + norm(z) @ heads.linear[head].T
        torch.testing.assert_close(state, norm(z))
    method = build("tokenswift")
    stepper = make_stepper(decoder, Sampling(), Generator(decoder).prefill([Request((1,) * 60, 40)], [method]), method)
    calls: list[tuple[int, ...]] = []
    logits = decoder.logits
    monkeypatch.setattr(decoder, "logits", lambda hidden: calls.append(tuple(hidden.shape)) or logits(hidden))
    stepper.step()
    assert calls == [(1, 4, 32), (1, 1 + 40 + 18, 32)]


def test_heads_of_zero_begin_at_the_models_own_prediction(decoder: Decoder) -> None:
    norm = torch.rand(CONFIG.hidden_size) + 0.5
    heads = DraftHeads("chained", 2, CONFIG.hidden_size, CONFIG.rms_norm_eps)
    heads.initialise("zero", 0, norm)
    z = torch.randn(3, CONFIG.hidden_size)
    want = z / (z.square().mean(dim=-1, keepdim=True) + CONFIG.rms_norm_eps).sqrt() * norm
    for state in heads.states(z, torch.zeros_like(z)):
        torch.testing.assert_close(state, want)


def test_heads_belong_to_their_checkpoint(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    folders = map(tiny_checkpoint, ("llama2", "qwen2"))
    ours, other = (load_decoder(folder, device="cpu", dtype=torch.float32) for folder in folders)
    heads = DraftHeads("chained", 2, ours.config.hidden_size, 1e-5)
    heads.initialise("normal", 3, ours.weights.final_norm)
    path = tmp_path / "heads.json"
    write_heads(path, heads, "tiny", model_hash(tiny_checkpoint("llama2")), {"steps": 1})
    read = load_heads(str(path), "chained", 2, ours)
    assert read.linear.equal(heads.linear) and not read.linear.requires_grad
    for decoder, count, message in (
        (other, 2, "belongs to a checkpoint of hash"),
        (ours, 3, "holds 2 chained heads of 48 channels; 3 chained heads of 48 are needed"),
        (random_decoder(ours.config, 0, "cpu", torch.float32), 2, "this model has random weights"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_heads(str(path), "chained", count, decoder)
    path.with_suffix(".safetensors").write_bytes(b"other")
    with pytest.raises(CheckpointError, match=r"not the file that heads.json describes"):
        load_heads(str(path), "chained", 2, ours)


def test_bad_input_is_refused(decoder: Decoder) -> None:
    with pytest.raises(DataUnavailableError, match=r"no chained heads are named; `snakemake tokenswift_train`"):
        Generator(decoder).run([Request((1, 2), 4)], get_method("tokenswift").from_budget(64, CONFIG))
    with pytest.raises(DataUnavailableError, match=r"absent.json: no such heads file; `snakemake tokenswift_train`"):
        Generator(decoder).run([Request((1, 2), 4)], build("medusa", heads="absent.json"))
    for name, more, message in (
        ("tokenswift", {"heads": "random"}, "heads = 'random': a heads file"),
        ("tokenswift", {"tree": "3,x"}, "tree = '3,x'; children by depth"),
        ("medusa", {"tree": "9,9,9,9"}, "tree = '9,9,9,9' has 7,381 rows; at most 1,024"),
        ("tokenswift_pace", {"mode": "faithful"}, "ngrams_few in mode faithful: its text would depend on the clock"),
        ("tokenswift_pace", {"ngrams_few": 6}, "ngrams_few = 6 of 6 chains; fewer are needed"),
    ):
        with pytest.raises(ConfigError, match=message):
            build(name, **more)
    with pytest.raises(UnsupportedCellError, match=r"at least 26 tokens \(16 sinks and two steps of 5 .*, got 25"):
        get_method("tokenswift").from_budget(25, CONFIG)


@pytest.mark.parametrize("name", METHODS)
def test_a_step_never_waits_for_the_host(decoder: Decoder, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of step run on the meta device, whose tensors have no values to look at."""
    monkeypatch.setattr(kv_cache, "decode_attention", naive.decode_attention)
    monkeypatch.setattr("longdecode.methods.partial_cache.decode_attention", naive.decode_attention)
    monkeypatch.setattr(ngram_table.NgramTable, "_count_all", lambda table: None)
    made = Decoder(CONFIG, moved(decoder.weights, "meta"), torch.device("meta"), torch.float32)
    method = build(name)
    prompt = Generator(made).prefill([Request((1,) * 60, 40), Request((2,) * 30, 40)], [method])
    for work in make_stepper(made, PENALISED, prompt, method).works(40):
        work()


@pytest.mark.parametrize("name", ["tokenswift_pace", "medusa", "ngram"])
def test_a_step_changes_tensors_in_place(decoder: Decoder, name: str) -> None:
    """A replayed graph reads and writes the addresses that it was captured with."""
    method = build(name)
    stepper = make_stepper(decoder, PENALISED, Generator(decoder).prefill([Request((1,) * 60, 40)], [method]), method)
    assert isinstance(stepper, SpeculativeStepper)

    def addresses() -> dict[str, int]:
        owners = {"": stepper.proposer}
        for part in ("partial", "filler", "table", "entries", "renewal"):
            for owner in list(owners.values()):
                if (found := getattr(owner, part, None)) is not None:
                    owners[part] = found
        named = {f"{key}.{name}": value for key, owner in owners.items() for name, value in vars(owner).items()}
        lasting = [name for name in named if not name.endswith((".slot_mapping", ".kv_lengths"))]
        return {name: named[name].data_ptr() for name in lasting if isinstance(named[name], torch.Tensor)}

    before = addresses()
    for work in stepper.works(40) * 2:
        work()
    assert len(before) >= 1 and addresses() == before
