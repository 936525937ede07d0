"""Tuning: what is tried and chosen, prompts of its own, and runs that compare tuned methods with untuned ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from longdecode.engine.errors import ConfigError, DataUnavailableError
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.evals import fairness, tuning
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.fingerprint import hash_texts
from longdecode.evals.run_config import RunConfig, build_run_config
from longdecode.evals.specs import TuningSpec
from longdecode.evals.tasks.continuation import HELD_OUT, TUNING_BOOKS, UNSEEN
from longdecode.evals.tasks.registry import get_task
from longdecode.methods.registry import load_card

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "models" / "miniature" / "tuning.json"
CONTEXT = 768
TASKS = ["tuning_lookup_20"]


@pytest.fixture(autouse=True)
def little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three settings a method, on tasks that Full need not solve."""
    monkeypatch.setattr(TuningSpec, "settings", 3)
    monkeypatch.setattr(TuningSpec, "full_min", 0.0)


def values(**more: Any) -> dict[str, Any]:
    return {
        "profile": "trial", "device": "cpu", "dtype": "float32",
        "models": {"miniature": {"path": str(ROOT / "models" / "miniature" / "weights")}},
        "methods": {"full": {}, "streaming": {}, "tidal": {}}, "budgets": [0.25],
        "suites": {"mini_recall": {"contexts": [256], "samples": 1, "tasks": ["mini_recall_single"]}},
        "tuning": {"samples": 1, "contexts": [CONTEXT], "tasks": TASKS},
    } | more  # fmt: skip


def record(**chosen: dict[str, Any]) -> fairness.TuningRecord:
    methods = {}
    for name, knobs in chosen.items():
        trial = fairness.Trial(setting=knobs, value=1.0, by_task={})
        methods[name] = fairness.Tuned(fixed={}, chosen=knobs, trials=(trial,), seconds=1.0)
    return fairness.TuningRecord(
        model="miniature", model_hash="m", revision="r", device="d", seed=9, budget=0.1, contexts=(512,), samples=1,
        settings=3, full={}, left_out=(), methods=methods, prompts=("p" * 64,),
    )  # fmt: skip


TIDAL = {"reselect_layer": 7, "sink_tokens": 0, "recent_tokens": 32}


def run_with(path: Path, found: fairness.TuningRecord, **more: Any) -> RunConfig:
    path.write_text(found.model_dump_json())
    return build_run_config(values(tuning={"records": {"miniature": str(path)}}, **more), "run.yaml")


def tune_by(
    worth: dict[tuple[str, int], float], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> tuple[list[tuple[str, Any]], fairness.TuningRecord]:
    """Tune where each method and value of its first knob has a score (0.1 unless given), and return what was tried."""
    tried: list[tuple[str, Any]] = []

    def sweep(config: Any, model: str, methods: Any, tasks: Any = ()) -> dict[str, Sequence[Any]]:
        found: dict[str, Sequence[Any]] = {}
        for variant, spec in methods.items():
            value = spec.params.get("sinks", spec.params.get("reselect_layer"))
            tried.append((spec.method, value))
            score = 1.0 if variant == "full" else worth.get((spec.method, value), 0.1)
            fields = {"task": TASKS[0], "score": score, "prompt_sha256": "a" * 64, "reason": None, "status": "ok"}
            found[variant] = [type("R", (), fields)()]
        return found

    monkeypatch.setattr(tuning, "sweep", sweep)
    return tried, tuning.tune(build_run_config(values(), "run.yaml"), "miniature", folder / "t.json")


def test_the_best_setting_wins_knob_by_knob_within_the_effort(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Streaming's knob has four settings and three are paid for; Tidal's first knob uses the effort up."""
    worth = {("streaming", 4): 0.5, ("streaming", 16): 0.75, ("streaming", 0): 0.75, ("streaming", 64): 1.0,
             ("tidal", 6): 0.9}  # fmt: skip
    tried, made = tune_by(worth, monkeypatch, tmp_path)
    assert tried == [("full", None), *(("streaming", n) for n in (4, 0, 16)), *(("tidal", n) for n in (4, 5, 6))]
    assert made.methods["streaming"].chosen == {"sinks": 0}, "a tie takes the smallest"
    assert made.methods["tidal"].chosen == {"reselect_layer": 6, "sink_tokens": 0, "recent_tokens": 0}
    assert fairness.read_tuning(tmp_path / "t.json") == made and made.prompts == ("a" * 64,)
    none = tune_by({}, monkeypatch, tmp_path)[1].methods["streaming"]
    assert none.chosen == {"sinks": 4}, "a knob without effect stays at its default"


def test_a_knob_that_tells_nothing_at_first_is_swept_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SnapKV's windows score alike while a kernel of 5 finds nothing, and differ once it is wide."""
    tried = list[tuple[int, int]]()

    def record(window: int = 16, kernel_size: int = 15, **_: Any) -> Any:
        tried.append((window, kernel_size))
        fields = {"task": TASKS[0], "prompt_sha256": "a" * 64, "reason": None, "status": "ok"}
        return type("R", (), fields | {"score": (0.5 + (window == 16) / 2) * (kernel_size == 15)})()

    monkeypatch.setattr(tuning, "sweep", lambda *of: {name: [record(**spec.params)] for name, spec in of[2].items()})
    monkeypatch.setattr(TuningSpec, "settings", 12)
    run = build_run_config(values() | {"methods": {"full": {}, "snapkv": {}}}, "run.yaml")
    made = tuning.tune(run, "miniature", tmp_path / "t.json").methods["snapkv"]
    assert made.chosen == {"window": 16, "kernel_size": 15, "pooling": "avg"}
    assert tried[1:5] == [(n, 5) for n in (32, 8, 16, 64)] and {(8, 15), (64, 15)} <= set(tried)


def test_a_grid_goes_on_while_the_best_setting_is_at_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(TuningSpec, "settings", 12)
    worth = {("streaming", 64): 0.5, ("streaming", 128): 0.75, ("streaming", 256): 0.6, ("tidal", 9): 0.9}
    tried, made = tune_by(worth, monkeypatch, tmp_path)
    assert [value for method, value in tried if method == "streaming"] == [4, 0, 16, 64, 128, 256]
    assert (made.methods["streaming"].chosen, made.methods["tidal"].chosen["reselect_layer"]) == ({"sinks": 128}, 9)
    assert [tuning.accepts("shadowkv", {"chunk": chunk}) for chunk in (1, 2)] == [False, True]
    assert not tuning.accepts("pyramidkv", {"window": 512}), "the gate has no budget that holds it"
    monkeypatch.setattr(tuning, "accepts", lambda method, params: params.get("sinks") != 256)
    assert ("streaming", 256) not in tune_by(worth, monkeypatch, tmp_path)[0]
    grids = {"streaming": {"sinks": [16, 64]}, "tidal": {"reselect_layer": [6]}}
    monkeypatch.setattr(tuning, "choices_of", lambda card, _: grids[card.name])
    tried, made = tune_by(dict.fromkeys([("streaming", 16), ("streaming", 8)], 0.5), monkeypatch, tmp_path)
    assert ("streaming", 8) in tried and made.methods["streaming"].chosen == {"sinks": 16}, "a tie beyond moves nothing"


@pytest.mark.parametrize(
    ("best", "tried", "layers", "wanted"),
    [
        (64, [8, 64], None, [128]), (8, [8, 64], None, [4]), (1, [1, 2], None, []), (0, [0, 4], None, []),
        (16, [8, 16, 64], None, []), (0.75, [0.25, 0.75], None, [0.875]), (0.25, [0.25, 0.75], None, [0.125]),
        ("max", ["avg", "max"], None, []), (31, [5, 31], None, [63]), (5, [5, 31], None, [1]), (7, [7, 31], None, [3]),
        (7, [4, 7, 10], range(4, 28), [6, 8]), (4, [4, 7], range(4, 28), [5]), (8, [7, 8, 9], range(4, 28), []),
    ],
)  # fmt: skip
def test_values_beyond_a_grid(best: float, tried: list[float], layers: range | None, wanted: list[float]) -> None:
    assert tuning.wider(best, tried, layers) == wanted


def test_a_deep_model_s_layers_are_tried_over_the_whole_depth() -> None:
    layers = tuning.choices_of(load_card("tidal"), 28)["reselect_layer"]
    assert layers == [4, 7, 10, 13, 16, 19, 22, 25] and len(tuning.choices_of(load_card("tidal"), 80)) == 3


def test_tuning_has_prompts_of_its_own(tmp_path: Path, byte_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has one of them is refused."""
    monkeypatch.setattr(TuningSpec, "settings", 2)
    models = {"miniature": {"path": str(byte_checkpoint)}}
    config = build_run_config(values(methods={"full": {}, "h2o": {}}, models=models), "run.yaml")
    path = tmp_path / "results" / "t.json"
    made = tuning.tune(config, "miniature", path)
    assert len(made.methods["h2o"].trials) == 2 and len(made.prompts) == 1 and made.left_out == ()
    shared = values(methods={"full": {}}, tuning={"records": {"miniature": str(path)}}, models=models)
    run = build_run_config(shared, "run.yaml")
    evaluate_suite(run, "miniature", "mini_recall", {"full": tmp_path / "records" / "a.parquet"}, gated=False)
    sample = get_task("mini_recall_single").samples(256, 1, run.seed, load_tokenizer(byte_checkpoint))[0]
    stolen = made.model_copy(update={"prompts": (*made.prompts, hash_texts([sample.prompt, sample.forced]))})
    path.write_text(stolen.model_dump_json())
    with pytest.raises(ConfigError, match="sample 0: knobs were tuned on this prompt"):
        evaluate_suite(run, "miniature", "mini_recall", {"full": tmp_path / "records" / "b.parquet"}, gated=False)
    path.write_text(made.model_copy(update={"model_hash": "another"}).model_dump_json())
    with pytest.raises(ConfigError, match="tuned on another checkpoint"):
        evaluate_suite(run, "miniature", "mini_recall", {"full": tmp_path / "records" / "c.parquet"}, gated=False)


def test_a_variant_takes_the_tuned_values_and_its_own_override_them(tmp_path: Path) -> None:
    found = record(tidal=TIDAL, streaming={"sinks": 16})
    own = {"full": {}, "streaming": {}, "tidal": {}, "mine": {"method": "tidal", "params": {"recent_tokens": 8}}}
    run = run_with(tmp_path / "t.json", found, methods=own)
    assert run.methods["tidal"].params_of("miniature") == TIDAL
    assert run.methods["mine"].params_of("miniature") == TIDAL | {"recent_tokens": 8}
    said = {entry.variant: (entry.tuned, entry.untuned) for entry in fairness.tuning_statuses(run, "miniature")}
    assert said["tidal"] == (True, "") and said["full"] == (None, "")
    assert said["mine"] == (False, "recent_tokens = 8, tuned: 32")
    with pytest.raises(ConfigError, match=r"methods\.mine: .*recent_tokens = 8.*allow_untuned=true"):
        fairness.require_fair(run)
    fairness.require_fair(run_with(tmp_path / "t.json", found, methods=own, allow_untuned=True))


@pytest.mark.parametrize(
    ("chosen", "methods", "says"),
    [
        ({"tidal": TIDAL}, None, r"methods\.streaming: .*is untuned \(sinks = 4, tuned: 'none'\) and tidal is tuned"),
        (None, {"full": {}, "streaming": {}, "tidal": {"params": {"reselect_layer": 6}}}, r"streaming: .* untuned"),
        (None, {"full": {}, "streaming": {"params": {"sinks": 8}}, "duo": {}}, r"methods\.duo: .*it is untuned"),
        (None, {"full": {}, "lychee": {"params": {"roles": "r.json"}}, "duo": {}},
         r"methods\.duo: .*made up, those of lychee learned"),
    ],
)  # fmt: skip
def test_a_run_that_tunes_some_methods_only_is_refused(tmp_path: Path, chosen: Any, methods: Any, says: str) -> None:
    more = {"methods": methods} if methods else {}
    if chosen:
        run = run_with(tmp_path / "t.json", record(**chosen), **more)
    else:
        run = build_run_config(values(tuning=None, **more), "run.yaml")
    with pytest.raises(ConfigError, match=says):
        fairness.require_fair(run)


def test_values_of_one_model_are_refused_on_another(tmp_path: Path) -> None:
    found = record(tidal=TIDAL, streaming={"sinks": 16}).model_copy(update={"model": "another"})
    run = run_with(tmp_path / "t.json", found)
    with pytest.raises(ConfigError, match=r"tuning\.records\.miniature: .* tuned on another; .*allow_untuned"):
        fairness.require_fair(run)
    same = fairness.read_tuning(SHIPPED).model_copy(update={"model": "another"})
    fairness.require_fair(run_with(tmp_path / "same.json", same))


def test_a_choice_that_no_trial_made_is_no_record(tmp_path: Path) -> None:
    good = fairness.read_tuning(SHIPPED)
    streaming = good.methods["streaming"]
    for wrong, says in (
        (streaming.model_copy(update={"chosen": {"sinks": 1000}}), "is no best trial"),
        (streaming.model_copy(update={"trials": streaming.trials * 4}), r"16, over settings = 12"),
    ):
        made = good.model_copy(update={"methods": good.methods | {"streaming": wrong}})
        (tmp_path / "t.json").write_text(made.model_dump_json())
        with pytest.raises(ConfigError, match=says):
            fairness.read_tuning(tmp_path / "t.json")


def test_a_knob_of_the_model_that_was_not_tuned_along_is_untuned_and_another_file_is_not() -> None:
    known = fairness.read_tuning(SHIPPED)
    tuned = {**known.methods["lychee"].fixed, **known.methods["lychee"].chosen}
    assert fairness.tuning_status("lychee", tuned, "lychee", known) == ("lychee", True, True, "")
    by_hand = fairness.tuning_status("lychee", tuned | {"retrieval_heads": 3}, "lychee", known)
    assert (by_hand.tuned, by_hand.untuned) == (False, "retrieval_heads = 3, tuned: None")
    assert fairness.tuning_status("lychee", tuned | {"roles": "other.json"}, "lychee", known).tuned


def test_a_variant_that_names_every_suite_stands_beside_the_others(tmp_path: Path) -> None:
    found = record(tidal=TIDAL, streaming={"sinks": 16})
    part = {"method": "tidal", "params": {"reselect_layer": 4}}
    for restricted in ({"suites": ["mini_recall"]}, {"budgets": [0.25]}, {"budgets": [0.25, 0.5]}):
        methods = {"full": {}, "tidal": {}, "part": part | restricted}
        with pytest.raises(ConfigError, match=r"methods\.part: .*reselect_layer = 4, tuned: 7"):
            fairness.require_fair(run_with(tmp_path / "t.json", found, methods=methods))


def test_a_variant_is_judged_where_it_runs_and_stands_beside_others() -> None:
    """Nobody tuned is fair; ablations on one budget stand aside, and so does a variant on models it does not run on."""
    weights = {"path": str(ROOT / "models" / "miniature" / "weights")}
    part = {"method": "tidal", "budgets": [0.5], "params": TIDAL}
    by_model = {"tidal": {"by_model": {"other": {"reselect_layer": 4}}}, "streaming": {"models": ["miniature"]}}
    for models, own in (({"miniature": weights}, {"streaming": {}, "tidal": {}, "part": part}),
                        ({"miniature": weights, "other": weights}, by_model)):  # fmt: skip
        more = {"models": models, "methods": {"full": {}} | own, "tuning": None}
        fairness.require_fair(build_run_config(values(**more), "run.yaml"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"suites": {"tuning": {"contexts": [512], "samples": 1}}}, r"suites\.tuning: holds prompts"),
        ({"methods": {"tidal": {"tuned": {"miniature": {}}}}}, r"methods\.tidal\.tuned"),
        ({"tuning": {"records": {"other": "x.json"}}}, r"tuning\.records: unknown model 'other'"),
        ({"tuning": {"tasks": ["mini_recall_single"]}}, "unknown tuning task 'mini_recall_single'"),
    ],
)
def test_bad_tuning_keys_are_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_run_config(values(**more), "run.yaml")


def test_nearness_to_full_tells_settings_that_answer_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """StreamingLLM scores 0 on look-ups; here each setting has a score of its own, and Full has 1."""
    monkeypatch.setattr(TuningSpec, "settings", 2)
    chosen = {"samples": 2, "contexts": [512], "tasks": ["tuning_story"], "budget": 0.1}
    config = build_run_config(values(methods={"full": {}, "streaming": {}}, tuning=chosen), "run.yaml")
    made = tuning.tune(config, "miniature", tmp_path / "t.json")
    assert made.full == {"tuning_story": 1.0} and len(made.prompts) == 2
    scores = [trial.value or 0.0 for trial in made.methods["streaming"].trials]
    assert len(set(scores)) == 2 and 0 < min(scores) < max(scores) < 1


def test_books_that_are_tuned_on_are_in_no_suite_and_need_not_be_there(tmp_path: Path) -> None:
    assert not set(TUNING_BOOKS) & {*UNSEEN, *HELD_OUT}
    for book in TUNING_BOOKS:
        (tmp_path / f"{book}.txt").write_text(f"{book} " * 300, encoding="utf-8")
    tokenizer = load_tokenizer(ROOT / "models" / "miniature" / "weights")
    prompts = get_task("tuning_prose", {"pg19": tmp_path}).samples(512, 2, 0, tokenizer)
    assert [sample.prompt[:5].strip() in sample.forced for sample in prompts] == [True] * 8
    assert {len(sample.prompt) + len(sample.forced) for sample in prompts} == {512}
    with pytest.raises(DataUnavailableError, match="longdecode data fetch pg19"):
        get_task("tuning_prose").samples(512, 2, 0, tokenizer)


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "config").glob("*.yaml"))])
def test_the_configurations_are_fair(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text(encoding="utf-8"))
    made = ((config.get("tuning") or {}).get("records") or {}).values()
    if missing := [path for path in made if path.startswith("results/") and not Path(path).is_file()]:
        pytest.skip(f"snakemake tune makes {missing[0]} first")
    run = build_run_config(config, name, check_fairness=True)
    known = fairness.read_tuning(SHIPPED)
    for name in ("tidal", "lychee", "duo", "streaming"):
        if name in run.methods and "miniature" in run.tuning.records:
            assert run.methods[name].params_of("miniature").items() >= known.methods[name].chosen.items()


def test_the_shipped_record_is_of_the_shipped_model_and_chooses_what_scored_most() -> None:
    from longdecode.evals.provenance import checkpoint_hash

    known, weights = fairness.read_tuning(SHIPPED), ROOT / "models" / "miniature" / "weights"
    assert known.model_hash == checkpoint_hash(weights)
    for method, tuned in known.methods.items():
        scores = {repr(trial.setting): trial.value or 0.0 for trial in tuned.trials}
        assert set(tuned.chosen) <= {knob.name for knob in load_card(method).tuned_knobs}
        assert len(scores) <= known.settings and scores[repr(tuned.chosen)] == max(scores.values())
