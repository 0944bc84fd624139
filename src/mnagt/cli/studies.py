"""Many runs: the quickstart, trials, searches, the paper's experiments."""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnagt.cli.options import add_options, given, option, print_table
from mnagt.cli.training import run_config, run_options
from mnagt.errors import InputError
from mnagt.files import make_folder
from mnagt.training.config import RunConfig


def quickstart_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from mnagt.experiments.quickstart import QuickstartConfig

    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"), metavar="FOLDER", help="[runs/quickstart]")
    add_options(parser, QuickstartConfig, "how much")


def run_quickstart(args: argparse.Namespace) -> None:
    from mnagt.experiments.quickstart import QuickstartConfig, quickstart

    config = QuickstartConfig(**given(args, QuickstartConfig))
    make_folder(args.out)  # the report comes last: better to know now
    quickstart(config, args.out, say=print)


def trials_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument(
        "recipes",
        nargs="+",
        type=Path,
        metavar="RECIPE",
        help="TOML files, each a run's settings, or recipes of the package, such as nci1/gin",
    )
    parser.add_argument(
        "--seeds", type=int, default=10, metavar="N", help="how many seeds, each with its own split [10]"
    )
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="the first of them [0]")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="trials side by side [1]")
    parser.add_argument("--device", help="cpu, cuda, ... [as the recipe says]")
    parser.add_argument(
        "--ledger",
        type=Path,
        default=Path("results/trials.jsonl"),
        metavar="FILE",
        help="finished trials [results/trials.jsonl]",
    )
    _engine_options(parser)


def run_trials(args: argparse.Namespace) -> None:
    from mnagt.experiments import trials
    from mnagt.experiments.ledger import Ledger
    from mnagt.training.run import read_recipe

    recipes = {path: read_recipe(path) for path in args.recipes}
    if args.device:
        recipes = {path: replace(config, device=args.device) for path, config in recipes.items()}
    if args.seeds < 1 or args.jobs < 1:
        raise InputError(f"--seeds and --jobs count from 1, got {args.seeds} and {args.jobs}")
    if args.first_seed < 0:
        raise InputError(f"--first-seed counts from 0, got {args.first_seed}")
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    names = {path: f"{path.resolve().parent.name}/{path.stem}" for path in recipes}
    configs = {path: [trials.with_seed(config, seed) for seed in seeds] for path, config in recipes.items()}

    def told(config: RunConfig, record: dict[str, Any]) -> None:
        test = record["result"]["test"][record["result"]["metric"]]
        print(f"{config.dataset} {config.model} seed {config.train.seed}: test {test:.4f}", file=sys.stderr, flush=True)

    ledger = Ledger(args.ledger)
    turns = {"jobs": args.jobs, "ray": _ray(args)}
    trials.run_trials([config for each in configs.values() for config in each], ledger, told=told, **turns)
    rows = []
    for path, each in configs.items():
        s = trials.summarise(trials.run_trials(each, ledger))
        test = f"{s.test_mean:.4f}" + (f" ± {s.test_std:.4f}" if s.trials > 1 else "")
        rows.append([names[path], s.trials, test, f"{s.valid_mean:.4f}", f"{s.parameters:,}", f"{s.seconds:.1f}"])
    print_table(["recipe", "trials", "test", "valid", "parameters", "seconds"], rows)


def _engine_options(parser: argparse.ArgumentParser) -> None:
    from mnagt.experiments.engines import RayConfig

    add = parser.add_argument
    add(
        "--engine",
        default="local",
        choices=("local", "ray"),
        help="processes of this machine, or a Ray cluster [local]",
    )
    add_options(parser, RayConfig, "on a Ray cluster (--engine ray)")


def _ray(args: argparse.Namespace) -> Any:
    """The cluster that was asked for, if one was."""
    from mnagt.experiments.engines import RayConfig

    said = given(args, RayConfig)
    if args.engine == "local":
        if said:
            raise InputError(f"{', '.join(map(option, said))}: only with --engine ray")
        return None
    if args.jobs not in (None, 1, "1"):
        raise InputError("--jobs is for --engine local; on Ray, --cpus-per-trial says how many fit side by side")
    return RayConfig(**said)


def tune_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from mnagt.experiments.tune import TuneConfig

    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the search is kept [runs/tune-DATASET-MODEL]")
    parser.add_argument("--space", type=Path, metavar="FILE", help="TOML file whose [space] says where to look")
    add_options(parser, TuneConfig, "the search")
    _engine_options(parser)
    run_options(parser, words)


def run_tune(args: argparse.Namespace) -> int:
    from mnagt.experiments.tune import BEST, REPORT, TRIALS, Tried, TuneConfig, tune

    config, search = run_config(args), TuneConfig(**given(args, TuneConfig))
    out = args.out or Path("runs") / f"tune-{Path(config.dataset).stem}-{config.model}"

    def told(trial: Tried) -> None:
        figure = "" if trial.figure is None else f" {trial.figure:.4f}"
        beside = trial.reason or f"epochs: {trial.epochs}, {trial.seconds:.1f} s"
        print(f"trial {trial.number}: {trial.state}{figure} ({beside})", file=sys.stderr, flush=True)

    try:
        tuned = tune(config, out, search=search, space=args.space, ray=_ray(args), told=told)
    except KeyboardInterrupt:
        print("mnagt: interrupted; what is finished is kept, and the same command goes on", file=sys.stderr)
        return 130
    if tuned.best is None:
        print(f"no trial came to its end; {out / TRIALS} says why, and the same command goes on")
        return 0
    print(f"best of {tuned.count}: trial {tuned.best.number}, validation {tuned.metric} {tuned.best.figure:.4f}")
    print(f"report in {out / REPORT}; try: mnagt trials {out / BEST} --first-seed {config.train.seed + search.seeds}")
    return 0


def reproduce_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    add = parser.add_argument
    add("experiment", help="table1, table2, ablation, hops, heads, layers or parameters")
    add("--seeds", type=int, metavar="N", help="trials of each row [as the paper: 10, in table2 5]")
    add("--first-seed", type=int, default=0, metavar="N", help="the first of their seeds [0]")
    add("--protocol", default="redrawn", metavar="redrawn|folds|fixed", help="how data are split [redrawn]")
    add("--datasets", type=_words, default=(), metavar="NAME,...", help="other data sets than the paper's")
    add("--only", nargs="+", default=(), metavar="MODEL/DATASET", help="only these; * stands for anything")
    add("--jobs", type=int, default=1, metavar="N", help="trials side by side [1]")
    add("--devices", "--device", type=_words, default=(), metavar="NAME,...", help="cpu, cuda:0,cuda:1, ... [auto]")
    add("--minutes", type=float, default=math.inf, metavar="X", help="begin no trial after so long [no limit]")
    add("--ledger", type=Path, metavar="FILE", help="finished trials [results/trials.jsonl; of a quick look, in OUT]")
    add("--out", type=Path, metavar="FOLDER", help="where the report goes [runs/reproduce/EXPERIMENT]")
    add("--quick", action="store_true", help="few epochs and seeds, for a look")
    add("--report-only", action="store_true", help="train nothing; the report of what the ledger holds")
    _engine_options(parser)


def _words(listed: str) -> tuple[str, ...]:
    return tuple(listed.split(","))


def run_reproduce(args: argparse.Namespace) -> int:
    from mnagt.experiments.ledger import Ledger
    from mnagt.experiments.reproduce import ReproduceConfig, reproduce
    from mnagt.experiments.reproduce_report import write_report
    from mnagt.experiments.reproduce_tables import EXPERIMENTS
    from mnagt.experiments.reproduce_words import notices, table, verdicts
    from mnagt.registry import lookup
    from mnagt.training.progress import Live

    lookup(EXPERIMENTS, args.experiment, "experiment")
    out = args.out or Path("runs/reproduce") / (args.experiment + ("-quick" if args.quick else ""))
    ledger = Ledger(args.ledger or (out if args.quick else Path("results")) / "trials.jsonl")
    config = ReproduceConfig(
        seeds=args.seeds,
        first_seed=args.first_seed,
        protocol=args.protocol,
        datasets=args.datasets,
        only=tuple(args.only),
        is_quick=args.quick,
        jobs=args.jobs,
        devices=args.devices,
        ray=_ray(args),
        minutes=args.minutes,
    )
    make_folder(out)  # the report comes last: better to know now
    try:
        findings = reproduce(
            args.experiment,
            config,
            ledger,
            is_report_only=args.report_only,
            say=lambda line: print(line, file=sys.stderr, flush=True),
            reporter=Live() if sys.stderr.isatty() else None,
        )
    except KeyboardInterrupt:
        print(
            f"mnagt: interrupted; finished trials are in {ledger.path}: the same command goes on, and with "
            "--report-only reports what there is",
            file=sys.stderr,
        )
        return 130
    write_report(out, findings)
    print_table(*table(findings))
    for line in (*notices(findings), *verdicts(findings), f"report  {out / 'report.html'}"):
        print(f"\n{line}")
    return 2 if findings.problems else 0
