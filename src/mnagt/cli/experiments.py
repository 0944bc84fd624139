"""Many runs: the quickstart, trials, searches, the paper's experiments."""

import argparse
import logging
import math
import shlex
import sys
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mnagt.cli.options import Parser, add_options, option, print_table, read_options
from mnagt.cli.training import run_config, run_options, with_open_settings
from mnagt.errors import InputError
from mnagt.experiments.config import CompareConfig, QuickstartConfig, RayConfig, ReproduceConfig, TuneConfig
from mnagt.files import make_folder
from mnagt.registry import lookup
from mnagt.runs.config import RunConfig


def quickstart_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"), metavar="FOLDER", help="[runs/quickstart]")
    parser.add_argument("--open", action="store_true", help="open the report in a browser")
    add_options(parser, QuickstartConfig, "cross-validation")


def run_quickstart(args: argparse.Namespace) -> None:
    """Cross-validates the default model, a GIN and a linear model on MUTAG, saves a model, predicts unseen molecules
    and writes a report."""
    from mnagt.experiments.quickstart import quickstart

    config = QuickstartConfig(**read_options(args, QuickstartConfig))
    make_folder(args.out)  # the report comes last: better to know now

    def show_progress(words: str) -> None:
        print(f"\r  {words:40}\r", end="", file=sys.stderr, flush=True)

    is_terminal = sys.stderr.isatty()
    quickstart(config, args.out, print, show_progress if is_terminal else lambda words: None)
    if args.open and not webbrowser.open((args.out / "report.html").resolve().as_uri()):
        print(f"no browser was found; open {args.out / 'report.html'} yourself", file=sys.stderr)


def trials_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    add = parser.add_argument
    recipes = "TOML files, each with one recipe or several, or recipes of the package: nci1 for all, nci1/gin for one"
    add("recipes", nargs="+", type=Path, metavar="RECIPE", help=recipes)
    add("--seeds", type=int, default=10, metavar="N", help="how many seeds, each with its own split [10]")
    add("--first-seed", type=int, default=0, metavar="N", help="the first of them [0]")
    add("--jobs", type=int, default=1, metavar="N", help="trials that run at a time [1]")
    add("--device", help="cpu, cuda, ... [as the recipe says]")
    add("--validation-only", action="store_true", help="a sweep: compare by validation, and never score test parts")
    folders = "folders of index files in FOLDER that seeds take turns at"
    add("--split-folders", type=Path, metavar="FOLDER", help=folders)
    add("--minutes", type=float, default=math.inf, metavar="X", help="start no trial after so long [no limit]")
    add("--ledger", type=Path, default=Path("results/trials.jsonl"), metavar="FILE", help="[results/trials.jsonl]")
    engine_options(parser)


def run_trials(args: argparse.Namespace) -> None:
    """Runs recipes over several seeds and splits, in parallel, and prints mean and deviation of the test score.
    Finished trials are kept in a ledger and not run again."""
    from mnagt.experiments import trials
    from mnagt.experiments.ledger import Ledger
    from mnagt.runs.recipes import read_recipes

    if args.seeds < 1 or args.jobs < 1:
        raise InputError(f"--seeds and --jobs count from 1, got {args.seeds} and {args.jobs}")
    if args.first_seed < 0:
        raise InputError(f"--first-seed counts from 0, got {args.first_seed}")
    recipes = {_recipe_name(path, name): config for path in args.recipes for name, config in read_recipes(path).items()}
    if args.device:
        recipes = {name: replace(config, device=args.device) for name, config in recipes.items()}
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    configs = {name: [trials.with_seed(config, seed) for seed in seeds] for name, config in recipes.items()}
    if args.split_folders:
        configs = {name: trials.with_split_folders(each, args.split_folders) for name, each in configs.items()}

    def print_trial(config: RunConfig, record: dict[str, Any]) -> None:
        result = record["result"]
        part, score = ("test", result["test"][result["metric"]]) if result["test"] else ("valid", record["chosen_by"])
        _log(f"{config.dataset} {config.model} seed {config.train.seed}: {part} {score:.4f}")

    run = partial(trials.run_trials, ledger=Ledger(args.ledger), is_validation_only=args.validation_only)
    until, everything = time.time() + 60 * args.minutes, [config for each in configs.values() for config in each]
    run(everything, jobs=args.jobs, ray=read_ray(args), on_trial=print_trial, until=until)
    records = {name: run(each, until=0.0) for name, each in configs.items()}
    records = {name: each for name, each in records.items() if each}
    print_table(*trials.summary_table(records, is_validation_only=args.validation_only))
    args.dataset = next(iter(recipes.values())).dataset


def _recipe_name(path: Path, recipe: str) -> str:
    """How tables call a recipe: FILE/NAME, or FOLDER/FILE of a file with one recipe."""
    if recipe == path.name:
        return f"{path.parent.stem}/{recipe}"
    return f"{path.resolve().parent.name if recipe == path.stem else path.stem}/{recipe}"


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def engine_options(parser: argparse.ArgumentParser) -> None:
    engine = "processes of this machine, or a Ray cluster [local]"
    parser.add_argument("--engine", default="local", choices=("local", "ray"), help=engine)
    add_options(parser, RayConfig, "on a Ray cluster (--engine ray)")


def read_ray(args: argparse.Namespace) -> RayConfig | None:
    """The Ray cluster of ``--engine ray``; None for local processes."""
    settings = read_options(args, RayConfig)
    if args.engine == "local":
        if settings:
            raise InputError(f"{', '.join(map(option, settings))}: only with --engine ray")
        return None
    if args.jobs not in (None, 1, "1"):
        raise InputError("--jobs is for --engine local; on Ray, --cpus-per-trial says how many run at a time")
    return RayConfig(**settings)


def tune_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder of the study [runs/tune-DATASET-MODEL]")
    parser.add_argument("--space", type=Path, metavar="FILE", help="TOML file with the search space, a table [space]")
    add_options(parser, TuneConfig, "the search")
    engine_options(parser)
    run_options(parser, words)


def run_tune(args: argparse.Namespace) -> int:
    """Searches for the settings with the best validation score (Optuna: TPE, with pruning), starting from those given.
    The test part is never scored. The same command again goes on where it stopped."""
    from mnagt.experiments.tune import tune
    from mnagt.experiments.tune_result import BEST, REPORT, TRIALS, TrialResult

    config, search = run_config(args), TuneConfig(**read_options(args, TuneConfig))
    out = args.out or Path("runs") / f"tune-{Path(config.dataset).stem}-{config.model}"

    def print_trial(trial: TrialResult) -> None:
        score = "" if trial.score is None else f" {trial.score:.4f}"
        details = trial.reason or f"epochs: {trial.epochs}, {trial.seconds:.1f} s"
        _log(f"trial {trial.number}: {trial.state}{score} ({details})")

    try:
        result = tune(config, out, search=search, space=args.space, ray=read_ray(args), on_trial=print_trial)
    except KeyboardInterrupt:
        _log("mnagt: interrupted; what is finished is kept, and the same command goes on")
        return 130
    if result.best is None:
        print(f"no trial has finished; {out / TRIALS} gives the reasons, and the same command goes on")
        return 0
    print(f"best of {result.count}: trial {result.best.number}, validation {result.metric} {result.best.score:.4f}")
    print(f"report in {out / REPORT}; try: mnagt trials {out / BEST} --first-seed {config.train.seed + search.seeds}")
    return 0


def compare_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.set_defaults(words=words)
    _comparison_options(parser)
    run_options(parser, words, has_model=False)


def _comparison_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``mnagt compare`` that ``mnagt train`` lacks."""
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder of ledger and page [runs/compare-DATASET]")
    add_options(parser, CompareConfig, "comparison")


def run_compare(args: argparse.Namespace) -> int:
    """Trains several models on the same splits and writes a page: which of them to use for these data, with intervals,
    cost and learning curve. The same command again goes on where it stopped."""
    from mnagt.experiments.compare import compare, describe_valid
    from mnagt.models.registry import MODELS

    config, search = with_open_settings(run_config(args), args), CompareConfig(**read_options(args, CompareConfig))
    out = args.out or Path("runs") / f"compare-{Path(config.dataset).stem}"
    make_folder(out)
    run_logger = logging.getLogger("mnagt.training.run")
    run_logger.setLevel(logging.WARNING)  # the same split for every training
    try:
        comparison = compare(config, out, search, say=_log)
    except KeyboardInterrupt:
        _log("mnagt: interrupted; what is finished is kept, and the same command goes on")
        return 130
    finally:
        run_logger.setLevel(logging.NOTSET)
    rows = []
    for each in comparison.models:
        test = f"{each.mean:.3f} ({each.interval[0]:.3f} to {each.interval[1]:.3f})"
        rows.append([each.model, describe_valid(each), test, f"{each.seconds:.1f}", f"{each.peak_memory_mb:,.0f}"])
    metric = comparison.metric
    print_table(["model", f"validation {metric} (95 %)", f"test {metric} (95 %)", "seconds", "memory, MB"], rows)
    print("\n" + "\n".join([comparison.verdict(), *comparison.notices, f"page    {out / 'report.html'}"]))
    if comparison.choice.model in MODELS:
        parser = Parser(add_help=False, allow_abbrev=False)
        _comparison_options(parser)
        _, (_, *shared) = parser.parse_known_args(args.words)
        words = ["mnagt", "train", *shared, "--model", comparison.choice.model]
        print(f"next    {shlex.join(words)}")
    return 0


def reproduce_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    add = parser.add_argument
    add("experiment", help="table1, table2, baselines, attribution, ablation, hops, heads, layers or parameters")
    only = "only these rows, by name or else by model; * stands for anything"
    add("--only", dest="patterns", nargs="+", default=(), metavar="MODEL/DATASET", help=only)
    add("--device", dest="devices", help=argparse.SUPPRESS)
    add("--ledger", type=Path, metavar="FILE", help="finished trials [results/trials.jsonl; with --quick, in OUT]")
    add("--out", type=Path, metavar="FOLDER", help="where the report goes [runs/reproduce/EXPERIMENT]")
    add("--quick", action="store_true", help="few epochs and seeds, for a quick look")
    add("--report-only", action="store_true", help="train nothing; report what is in the ledger")
    add_options(parser, ReproduceConfig, "trials", leave_out=("only", "is_quick", "ray"))
    engine_options(parser)


def run_reproduce(args: argparse.Namespace) -> int:
    """Runs an experiment of the paper over several seeds, as far as the ledger does not hold it already, and writes a
    report: one HTML page, a Markdown table, figures."""
    from mnagt.experiments.ledger import Ledger
    from mnagt.experiments.reproduce import reproduce
    from mnagt.experiments.reproduce_report import build_table, list_notices, summarise_datasets, write_report
    from mnagt.experiments.reproduce_tables import EXPERIMENTS
    from mnagt.training.progress import Live

    lookup(EXPERIMENTS, args.experiment, "experiment")
    out = args.out or Path("runs/reproduce") / (args.experiment + ("-quick" if args.quick else ""))
    ledger = Ledger(args.ledger or (out if args.quick else Path("results")) / "trials.jsonl")
    settings = read_options(args, ReproduceConfig)
    config = ReproduceConfig(**settings, only=tuple(args.patterns), is_quick=args.quick, ray=read_ray(args))
    make_folder(out)  # the report comes last: better to know now
    try:
        findings = reproduce(
            args.experiment,
            config,
            ledger,
            is_report_only=args.report_only,
            say=_log,
            reporter=Live() if sys.stderr.isatty() else None,
        )
    except KeyboardInterrupt:
        again = "the same command goes on, and with --report-only reports what there is"
        _log(f"mnagt: interrupted; finished trials are in {ledger.path}: {again}")
        return 130
    write_report(out, findings)
    print_table(*build_table(findings))
    for line in (*list_notices(findings), *summarise_datasets(findings), f"report  {out / 'report.html'}"):
        print(f"\n{line}")
    if args.quick or not args.report_only:
        again = "the same command with --report-only writes the report again"
        print(f"next    {f'mnagt reproduce {args.experiment}' if args.quick else again}")
    return 2 if findings.problems else 0
