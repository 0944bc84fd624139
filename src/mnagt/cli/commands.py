"""What ``mnagt`` can be asked to do. Heavy imports wait until a command runs."""

import argparse
import csv
import json
import os
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

SHOWN = 20
"""Files that could not be read, of which more are only counted."""


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
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the run goes [runs/DATASET-MODEL-TIME]")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with an interrupted run")
    parser.add_argument("--tensorboard", action="store_true", help="write TensorBoard logs into the run's folder")
    _run_options(parser, words)


def _run_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """What ``run_config`` reads."""
    from mnagt.models import MODELS
    from mnagt.registry import lookup

    name = _chosen_model(words, RunConfig.model)
    if name != RunConfig.model:
        parser.set_defaults(command=f"{parser.prog} --model {name}")
    parser.add_argument("dataset", nargs="?", help="name (see `mnagt datasets`) or path of a data set")
    parser.add_argument("--model", help=f"one of {', '.join(MODELS)} [{RunConfig.model}]")
    parser.add_argument("--recipe", metavar="FILE", help="TOML file with the run's settings; options override it")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one [auto]")
    add_options(parser, TrainConfig, "training")
    parser.add_argument_group("split").add_argument(
        "--split",
        dest="split_kind",
        metavar="official|random|stratified|group|scaffold|files",
        help="how graphs are divided [auto]",
    )
    table = parser.add_argument_group("tables of molecules (.csv, .tsv, .smi), and graphs of your own")
    _column_options(table)
    table.add_argument("--task", metavar="single-label|multi-label|regression", help="what the columns ask for [auto]")
    add_options(parser, SplitConfig, "split details", prefix="split_", leave_out=("kind",))
    add_options(parser, lookup(MODELS, name, "model").config, f"settings of the model {name}")


def _column_options(parser: Any) -> None:
    parser.add_argument("--smiles", metavar="COLUMN", help="the column of SMILES [as its name tells]")
    parser.add_argument("--target", action="append", metavar="COLUMN", help="a column to learn; may be repeated")


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
        smiles=args.smiles or base.smiles,
        targets=tuple(args.target) if args.target else base.targets,
        task=args.task or base.task,
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
    _column_options(parser)
    parser.add_argument("--part", choices=("train", "valid", "test", "all"), default="test", help="graphs to score")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... [auto]")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _evaluate(args: argparse.Namespace) -> None:
    from mnagt.training.answers import evaluate

    columns = {"smiles": args.smiles, "targets": args.target}
    scores = evaluate(args.model, dataset=args.dataset, part=args.part, device=args.device, **columns)
    told = [f"{value} {name}" if name == "graphs" else f"{name} {value:.4f}" for name, value in scores.items()]
    print(json.dumps(scores) if args.json else "  ".join(told))


def _predict_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, nargs="+", help="folder of a run; several answer as one")
    _input_options(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="CSV file to write [standard output]")
    parser.add_argument(
        "--level", type=float, metavar="X", help="add sets or intervals that hold the truth this often, such as 0.9"
    )


def _input_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", help="name or path of a data set, a SMILES, or a Python file")
    parser.add_argument("--smiles", metavar="COLUMN", help="the column of SMILES in a table [as its name tells]")
    parser.add_argument("--graphs", metavar="I,J,...", help="only these graphs, rows or functions, counted from 0")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... [auto]")


def _graphs(args: argparse.Namespace) -> list[int] | None:
    try:
        return None if args.graphs is None else [int(word) for word in args.graphs.split(",")]
    except ValueError:
        raise InputError(f"--graphs: expected whole numbers with commas between, got {args.graphs!r}") from None


def _predict(args: argparse.Namespace) -> None:
    from mnagt.training.answers import is_source, predict

    how = {"smiles": args.smiles, "device": args.device, "level": args.level}
    table = predict(args.model, args.dataset, graphs=_graphs(args), **how)
    if args.out is None:
        _print_names(table) if is_source(args.dataset) else _write_csv(table, sys.stdout)
        return
    with written_atomically(args.out) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        _write_csv(table, file)
    print(f"{len(next(iter(table.values())))} predictions in {args.out}", file=sys.stderr)


def _print_names(table: dict[str, list]) -> None:
    """Functions, and beside them the names suggested, each with its probability."""
    lines, functions, *pairs = table.values()
    named = [[f"{n} {p:.3f}" for n, p in zip(*pair, strict=True)] for pair in zip(pairs[::2], pairs[1::2], strict=True)]
    head = ["line", "function", *map(str, range(1, len(named) + 1))]
    _print_table(head, [list(row) for row in zip(lines, functions, *named, strict=True)])


def _write_csv(table: dict[str, list], file: Any) -> None:
    writer = csv.writer(file)
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))


def _calibrate_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, help="folder of a run")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... [auto]")


def _calibrate(args: argparse.Namespace) -> None:
    from mnagt.uncertainty.folders import calibrate

    done = calibrate(args.model, device=args.device)
    print(f"temperature {done.calibration.temperature:.3f}, from {done.calibration.graphs:,} validation graphs")
    if done.before and done.after:
        rows = [
            [when, f"{r.brier:.4f}", f"{r.ece:.4f}"] for when, r in (("before", done.before), ("after", done.after))
        ]
        _print_table([f"{done.test_graphs:,} test graphs", "Brier", "calibration error"], rows)
    print(f"kept in {args.model}; `mnagt predict {args.model} ... --level 0.9` adds sets or intervals")


def _explain_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from mnagt.explain.settings import ExplainConfig

    parser.add_argument("model", type=Path, help="folder of a run")
    _input_options(parser)
    parser.add_argument("--out", type=Path, default=Path("explained.html"), metavar="FILE", help="[explained.html]")
    add_options(parser, ExplainConfig, "how")


def _explain(args: argparse.Namespace) -> None:
    from mnagt.explain.report import explain_to
    from mnagt.explain.settings import ExplainConfig

    config = ExplainConfig(**given(args, ExplainConfig))
    how = {"graphs": _graphs(args), "smiles": args.smiles, "device": args.device}
    for line in explain_to(args.out, args.model, args.dataset, config, **how):
        print(line)


def _embed_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, help="folder of a run")
    _input_options(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="vectors.npy or vectors.parquet")


def _embed(args: argparse.Namespace) -> None:
    from mnagt.training.embeddings import embed_to

    shape = embed_to(args.out, args.model, args.dataset, graphs=_graphs(args), smiles=args.smiles, device=args.device)
    print(f"{shape[0]} vectors of {shape[1]} numbers in {args.out}", file=sys.stderr)


def _data_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from mnagt.data.code import CodeConfig

    parser.add_argument("kind", choices=("code",), help="code: what functions are called, from Python sources")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="Python files, or folders that hold some")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="new folder for the data set")
    add_options(parser, CodeConfig, "how")


def _data(args: argparse.Namespace) -> None:
    from mnagt.data.code import CodeConfig, build_code

    report = build_code(args.paths, args.out, CodeConfig(**given(args, CodeConfig)))
    print(report)
    for skipped in report.skipped[:SHOWN]:
        print(f"not read: {skipped}", file=sys.stderr)
    if len(report.skipped) > SHOWN:
        print(f"not read: {len(report.skipped) - SHOWN:,} more", file=sys.stderr)
    print(f"written to {args.out}; try: mnagt train {args.out}")


def _no_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """The command takes none."""


def _datasets(args: argparse.Namespace) -> None:
    from mnagt.data import DATASETS, data_root, where_is

    print(f"data root: {data_root()} (set MNAGT_DATA to change it)\n")
    rows = []
    for s in DATASETS.values():
        where = where_is(s.name, data_root()) or s.otherwise
        rows.append([s.name, f"{s.graphs:,}", s.classes, s.metric, s.mean_nodes, s.mean_edges, s.description, where])
    _print_table(["name", "graphs", "classes", "score", "nodes", "edges", "what", "where"], rows)


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


def _tune_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from mnagt.experiments.tune import TuneConfig

    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the search is kept [runs/tune-DATASET-MODEL]")
    parser.add_argument("--space", type=Path, metavar="FILE", help="TOML file whose [space] says where to look")
    add_options(parser, TuneConfig, "the search")
    _run_options(parser, words)


def _tune(args: argparse.Namespace) -> int:
    from mnagt.experiments.tune import BEST, REPORT, TRIALS, Tried, TuneConfig, tune

    config, search = run_config(args), TuneConfig(**given(args, TuneConfig))
    out = args.out or Path("runs") / f"tune-{Path(config.dataset).stem}-{config.model}"

    def told(trial: Tried) -> None:
        figure = "" if trial.figure is None else f" {trial.figure:.4f}"
        beside = trial.reason or f"epochs: {trial.epochs}, {trial.seconds:.1f} s"
        print(f"trial {trial.number}: {trial.state}{figure} ({beside})", file=sys.stderr, flush=True)

    try:
        tuned = tune(config, out, search=search, space=args.space, told=told)
    except KeyboardInterrupt:
        print("mnagt: interrupted; what is finished is kept, and the same command goes on", file=sys.stderr)
        return 130
    if tuned.best is None:
        print(f"no trial came to its end; {out / TRIALS} says why, and the same command goes on")
        return 0
    print(f"best of {tuned.count}: trial {tuned.best.number}, validation {tuned.metric} {tuned.best.figure:.4f}")
    print(f"report in {out / REPORT}; try: mnagt trials {out / BEST} --first-seed {config.train.seed + search.seeds}")
    return 0


def _reproduce_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    add = parser.add_argument
    add("experiment", help="table1, table2, ablation, hops, heads, layers or parameters")
    add("--seeds", type=int, metavar="N", help="trials of each row [as the paper: 10, in table2 5]")
    add("--first-seed", type=int, default=0, metavar="N", help="the first of their seeds [0]")
    add("--protocol", default="redrawn", metavar="redrawn|folds|fixed", help="how data are split [redrawn]")
    add("--datasets", type=_words, default=(), metavar="NAME,...", help="other data sets than the paper's")
    add("--only", nargs="+", default=(), metavar="MODEL/DATASET", help="only these; * stands for anything")
    add("--jobs", type=int, default=1, metavar="N", help="trials side by side [1]")
    add("--devices", "--device", type=_words, default=(), metavar="NAME,...", help="cpu, cuda:0,cuda:1, ... [auto]")
    add("--ledger", type=Path, metavar="FILE", help="finished trials [results/trials.jsonl; of a quick look, in OUT]")
    add("--out", type=Path, metavar="FOLDER", help="where the report goes [runs/reproduce/EXPERIMENT]")
    add("--quick", action="store_true", help="few epochs and seeds, for a look")
    add("--report-only", action="store_true", help="train nothing; the report of what the ledger holds")


def _words(listed: str) -> tuple[str, ...]:
    return tuple(listed.split(","))


def _reproduce(args: argparse.Namespace) -> int:
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
    _print_table(*table(findings))
    for line in (*notices(findings), *verdicts(findings), f"report  {out / 'report.html'}"):
        print(f"\n{line}")
    return 2 if findings.problems else 0


def _quickstart_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from mnagt.experiments.quickstart import QuickstartConfig

    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"), metavar="FOLDER", help="[runs/quickstart]")
    add_options(parser, QuickstartConfig, "how much")


def _quickstart(args: argparse.Namespace) -> None:
    from mnagt.experiments.quickstart import QuickstartConfig, quickstart

    config = QuickstartConfig(**given(args, QuickstartConfig))
    make_folder(args.out)  # the report comes last: better to know now
    quickstart(config, args.out, say=print)


def _export_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, help="folder of a run")
    parser.add_argument("--format", choices=("onnx", "torch"), default="onnx", help="onnx, or torch.export's [onnx]")
    parser.add_argument("--out", type=Path, metavar="FILE", help="[FOLDER.onnx or FOLDER.pt2]")


def _export(args: argparse.Namespace) -> None:
    from mnagt.export import FORMATS

    out = args.out or Path(f"{args.model.resolve()}.{'onnx' if args.format == 'onnx' else 'pt2'}")
    FORMATS[args.format](args.model, out)
    print(f"{out} answers as the model does; docs/export.md says what it reads")


def _serve_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from mnagt.serve.config import ServeConfig

    parser.add_argument("model", type=Path, help="folder of a run")
    add_options(parser, ServeConfig, "how")


def _serve(args: argparse.Namespace) -> None:
    from mnagt.serve.config import ServeConfig

    config = ServeConfig(**given(args, ServeConfig))
    config = replace(config, token=config.token or os.environ.get("MNAGT_TOKEN", ""))
    try:
        from mnagt.serve.app import serve
    except ImportError:
        raise InputError("the service needs packages that are not installed: pip install 'mnagt[serve]'") from None
    serve(args.model, config, say=lambda line: print(line, flush=True))


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
        "A trained model's answers as CSV, one row a graph. Of a Python file: names for its functions.",
        _predict_options,
        _predict,
    ),
    "calibrate": Command(
        "make a model's probabilities believable",
        "Learns from the validation part how sure a trained model may be (temperature; thresholds of prediction sets), "
        "keeps that in its folder for `mnagt predict`, and tells on the test part what it changes.",
        _calibrate_options,
        _calibrate,
    ),
    "explain": Command(
        "why a model says what it says, as a page",
        "Writes an HTML page: which nodes an answer is due to (integrated gradients, checked by deletion), how nodes "
        "weighed their kernels, whom they attended to.",
        _explain_options,
        _explain,
    ),
    "embed": Command(
        "vectors of graphs, for use elsewhere",
        "Writes a vector for each graph, as the model's head gets it: NumPy (.npy), or Parquet with pyarrow.",
        _embed_options,
        _embed,
    ),
    "export": Command(
        "a trained model as one file for other programs",
        "Writes a trained model as ONNX or as an exported program of PyTorch, for any number of graphs, nodes and "
        "edges, and checks that it answers as the model does.",
        _export_options,
        _export,
    ),
    "serve": Command(
        "answers over HTTP, and a page to try them on",
        "Answers questions about graphs over HTTP (predict, explain, health, metrics, OpenAPI) and serves a page to "
        "try them on, to this machine only unless told otherwise. MNAGT_TOKEN may hold the token.",
        _serve_options,
        _serve,
    ),
    "trials": Command(
        "recipes over several seeds: mean and deviation",
        "Runs recipes over several seeds and splits, side by side, and prints mean and deviation of the test score. "
        "Finished trials are kept in a ledger and not run again.",
        _trials_options,
        _trials,
    ),
    "tune": Command(
        "search for better settings, by validation",
        "Searches for settings that validate best (Optuna: TPE, with pruning), beginning with those given. The test "
        "part is never scored. The same command again goes on where it stopped.",
        _tune_options,
        _tune,
    ),
    "reproduce": Command(
        "the paper's tables and figures, and ours beside them",
        "Runs an experiment of the paper over several seeds, as far as the ledger does not hold it already, and writes "
        "a report: one HTML page, a Markdown table, figures.",
        _reproduce_options,
        _reproduce,
    ),
    "data": Command(
        "make a data set: Python functions, from source",
        "Makes a data set in OGB's layout. From Python files and folders: what are their functions called? Divided by "
        "project, each method name masked, copies left out.",
        _data_options,
        _data,
    ),
    "datasets": Command(
        "list the data sets", "Lists the data sets that have names, and where they are.", _no_options, _datasets
    ),
    "models": Command("list the models", "Lists the models.", _no_options, _models),
    "info": Command("versions, devices, folders", "Says what this installation has and uses.", _no_options, _info),
}
