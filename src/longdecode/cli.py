"""The command ``longdecode``: run the benchmark, look at its results, add a method, check this machine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperOption

from longdecode.engine.errors import ConfigError, LongDecodeError, refuse_unknown
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.reporting.terminal import compared, show


class Once(TyperCommand):
    """A command that refuses an option given twice, of which click would take the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments as click does, once they are known to be single."""
        given = [option for option in self.make_parser(ctx).parse_args([*args])[2] if isinstance(option, TyperOption)]
        for option in (option for option in given if not option.multiple and given.count(option) > 1):
            raise ConfigError(f"{option.opts[0]}: given more than once; give it once, a list with commas")
        return super().parse_args(ctx, args)


app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
methods_app = typer.Typer(help="List the methods, or start one of your own.")
data_app = typer.Typer(help="List the suites and their data, fetch it, check it.")
app.add_typer(methods_app, name="methods")
app.add_typer(data_app, name="data")
console = Console(highlight=False, markup=False, width=None if sys.stdout and sys.stdout.isatty() else 180)


def tokens_of(text: str) -> int:
    """Return a context in tokens: ``32k`` and ``32768`` are the same."""
    number = text.lower().removesuffix("k")
    if not (number.isascii() and number.isdigit() and int(number)):
        raise ConfigError(f"--context {text}: a number of tokens is needed, such as 32k or 32768")
    return int(number) * (1024 if text.lower().endswith("k") else 1)


def budget_of(text: str) -> float | int:
    """Return a budget: ``10%`` and ``0.1`` are a share of the context, ``1024`` tokens."""
    try:
        return int(text) if text.isdecimal() else float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ConfigError(f"--budget {text}: a share such as 10%, or a number of tokens, is needed") from None


def place_of(text: str) -> tuple[str, str]:
    """Return a data set and its folder."""
    key, equals, folder = text.partition("=")
    if not equals:
        raise ConfigError(f"--data {text}: SUITE=FOLDER is needed")
    return key, folder


def listed(kind: Callable[[str], Any], words: str, help_: str) -> Any:
    """Return an option whose value is a list with commas between its entries."""
    return typer.Option(parser=lambda text: [kind(part.strip()) for part in text.split(",")], metavar=words, help=help_)


MODEL = typer.Option(help="A checkpoint's folder or hub id.")
Out = Annotated[Path | None, typer.Option(help="The configuration that is written; named after the model if left out.")]
Methods = Annotated[Any, listed(str, "NAMES", "Methods beside full.")]
Suites = Annotated[Any, listed(str, "NAMES", "Suites; longbench_prompt is one under its other protocol.")]
Contexts = Annotated[Any, listed(tokens_of, "TOKENS", "Contexts, such as 8k,32k.")]
Budgets = Annotated[Any, listed(budget_of, "BUDGETS", "Shares of the context such as 10%, or tokens.")]
Samples = Annotated[int, typer.Option(min=1, help="Prompts a task and context.")]
Places = Annotated[Any, listed(place_of, "SUITE=FOLDER", "A suite's data, where it is not in data/.")]
Force = Annotated[bool, typer.Option(help="Write over a configuration that is there.")]
METHODS, SUITES = "streaming,snapkv,quest,shadowkv", "passkey,json_kv,mini_longgen"


def main() -> None:
    """Run the command; an error of ours, a file that the system refuses or a package that is not here is one line."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a locale may lack a character that a table has
        stream.reconfigure(errors="replace")
    try:
        app()
    except (LongDecodeError, OSError, ModuleNotFoundError) as error:
        advice = "; `longdecode doctor` says what to install" * isinstance(error, ImportError)
        console.print(f"{type(error).__name__}: {error}{advice}", style="red")
        raise SystemExit(1) from None


@methods_app.callback(invoke_without_command=True)
def methods(context: typer.Context) -> None:
    """List the methods."""
    if context.invoked_subcommand:
        return
    from longdecode.methods.registry import load_card, method_names

    rows = []
    for name, card in ((name, load_card(name)) for name in method_names()):
        budget, paper = card.limits.min_budget_tokens, f"{card.paper.venue} {card.paper.year}" if card.paper else "-"
        rows.append((name, card.title, card.family, "reads all" if budget is None else f"{budget}", paper))
    show(console, ("method", "title", "family", "least budget", "paper"), rows)


@methods_app.command("new", cls=Once)
def new_method(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and _.")],
    into: Annotated[Path, typer.Option(help="Folder of methods.")] = Path("methods"),
) -> None:
    """Make a method's folder that passes the gate: the worked example of docs/adding-a-method.md under your name."""
    from longdecode.new_method import write_method

    console.print(f"{write_method(name, into)}: method.py, card.yaml, rule.py")
    if into.resolve() != (REPOSITORY / "methods").resolve():
        console.print(f"export LONGDECODE_METHOD_PATH={shlex.quote(str(into.resolve()))}", soft_wrap=True)
    console.print(f"longdecode check {name}")


@app.command(cls=Once)
def demo() -> None:
    """Answer look-ups on the miniature with five methods: what each reads and gets right. Two minutes on a CPU."""
    from longdecode.demo import demonstrated

    for row in demonstrated():  # each as it comes: half a minute lies between some
        console.print("".join(f"{cell:<20}" for cell in row))


@app.command(cls=Once)
def init(
    model: Annotated[str, MODEL],
    out: Out = None,
    methods: Methods = METHODS,
    suite: Suites = SUITES,
    context: Contexts = "8k,32k",
    budget: Budgets = "1024,4096",
    samples: Samples = 32,
    data: Places = None,
    force: Force = False,
) -> None:
    """Write a configuration for a checkpoint of your own: what fits it and this machine."""
    written = _written(out, force, model, methods, suite, context, budget, samples, dict(data or ()))
    console.print(f"{written}: longdecode run {shlex.quote(str(written))}", soft_wrap=True)


@app.command(cls=Once)
def run(
    typed: typer.Context,
    profile: Annotated[str, typer.Argument(help="A configuration file, or a profile of config/.")] = "demo",
    cores: Annotated[int, typer.Option(min=1, help="Cores that jobs may use.")] = os.cpu_count() or 1,
    target: Annotated[str, typer.Option(help="A target of the workflow: gates, scores, times, tune, all.")] = "all",
    config: Annotated[list[str] | None, typer.Option(help="KEY=VALUE over the file's, as snakemake --config.")] = None,
    model: Annotated[str | None, MODEL] = None,
    out: Out = None,
    methods: Methods = METHODS,
    suite: Suites = SUITES,
    context: Contexts = "8k,32k",
    budget: Budgets = "1024,4096",
    samples: Samples = 32,
    data: Places = None,
    force: Force = False,
) -> None:
    """Print the cost, run the workflow with one progress bar, and end with a table and the page.

    With --model no configuration is needed: the one that `longdecode init` writes for the same options is run.
    """
    from longdecode.running import run_workflow

    given = {name for name in typed.params if (s := typed.get_parameter_source(name)) and s.name == "COMMANDLINE"}
    if model is not None and "profile" in given:
        raise ConfigError(f"{profile}: --model is given too; a configuration names its own models")
    if model is not None:
        profile = str(_written(out, force, model, methods, suite, context, budget, samples, dict(data or ())))
    elif own := given & {"out", "methods", "suite", "context", "budget", "samples", "data", "force"}:
        raise ConfigError(f"--{min(own)}: belongs to --model, which is not given; a configuration has its own")
    raise typer.Exit(run_workflow(profile, cores, target, config or [], console))


@app.command(cls=Once)
def plan(
    profile: Annotated[str, typer.Argument(help="A configuration, a profile, or a folder of configurations.")] = "demo",
) -> None:
    """Print jobs, GPU hours by part, memory a job, disk, downloads, what is missing or does not fit. Nothing runs."""
    from longdecode.evals.run_config import load_run_config
    from longdecode.evals.sweep import planned
    from longdecode.learned import refusals
    from longdecode.running import config_file

    folder = next((path for path in (Path(profile), REPOSITORY / "config" / profile) if path.is_dir()), None)
    found = sorted(path for path in folder.glob("*.yaml") if path.name != "sizes.yaml") if folder else ()
    if folder and not found:
        raise ConfigError(f"{folder}: no configuration (*.yaml) in this folder")
    runs = [load_run_config(path) for path in found or [config_file(profile)]]
    console.print(*planned(runs), *refusals(runs), sep="\n", soft_wrap=True)


@app.command(cls=Once)
def check(
    method: Annotated[str, typer.Argument(help="A method's name.")],
    device: Annotated[str, typer.Option(help="Where its kernels run.")] = "auto",
) -> None:
    """Run the gate on a method: its defaults and every variant of its card."""
    from longdecode.engine.device import resolve_device
    from longdecode.methods import conformance
    from longdecode.methods.registry import load_card

    card, target = load_card(method), resolve_device(device)
    conformance.check_method(method, target)
    rows = [(check.__name__.replace("_", " "), "passed") for check in conformance.CHECKS]
    show(console, (f"{method} on {target}", ""), rows)
    console.print(f"{method} passed the gate: {len(rows)} checks, with defaults and {len(card.variants)} variants")


@app.command(cls=Once)
def compare(
    a: Annotated[str, typer.Argument(help="A variant, a method, or a folder of results/.")],
    b: Annotated[str, typer.Argument(help="Another.")],
    context: Annotated[str | None, typer.Option(help="A context, such as 32k.")] = None,
    profile: Annotated[str | None, typer.Option(help="One run; all of results/ if left out.")] = None,
) -> None:
    """Print what two variants scored on the same prompts, and how fast they decode, from the tables of results/.

    Of two folders of results, print by cell how many outputs and scores are the same.
    """
    if Path(a).is_dir() and Path(b).is_dir():
        from longdecode.analysis.stage import AGREEMENT, agreement

        return show(console, AGREEMENT, agreement(Path(a), Path(b)))
    quality, speed = compared(Path("results"), a, b, tokens_of(context) if context else None, profile)
    show(console, ("run", "model", "task", "context", "budget", "n", a, b, "difference", "verdict"), quality)
    show(console, ("run", "model", "context", "batch", "budget", f"{a}, times Full", f"{b}, times Full"), speed)
    if not quality and not speed:
        raise ConfigError(f"no run in results/ compared {a} and {b} at one task, context and budget, or timed both")


@app.command(cls=Once)
def report(
    profile: Annotated[str, typer.Argument(help="A run; the site over all runs if left out.")] = "",
    shown: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Print where a run's site is; build it first if it is missing."""
    name = name_of(profile) if profile else ""
    results, page = Path("results", name), Path("reports", name, "index.html")
    if not results.is_dir():
        raise ConfigError(f"no {results}; longdecode run {profile or 'demo'} makes it")
    if not page.is_file():
        from longdecode.reporting.build import build, build_all

        (build if name else build_all)(results, page.parent)
    console.print(str(page))
    if shown:
        typer.launch(page.resolve().as_uri())


@app.command(cls=Once)
def verify(profiles: Annotated[list[str] | None, typer.Argument(help="Runs; all if left out.")] = None) -> None:
    """Check that results and pages are as they were written."""
    from longdecode.evals import manifest

    names = [name_of(profile) for profile in profiles or []]
    # A manifest may be what was lost.
    places = ("results/*/config.yaml", "results/*/manifest.txt", "reports/*/index.html", "reports/*/manifest.txt")
    every = sorted({path.parent for place in places for path in Path().glob(place)})
    if not every:
        raise ConfigError("no manifest of any run in results/ or reports/")
    refuse_unknown("verify", "run", names, {folder.name for folder in every})
    folders = [folder for folder in every if not names or folder.name in names]
    wrong = [problem for folder in folders for problem in manifest.problems(folder)]
    console.print(*wrong, f"{len(folders)} folders, {len(wrong)} problems", sep="\n")
    raise typer.Exit(bool(wrong))


@data_app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """List the suites: what they ask, where their data comes from, its licence, megabytes, and what pins its bytes."""
    if not context.invoked_subcommand:
        from longdecode.data_sets import data_rows

        show(console, ("suite", "asks", "data", "source", "licence", "MB", "hash or revision"), data_rows())


@data_app.command("fetch", cls=Once)
def fetch_data(
    suite: Annotated[str, typer.Argument(help="A suite or a data set, such as ruler.")],
    to: Annotated[Path, typer.Option(help="Folder of all data; the suite's goes to one inside.")] = Path("data"),
) -> None:
    """Fetch a suite's data in the layout that configurations name."""
    from longdecode.data_sets import fetch

    for line in fetch(suite, to):
        console.print(line)


@data_app.command("check", cls=Once)
def check_data(folder: Annotated[Path, typer.Argument(help="Folder of all data.")] = Path("data")) -> None:
    """Read a prompt of every task whose data lies in a folder, and compare hashes."""
    from longdecode.data_sets import check

    rows = list(check(folder))
    show(console, ("suite", "tasks read", "MB", "first fault"), rows)
    raise typer.Exit(any(row[-1] != "ok" for row in rows))


@app.command(cls=Once)
def doctor() -> None:
    """Check Python, torch, the GPU, Triton, bubblewrap, disk and network."""
    from longdecode.doctor import examined

    found = list(examined())
    console.print(*(f"{'ok  ' if fine else 'LOOK'} {name:<12} {said}" for name, fine, said in found), sep="\n")
    raise typer.Exit(not all(fine for name, fine, _ in found if name in ("python", "torch", "packages")))


@app.command("add-results", cls=Once)
def add_results(folder: Annotated[Path, typer.Argument(help="A folder of results/ from elsewhere.")]) -> None:
    """Check a run's tables and manifest, and copy what the manifest lists to results/."""
    from longdecode.reporting.runs import add_run

    target = Path("results", name_of(str(folder / "config.yaml")))
    # Runs are ignored, so that one's own stay out of a commit; what the manifest lists is all that lies there.
    console.print(f"{target}: {add_run(folder, target)} files; for a pull request: git add -f {target}")


def _written(out: Path | None, force: bool, *choices: Any) -> Path:
    """Write the configuration that options ask for, say what was found, and return its path."""
    from longdecode.starting import Choices, write_config

    return write_config(Choices(*choices), out, force, console.print)


def name_of(profile: str) -> str:
    """Return the name that a run's folders have: a configuration's key ``profile``, or a name as it is."""
    from longdecode.evals.run_config import load_run_config

    return load_run_config(Path(profile)).profile if profile.endswith((".yaml", ".yml")) else profile
