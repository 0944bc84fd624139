"""What ``mnagt`` can be asked to do. Heavy imports wait until a command runs."""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mnagt.cli.options import Parser, add_options, given
from mnagt.errors import InputError
from mnagt.files import make_folder, written_atomically
from mnagt.training.config import RunConfig, SplitConfig, TrainConfig


@dataclass(frozen=True)
class Command:
    summary: str
    description: str
    add_options: Callable[[argparse.ArgumentParser, Sequence[str]], None]
    run: Callable[[argparse.Namespace], int | None]


def _chosen_model(words: Sequence[str], default: str) -> str:
    """The model named on the command line, read ahead of the rest: its settings are options too."""
    ahead = Parser(prog="mnagt train", add_help=False, allow_abbrev=False)
    ahead.add_argument("--model")
    ahead.add_argument("--recipe")
    found, _ = ahead.parse_known_args(list(words))
    if found.model is None and found.recipe is not None:
        return _recipe(found.recipe).model
    return found.model or default


def _recipe(path: str) -> RunConfig:
    from mnagt.training.run import read_recipe

    return read_recipe(Path(path))


def _train_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from mnagt.models import MODELS
    from mnagt.registry import lookup

    name = _chosen_model(words, RunConfig.model)
    if name != RunConfig.model:
        parser.set_defaults(command=f"mnagt train --model {name}")
    parser.add_argument("dataset", nargs="?", help="name (see `mnagt datasets`) or path of a data set in TU layout")
    parser.add_argument("--model", help=f"one of {', '.join(MODELS)} [{RunConfig.model}]")
    parser.add_argument("--recipe", metavar="FILE", help="TOML file with the run's settings; options override it")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the run goes [runs/DATASET-MODEL-TIME]")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with an interrupted run")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one [auto]")
    parser.add_argument("--tensorboard", action="store_true", help="write TensorBoard logs into the run's folder")
    add_options(parser, TrainConfig, "training")
    parser.add_argument_group("split").add_argument(
        "--split", dest="split_kind", metavar="random|stratified|files", help="how graphs are divided [random]"
    )
    add_options(parser, SplitConfig, "split details", prefix="split_", leave_out=("kind",))
    add_options(parser, lookup(MODELS, name, "model").config, f"settings of the model {name}")


def run_config(args: argparse.Namespace) -> RunConfig:
    """The settings of a run: defaults, then the recipe, then what the command line says."""
    from mnagt.models import MODELS
    from mnagt.registry import lookup

    base = RunConfig(dataset="") if args.recipe is None else _recipe(args.recipe)
    if not (args.dataset or base.dataset):
        raise InputError("which data set? `mnagt datasets` lists them; for example: mnagt train MUTAG")
    model = args.model or base.model
    settings = base.settings if model == base.model else {}
    return RunConfig(
        dataset=args.dataset or base.dataset,
        model=model,
        settings=settings | given(args, lookup(MODELS, model, "model").config),
        train=replace(base.train, **given(args, TrainConfig)),
        split=replace(base.split, **given(args, SplitConfig, prefix="split_", kind="--split")),
        device=args.device or base.device,
    )


def _new_folder(config: RunConfig) -> Path:
    return Path("runs") / f"{Path(config.dataset).stem}-{config.model}-{datetime.now():%Y%m%d-%H%M%S}"


def _train(args: argparse.Namespace) -> int:
    from mnagt.training.fit import Interrupted
    from mnagt.training.progress import reporter
    from mnagt.training.run import resume, train

    show = {"reporter": reporter(), "tensorboard": args.tensorboard}
    if args.resume:
        _refuse_settings(args)
    config = None if args.resume else run_config(args)
    out = args.out or _new_folder(config) if config else args.resume
    try:
        run = resume(out, **show) if config is None else train(config, out, **show)
    except Interrupted:
        print(f"mnagt: interrupted, nothing lost; go on with: mnagt train --resume {out}", file=sys.stderr)
        return 130
    trained, result = run.trained, run.result
    test = "  ".join(f"test {name} {score:.4f}" for name, score in result.test.items())
    print(f"{trained.name} on {trained.origin['dataset']}: {result.parameters:,} parameters, {result.seconds:.1f} s")
    print(f"epoch {result.epoch}, chosen by validation ({result.metric} {result.valid:.4f} in that epoch): {test}")
    print(f"saved in {out}; try: mnagt evaluate {out}")
    return 0


def _refuse_settings(args: argparse.Namespace) -> None:
    """A run goes on as it began."""
    apart = ("run", "command", "options", "resume", "tensorboard")
    said = [name for name, value in vars(args).items() if value is not None and name not in apart]
    if said:
        raise InputError(f"--resume goes on with the run's own settings; leave out: {', '.join(said)}")


def _evaluate_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, help="folder of a run")
    parser.add_argument("--dataset", help="name or path of another data set; all of its graphs are scored")
    parser.add_argument("--part", choices=("train", "valid", "test", "all"), default="test", help="graphs to score")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... [auto]")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _evaluate(args: argparse.Namespace) -> None:
    from mnagt.training.answers import evaluate

    scores = evaluate(args.model, dataset=args.dataset, part=args.part, device=args.device)
    told = [f"{value} {name}" if name == "graphs" else f"{name} {value:.4f}" for name, value in scores.items()]
    print(json.dumps(scores) if args.json else "  ".join(told))


def _predict_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, help="folder of a run")
    parser.add_argument("dataset", help="name or path of a data set in TU layout")
    parser.add_argument("--out", type=Path, metavar="FILE", help="CSV file to write [standard output]")
    parser.add_argument("--graphs", metavar="I,J,...", help="only these graphs, counted from 0")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... [auto]")


def _predict(args: argparse.Namespace) -> None:
    from mnagt.training.answers import predict

    try:
        graphs = None if args.graphs is None else [int(word) for word in args.graphs.split(",")]
    except ValueError:
        raise InputError(f"--graphs: expected whole numbers with commas between, got {args.graphs!r}") from None
    table = predict(args.model, args.dataset, graphs=graphs, device=args.device)
    if args.out is None:
        _write_csv(table, sys.stdout)
        return
    with written_atomically(args.out) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        _write_csv(table, file)
    print(f"{len(table['graph'])} predictions in {args.out}", file=sys.stderr)


def _write_csv(table: dict[str, list], file: Any) -> None:
    writer = csv.writer(file)
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))


def _no_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """The command takes none."""


def _datasets(args: argparse.Namespace) -> None:
    from mnagt.data import DATASETS, data_root, where_is

    print(f"data root: {data_root()} (set MNAGT_DATA to change it)\n")
    rows = []
    for s in DATASETS.values():
        where = where_is(s.name, data_root()) or "downloaded at first use"
        rows.append([s.name, f"{s.graphs:,}", s.classes, s.mean_nodes, s.mean_edges, s.description, where])
    _print_table(["name", "graphs", "classes", "nodes", "edges", "what", "where"], rows)


def _models(args: argparse.Namespace) -> None:
    from mnagt.graphs.features import Columns, Features
    from mnagt.models import MODELS, build_model

    molecules = Features(Columns((37,)))
    rows = []
    for name, entry in MODELS.items():
        parameters = f"{build_model(name, {}, molecules, 2).parameter_count:,}"
        rows.append([name, entry.family, entry.paper, parameters, entry.parts, entry.summary])
    _print_table(["name", "family", "paper", "parameters", "kernels; bias; residual", "what"], rows)
    print("\nparameters at default size, on NCI1. Settings: mnagt train --model NAME --help")


def _info(args: argparse.Namespace) -> None:
    from mnagt.environment import environment

    for name, value in environment().items():
        print(f"{name:18} {value}")


def _trials_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("recipes", nargs="+", type=Path, metavar="RECIPE", help="TOML files, each a run's settings")
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


def _trials(args: argparse.Namespace) -> None:
    from mnagt.experiments.ledger import Ledger
    from mnagt.experiments.trials import run_trials, summarise, with_seed
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
    configs = {path: [with_seed(config, seed) for seed in seeds] for path, config in recipes.items()}

    def told(config: RunConfig, record: dict[str, Any]) -> None:
        test = record["result"]["test"][record["result"]["metric"]]
        print(f"{config.dataset} {config.model} seed {config.train.seed}: test {test:.4f}", file=sys.stderr, flush=True)

    ledger = Ledger(args.ledger)
    run_trials([config for each in configs.values() for config in each], ledger, jobs=args.jobs, told=told)
    rows = []
    for path, each in configs.items():
        s = summarise(run_trials(each, ledger))
        test = f"{s.test_mean:.4f}" + (f" ± {s.test_std:.4f}" if s.trials > 1 else "")
        rows.append([names[path], s.trials, test, f"{s.valid_mean:.4f}", f"{s.parameters:,}", f"{s.seconds:.1f}"])
    _print_table(["recipe", "trials", "test", "valid", "parameters", "seconds"], rows)


def _quickstart_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from mnagt.experiments.quickstart import QuickstartConfig

    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"), metavar="FOLDER", help="[runs/quickstart]")
    add_options(parser, QuickstartConfig, "how much")


def _quickstart(args: argparse.Namespace) -> None:
    from mnagt.experiments.quickstart import QuickstartConfig, quickstart

    config = QuickstartConfig(**given(args, QuickstartConfig))
    make_folder(args.out)  # the report comes last: better to know now
    quickstart(config, args.out, say=print)


def _print_table(head: list[str], rows: list[list[Any]]) -> None:
    """Columns as wide as they need to be; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [head, *cells]) for i in range(len(head))]
    for row in [head, *cells]:
        parts = [c.rjust(w) if c[:1].isdigit() else c.ljust(w) for c, w in zip(row, widths, strict=True)]
        print("  ".join(parts).rstrip())


COMMANDS = {
    "quickstart": Command(
        "see it work: cross-validate on molecules that come with the package",
        "Cross-validates the default model and a GIN on MUTAG, saves a model, predicts unseen molecules and writes a "
        "report.",
        _quickstart_options,
        _quickstart,
    ),
    "train": Command(
        "train a model on a data set",
        "Trains a model, keeps the weights of the epoch that validation likes best, and scores them once on the test "
        "part.",
        _train_options,
        _train,
    ),
    "evaluate": Command(
        "score a trained model", "Scores a trained model on graphs with known answers.", _evaluate_options, _evaluate
    ),
    "predict": Command(
        "answers for graphs, as CSV",
        "A trained model's answers as CSV, one row a graph.",
        _predict_options,
        _predict,
    ),
    "trials": Command(
        "recipes over several seeds: mean and deviation",
        "Runs recipes over several seeds and splits, side by side, and prints mean and deviation of the test score. "
        "Finished trials are kept in a ledger and not run again.",
        _trials_options,
        _trials,
    ),
    "datasets": Command(
        "list the data sets", "Lists the data sets that have names, and where they are.", _no_options, _datasets
    ),
    "models": Command("list the models", "Lists the models.", _no_options, _models),
    "info": Command("versions, devices, folders", "Says what this installation has and uses.", _no_options, _info),
}
