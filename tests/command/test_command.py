"""Each act of the command ``longdecode``, on small results of its own."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import huggingface_hub
import pandas as pd
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from fake_tokenizer import byte_level
from longdecode import data_sets, running
from longdecode.cli import app
from longdecode.engine.errors import ConfigError, GateError, LongDecodeError
from longdecode.evals import manifest
from longdecode.evals.datasets.reader import SOURCES
from longdecode.evals.generators.prose import filler
from longdecode.evals.run_config import load_run_config
from longdecode.methods.registry import METHOD_PATH_VARIABLE, method_names
from longdecode.reporting import terminal
from longdecode.reporting.progress import Told
from papers.checkpoints import SPECIAL, VOCAB, WRITTEN, write_checkpoint

ROOT = Path(__file__).parents[2]
MINIATURE = ROOT / "models" / "miniature" / "weights"
ROLES = str(ROOT / "models" / "miniature" / "roles" / "hardkuma.json")
PAIR = {
    "model": "m", "b_model": "m", "suite": "s", "context": 32768, "batch": 1, "n": 9, "unit": "%", "better": "higher",
    "budget": "1024", "margin": 2.0, "p_holm": 0.01,
}  # fmt: skip


def said(*arguments: str | Path) -> str:
    """Return what a command prints, its error included."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def refused(command: str, refusals: Mapping[str, str]) -> None:
    """Hold the words after a command, each with the reason for which they are refused."""
    for words, why in refusals.items():
        with pytest.raises(LongDecodeError, match=why):
            said(*shlex.split(f"{command} {words}"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands are typed in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def results(place: Path) -> Path:
    """A folder with one run of tables."""
    folder = place / "results" / "mine"
    folder.mkdir(parents=True)
    text = (ROOT / "config" / "tiny.yaml").read_text().replace("profile: tiny", "profile: mine")
    text = text.replace("models/miniature/tuning.json", str(ROOT / "models/miniature/tuning.json"))
    (folder / "config.yaml").write_text(text)
    names = ("task", "a", "b", "b_budget", "a_value", "b_value", "difference", "low", "high", "verdict")
    rows = [
        ("t", "lychee", "quest", "1024", 80.0, 50.0, 30.0, 20.0, 45.0, "within"),
        ("t", "quest", "full", "1024", 50.0, 90.0, -40.0, -50.0, -30.0, "worse"),
        ("u", "quest", "full", "1024", 90.0, 90.0, 0.0, -1.0, 1.0, "within"),
        ("t", "lychee", "full", "full", 80.0, 80.0, 0.0, -1.0, 1.0, "within"),
    ]
    pd.DataFrame(rows, columns=names).assign(**PAIR).to_csv(folder / "comparisons.csv", index=False)
    step = {"bench": "decode", "model": "m", "stage": "step", "context": 32768, "batch": 1, "budget": "1024"}
    speeds = [step | {"variant": v, "status": "ok", "ratio": r} for v, r in (("quest", 1.5), ("lychee", 2.5))]
    pd.DataFrame(speeds).to_csv(folder / "speed.csv", index=False)
    cells = [{"status": status, "variant": "full", "task": "t", "suite": "s"} for status in ("ok", "oom")]
    pd.DataFrame(cells).to_csv(folder / "summary.csv", index=False)
    manifest.rewrite(folder)
    return folder


def test_methods_are_listed_with_their_least_budget() -> None:
    lines = said("methods").splitlines()
    assert {line.split()[0] for line in lines[1:]} >= set(method_names())
    (quest,) = [line for line in lines if line.startswith("quest ")]
    assert "ICML 2024" in quest and " pages " in quest


def test_a_new_method_passes_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    into = tmp_path / "my [own] methods"
    assert f"export {METHOD_PATH_VARIABLE}='{into}'" in said("methods", "new", "last_ones", "--into", str(into))
    monkeypatch.setenv(METHOD_PATH_VARIABLE, str(into))
    shown = said("check", "last_ones", "--device", "cpu")
    assert "reads stay within budget" in shown and "last_ones passed the gate" in shown
    taken = ("last_ones", "quest", "Two-Words", "9lives", "class", "none", "selection", "None")
    refused(f"methods new --into '{into}'", {name: name for name in taken})
    refused("methods new", {"registry": r"methods/registry\.py is there"})


def test_check_says_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METHOD_PATH_VARIABLE, str(tmp_path))
    said("methods", "new", "too_few", "--into", str(tmp_path))
    rule = tmp_path / "too_few" / "rule.py"
    rule.write_text(rule.read_text().replace("n - ", "n - 1 - "))
    with pytest.raises(GateError, match="too_few"):
        said("check", "too_few", "--device", "cpu")


def test_plan_prices_what_is_not_here_and_says_what_is_missing(tmp_path: Path) -> None:
    shown = said("plan", "papers")
    rows = {line.split()[0]: line.split() for line in shown.splitlines()[2:]}
    jobs, hours, memory, disk, download = (float(cell.replace(",", "")) for cell in rows["papers-retro"][1:])
    assert jobs >= 10 and hours > 1 and 16 < memory < 80 and disk >= download > 16
    assert float(rows["all"][1]) == sum(float(row[1]) for name, row in rows.items() if name.startswith("papers-"))
    assert float(rows["all"][3]) == 162.6 == max(float(row[3]) for name, row in rows.items() if "papers-" in name)
    # 131,072 tokens of the 8B shape are 17.2 GB, page bounds of Quest a sixteenth of that, weights 16.1, the rest 1.
    over = "decode on llama3-8b, 131,072 tokens, batch 8: quest needs 162.6 GB, NVIDIA H200 has 150.1"
    assert f"does not fit: {over}; the largest batch that fits: 7" in shown
    assert "gated: https://huggingface.co/meta-llama/Llama-3.2-1B (accept its licence there, then `hf auth" in shown
    own, tiny = tmp_path / "own.yaml", (ROOT / "config" / "tiny.yaml").read_text()
    own.write_text(tiny.replace("models/miniature/weights", "org/unheard-of"))
    assert "missing: the size of org/unheard-of is not known" in said("plan", str(own))
    own.write_text(tiny.replace("contexts: [1024]", "contexts: [99999]"))
    assert "does not fit: miniature reads 16,384 tokens at most: no score at [99999]" in said("plan", str(own))


def test_plan_refuses_what_a_run_would_refuse(tmp_path: Path) -> None:
    other, own = shutil.copytree(MINIATURE, tmp_path / "other"), tmp_path / "own.yaml"
    text = (ROOT / "config" / "tiny.yaml").read_text().replace("models/miniature/weights", str(other))
    own.write_text(text.replace("results/tiny/identification/miniature/hardkuma/roles.json", ROLES))
    assert "refused" not in said("plan", own) and "missing" not in said("plan", own)
    (other / "config.json").write_text((other / "config.json").read_text() + " ")
    assert f"refused: {own}: methods.lychee: {ROLES} was learned on another checkpoint" in said("plan", own)
    own.write_text(text.replace("models/miniature/tuning.json", "gone.json"))
    assert f"refused: {own}: tuning.records.miniature: gone.json: no such tuning record, by which" in said("plan", own)
    (other / "tokenizer.json").unlink()
    (other / "tokenizer_config.json").unlink()
    assert f"missing: models.miniature: {other} has no tokenizer" in said("plan", own)


@pytest.mark.parametrize("table", ["qwen-64k 13 task", "qwen-nosa 21 model", "h200 1 scores:"])
def test_a_long_table_hides_no_answer_and_a_short_one_no_model(table: str, capsys: pytest.CaptureFixture) -> None:
    folder, rows, first = table.split()
    terminal.show_ended(Console(width=200), ROOT / "results" / folder)
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[0].split()[0]) == (int(rows), first)


def test_compare_prints_pairs_and_speeds_from_tables(results: Path) -> None:
    pairs = pd.read_csv(results / "comparisons.csv")
    alone = pairs[pairs.task == "u"].assign(a="lychee", a_value=70.0, verdict="worse")
    pd.concat([pairs, alone]).to_csv(results / "comparisons.csv", index=False)
    shown = said("compare", "lychee", "quest", "--context", "32k")
    assert "+30 (+20 to +45)" in shown and "lychee is better" in shown
    assert shown.count("not paired") == shown.count("worse / within beside full") == 1 and " 70 " in shown
    assert shown.splitlines()[-1].split()[-2:] == ["2.50", "1.50"]
    turned = said("compare", "quest", "lychee")
    assert "-30 (-45 to -20)" in turned and turned.splitlines()[-1].split()[-2:] == ["1.50", "2.50"]
    assert turned.count("is better") == turned.count("lychee is better") > 0
    refusals = {
        "lychee qest": "nearest valid name: 'quest'", "lychee quest --context 8k": "at one task, context",
        "lychee quest --profile mne": "unknown run of results/ 'mne'; nearest valid name: 'mine'",
        "quest quest": "quest is compared with itself", "results/mine results": "no prompt that both have scored",
    }  # fmt: skip
    refused("compare", refusals)
    shutil.rmtree(results.parent)
    refused("compare", {"lychee quest": r"results: no comparisons\.csv"})


def test_verify_finds_a_changed_table(results: Path) -> None:
    assert "1 folders, 0 problems" in said("verify", "mine")
    refused("verify", {"mine mne": "verify: unknown run 'mne'; nearest valid name: 'mine'"})
    (results / "speed.csv").write_text("other\n")
    assert "1 problems" in (told := CliRunner().invoke(app, ["verify"])).output and told.exit_code == 1
    with pytest.raises(manifest.ManifestError, match=r"speed\.csv: changed since it was written"):
        said("report", "mine")


def test_results_from_elsewhere_are_checked_and_copied(results: Path) -> None:
    away = results.rename(results.parents[1] / "away")
    (away / "not_listed.sh").write_text("")
    shutil.copy(ROOT / ".gitignore", ".")
    add = said("add-results", str(away)).strip().rpartition(": ")[2]
    for step in ("git init -q", "git check-ignore -q results/mine/speed.csv", add):
        subprocess.run(step.split(), check=True)
    assert {path.name for path in results.iterdir()} == {path.name for path in away.iterdir()} - {"not_listed.sh"}
    refused("add-results", {str(away): "is there already"})
    shutil.rmtree(results)
    outside = results.parents[1] / "outside.csv"
    outside.write_text("status,variant\nok,full\n")
    faults: dict[str, Callable[[Path], object]] = {
        "changed since": lambda file: file.write_text("other\n"),
        "no column 'variant'": lambda file: (file.write_text("status\nok\n"), manifest.rewrite(away)),
        "no table that can be read": lambda file: (file.write_bytes(b"\xff"), manifest.rewrite(away)),
        "leads out of": lambda file: (file.unlink(), file.symlink_to(outside), manifest.rewrite(away)),
    }
    for why, damage in faults.items():
        damage(away / "summary.csv")
        with pytest.raises(LongDecodeError, match=why):
            said("add-results", str(away))
        assert not [*results.parent.iterdir()]


def test_report_says_where_the_site_is(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no results/other; longdecode run other"):
        said("report", "other")
    page = results.parents[1] / "reports" / "mine" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("")
    monkeypatch.setattr("typer.launch", (opened := list[str]()).append)
    assert said("report", str(results / "config.yaml"), "--open").strip() == "reports/mine/index.html"
    assert opened == [Path("reports/mine/index.html").resolve().as_uri()]
    assert "reports/mine/manifest.txt: no manifest" in CliRunner().invoke(app, ["verify"]).output


def test_data_is_listed_fetched_and_checked_in_one_layout(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = [line for line in said("data").splitlines() if line.startswith("gpqa")]
    assert "Idavidrein/gpqa" in row and "CC BY" in row and row.split()[-2:] == ["SHA-256", "41d1213cd7a4"]
    pins = {name: data_sets._pin(name, data) for name, data in SOURCES.items()}
    assert (pins["pg19"], pins["nlu"]) == ("revision c5e39bf32e33", "made of SHA-256 5f6dbf6d38fc")
    assert {name: pin for name, pin in pins.items() if " " not in pin} == {"prose": "yours"}
    monkeypatch.setenv("HF_ENDPOINT", "https://nowhere.invalid")
    refused("data", {"fetch ruler": "reach", "fetch RULER": "ruler'", "fetch passkey": "nothing", "check .": "no data"})
    (file := Path("data/math/gsm8k/test.jsonl")).parent.mkdir(parents=True)
    file.write_text('{"question": "What is 1 + 1?", "answer": "#### 2"}\n')
    done = CliRunner().invoke(app, ["data", "check"])
    assert done.exit_code == 1 and "math " in done.output and "1 of 7" in done.output
    assert set(SOURCES) == set(data_sets.DOWNLOADS)


def test_doctor_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    lines = {line[5:17].strip(): line for line in said("doctor").splitlines()}
    assert lines["python"].startswith("ok") and lines["torch"].startswith("ok")
    assert lines["bubblewrap"].startswith("LOOK") and "apt-get install bubblewrap" in lines["bubblewrap"]
    assert {"gpu", "triton", "disk", "cache", "network"} <= set(lines)


LOG = """\
rule gate:
evaluate_mini_book 1
evaluate_mini_recall 1
Finished jobid: 3 (Rule: gate)
1 of 3 steps (33%) done
Finished jobid: 2 (Rule: evaluate_mini_book)
2 of 3 steps (67%) done
quest m context=9 budget=1 n=0 oom: too large
Finished jobid: 0 (Rule: evaluate_mini_recall)
3 of 3 steps (100%) done
"""
FAILED = "ConfigError: it broke\nRuleException:\nCalledProcessError in file a, line 7:\nWorkflowError in rule b:\nOlder"
FAILED += "\nMissingInputException in rule c:\nMissing input files for rule c:\n    affected files:\n        d"


@pytest.mark.parametrize("status", [0, 1])
def test_a_run_shows_cells_done_and_ends_in_answer(results: Path, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script = results / "snakemake.py"
    script.write_text(f"print({LOG + FAILED!r})\nraise SystemExit({status})\n")
    monkeypatch.setattr(running, "_command", lambda *_: [running.sys.executable, str(script)])
    asked = ["run", str(results / "config.yaml"), "--cores", "2", "--config", "allow_untuned=true"]
    done = CliRunner().invoke(app, asked)
    lines = done.output.splitlines()
    assert done.exit_code == status and lines[2].startswith("mine ") and "GPU hours" in lines[1]
    # Four variants run on mini_recall, two on mini_book, each at one budget of one context.
    assert next(line for line in lines if line.startswith("[2/3]")).split("cells ")[1].startswith("2/6  about ")
    assert (results / "run.log").read_text().startswith("rule gate:") and Path("reports/mine").is_dir()
    if status:
        assert lines[-4:-2] == ["ConfigError: it broke", "WorkflowError in rule b: Older"] and "/run.log" in lines[-1]
        assert lines[-2] == "MissingInputException in rule c: Missing input files for rule c: affected files: d"
        return
    *_, row, first, second, third = lines
    assert " ".join(row.split()) == "u 32,768 quest 1024 9 90 90 +0 (-1 to +1) % within 1.50 at batch 1"
    said_of_full = "answer: within the margin of Full on every suite: lychee at 1024; "
    assert first == said_of_full + "1 of 2 variants and budgets are worse on some task"
    assert second == "warnings: not every method is tuned; 1 cells oom; oom: too large"
    assert third == "reports/mine/index.html"


def test_a_run_goes_to_the_right_file_and_profile(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = running._command(demo := ROOT / "config" / "demo.yaml", 2, "all", ["seed=1"])
    assert own[1:3] + own[-5:] == ["-m", "snakemake", "all", "--configfile", str(demo), "--config", "seed=1"]
    assert running._command(Path("my.yaml"), 2, "scores", [])[-3:] == ["scores", "--configfile", "my.yaml"]
    refusals = {
        "demmo": "nearest valid name: 'demo'",
        str(ROOT / "config" / "demmo.yaml"): r"no such configuration file; nearest configuration: .*demo\.yaml",
        "tiny --config profile=../up": "profile: is '../up'", "tiny --config budgets": "budgets: is None",
        "tiny --methods quest": "--methods: belongs to --model", "--model ''": "has no config.json",
        f"--model {MINIATURE} --suite RULER": "nearest valid name: 'ruler'",
        f"tiny --model {MINIATURE}": "tiny: --model is given too", "--target scors": "nearest valid name: 'scores'",
    }  # fmt: skip
    refused("run", {"tiny": r"its paths start at .*; run there, or .*: ln -s .*/models \."})
    (place / "models").symlink_to(ROOT / "models")
    monkeypatch.setattr(running, "_follow", None)  # nothing may start
    refused("run", refusals)
    assert [*place.iterdir()] == [place / "models"]
    (place / "own.yaml").write_text("profile: tiny")
    assert (running.config_file("own"), running.config_file("tiny").parent.name) == (Path("own.yaml"), "config")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for variable, named in (("TMPDIR", ""), ("HOME", "XDG_CACHE_HOME"), ("XDG_CACHE_HOME", "")):  # the last comes first
        monkeypatch.setenv(variable, str(place / "own.yaml"))
        refused("run", {"tiny": rf"own\.yaml(/\.cache)? cannot be written \(.*; {named or variable} names another"})


@pytest.mark.parametrize("reached", [1, 2])
def test_what_ends_the_command_ends_the_workflow_once(place: Path, reached: int) -> None:
    """A second signal at once may lock Snakemake up, where the first one reached it as well as the command."""
    told = f"for pid in (os.getppid(), os.getpid())[:{reached}]: os.kill(pid, 15)"
    ends = "import os, signal, time\ngot = []\nsignal.signal(15, lambda *_: got.append(1))\n" + told
    (place / "work.py").write_text(f"{ends}\nwhile not got: time.sleep(0.1)\ntime.sleep(1)\nopen(f'{{len(got)}}', 'w')")
    with pytest.raises(KeyboardInterrupt):
        running._follow([running.sys.executable, "work.py"], {}, Path("log"), Told({}), Console())
    assert {path.name for path in place.iterdir()} == {"work.py", "log", "1"}


@pytest.mark.slow
def test_three_commands_lead_to_the_table(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clone, setup, run: Llama 3 by its id, from the hub's cache and without network, the others from folders.

    The others run beside it, since their own configurations differ from its in the model alone.
    """
    block = (ROOT / "docs" / "running.md").read_text().split("```")[1].splitlines()[1:]
    warm, command = ROOT / "tests" / "workflow" / "warm_snakemake.py", running._command
    monkeypatch.setattr(running, "_command", lambda *given: [running.sys.executable, str(warm), *command(*given)[3:]])
    typed = ["git clone", *(line for line in block if "data fetch" not in line)]  # passkeys are generated
    assert len(typed) <= 3 and typed[-1].startswith("longdecode run --model ")
    tokenizer, size = byte_level(filler(random.Random(0), 40_000), VOCAB, SPECIAL), {"layers": 6, "kv_heads": 4}
    first, *others = WRITTEN["strangers"]
    write_checkpoint(place / "hf", first, size, tokenizer)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(place / "hf"))
    monkeypatch.setenv("HF_HUB_CACHE", str(place / "hf"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    options = ("--suite", "passkey", "--context", "1k", "--budget", "25%", "--samples", "1", "--methods", "quest")
    models, label = {}, "llama-3.1-8b-instruct"
    for name in others:
        folder = write_checkpoint(place / "elsewhere", name, size, tokenizer).rename(name.split("/")[1].lower())
        said("init", "--model", folder, *options)
        models |= {folder.name: yaml.safe_load(Path(f"{folder}.yaml").read_text())}
    beside = json.dumps({key: own.pop("models")[key] for key, own in models.items()})
    lines = said(*typed[-1].split()[1:3], first, *options, "--config", f"models={beside}").splitlines()
    ran = yaml.safe_load(Path(f"{label}.yaml").read_text())
    assert all(ran == own | {"profile": label, "models": ran["models"]} for own in models.values())
    found = [line.split()[:6] for line in lines if " quest " in line]
    assert sorted(found) == sorted([key, "passkey", "1,024", "quest", "0.25", "5"] for key in (label, *models))
    assert lines[-1] == f"reports/{label}/index.html" and Path(lines[-1]).stat().st_size > 1000


def test_a_configuration_holds_what_fits_and_what_comes_first(place: Path, byte_checkpoint: Path) -> None:
    asked = ("init", "--model", MINIATURE, "--methods", "lychee,tokenswift", "--suite", "ruler,ruler_decoded,longbench")
    shown = said(*asked, "--context", "2k,32k", "--budget", "10%,512")
    assert "contexts [2048, 16384] instead of [2048, 32768]" in shown and "its 5 tasks without data" in shown
    assert f"lychee: roles of this checkpoint: {ROLES}" in shown
    run = load_run_config("weights.yaml")
    assert {*run.suites} == {"ruler", "ruler_decoded", "longbench"} and len(run.suites["ruler_decoded"].tasks) == 5
    assert [budget.text for budget in run.budgets] == ["0.1", "512"] and str(run.data["longbench"]) == "hub"
    refusals = {"": r"weights\.yaml is there already, with other choices; --force", "--budget -5": "budgets: -5"}
    refused(f"init --model {MINIATURE}", refusals)
    (place / "data" / "ruler").mkdir(parents=True)
    asked = ("--methods", "duo,tokenswift,medusa", "--suite", "ruler", "--out", "own.yaml")
    with pytest.raises(ConfigError, match=r"duo: roles are learned on passkeys and .*, 7,179 tokens; .* reads 1,024"):
        said("init", "--model", byte_checkpoint, *asked)
    longer = shutil.copytree(byte_checkpoint, place / "longer")
    (longer / "config.json").write_text((byte_checkpoint / "config.json").read_text().replace(" 1024", " 9000"))
    shown, own = said("init", "--model", longer, *asked), load_run_config("own.yaml")
    assert "first step: roles of" in shown and "about 1 GPU minutes" in shown
    assert own.data == {"ruler": Path("data/ruler"), "pg19": Path("hub")} and len(own.suites["ruler"].tasks) == 13
    assert f"{own.methods['duo'].params['roles']}".endswith("/duo_roles/roles.json")
    # Ten passkeys of 32 words in bytes, a quarter more, and behind the longest context the answers.
    assert own.training["duo_roles"].contexts == (4096, 5917)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (("--methods", "snpkv"), "--methods: unknown method 'snpkv'; nearest valid name: 'snapkv'"),
        (("--suite", "rulr"), "--suite: unknown suite 'rulr'; nearest valid name: 'ruler'"),
        (("--budget", "10%,x"), "--budget x: a share such as 10%"),
        (("--context", "1k,0"), "--context 0: a number of tokens is needed"),
        (("--context", "²"), "--context ²: a number of tokens is needed"),
        (("--out", "own.cfg"), "--out own.cfg: the name of a configuration ends in .yaml"),
        (("--suite", "longgenbench"), "`longdecode data fetch longgenbench` fetches it"),
        (("--data", "ruler"), "--data ruler: SUITE=FOLDER is needed"),
        (("--data", "ruler=ruler/data", "--suite", "ruler"), "data.ruler: no such folder: ruler/data"),
        (("--methods", "nosa"), "--methods nosa: a trained fork of weights is needed"),
        (("--model", "other"), "--model: given more than once"),
        (("-", "org/no"), "--model org/no: no such folder, and not of the hub"),
        (("-", "qwen"), "--model qwen: unknown model 'qwen'; nearest valid name: 'qwen2.5-coder-"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(place: Path, option: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        said("run", "--model", *(option[1:] if option[0] == "-" else (MINIATURE, *option)))
    assert expected in str(refused.value) and not [*place.iterdir()]
