"""``mnagt train``: options for every setting of a run, and the run."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from mnagt.cli.options import Parser, add_options, print_scores, print_table, read_options
from mnagt.data.table_config import TableConfig
from mnagt.errors import InputError
from mnagt.registry import lookup
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig


def _chosen_model(words: Sequence[str], *, finds_recipe: bool) -> str:
    """The model of the command line, read ahead of the rest: its settings are options too.

    With ``finds_recipe`` a named data set has the recipe of the package, where none is named.
    """
    from mnagt.data.registry import DATASETS, is_molecule_table
    from mnagt.runs.defaults import default_model
    from mnagt.runs.recipes import find_recipe, read_recipe

    ahead = Parser(prog="mnagt train", add_help=False, allow_abbrev=False)
    ahead.add_argument("--model")
    ahead.add_argument("--recipe")
    ahead.add_argument("--from", dest="init_from")
    ahead.add_argument("--smiles", "--reaction", dest="smiles")
    ahead.add_argument("--task")
    list_target_options(ahead)
    parsed, others = ahead.parse_known_args(list(words))
    if parsed.recipe is None and finds_recipe:
        name = next((word for word in others if word in DATASETS), None)
        parsed.recipe = find_recipe(name, parsed.model)
        if parsed.model is None and parsed.recipe == "none":
            name = name or next(filter(is_molecule_table, others), "")
            return default_model(name, parsed.init_from, parsed.smiles, parsed.task)
    return parsed.model or read_recipe(parsed.recipe or "none").model


def train_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the run goes [runs/DATASET-MODEL-TIME]")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with an interrupted run")
    several = parser.add_argument_group("several runs, with a table at the end").add_mutually_exclusive_group()
    several.add_argument(
        "--ensemble", type=int, metavar="N", help="N members with seeds of their own, used as one model"
    )
    several.add_argument("--replicates", type=int, metavar="N", help="N times with other seeds, also of the split")
    several.add_argument("--folds", type=int, metavar="N", help="cross-validation: each of N folds tests once")
    parser.add_argument("--tensorboard", action="store_true", help="write TensorBoard logs into the run's folder")
    run_options(parser, words, finds_recipe=True)


def run_options(
    parser: argparse.ArgumentParser, words: Sequence[str], has_model: bool = True, finds_recipe: bool = False
) -> None:
    """What ``run_config`` reads; without ``has_model``, no model, no settings of it and no recipe.

    ``finds_recipe`` is for commands that take the recipe of the package for a named data set.
    """
    parser.set_defaults(model=None, recipe=None)
    parser.add_argument("dataset", nargs="?", help="name (see `mnagt datasets`) or path of a data set")
    if has_model:
        default = RunConfig.model + ("; for tables of molecules mnagt-ensemble" if finds_recipe else "")
        parser.add_argument("--model", help=f"name (see `mnagt models`) [{default}]")
        parser.add_argument(
            "--recipe",
            metavar="RECIPE",
            help="TOML file with the run's settings, or one of the package, such as nci1/gin; options override it [for "
            "`train`, that of the package for data set and model, if there is one; none for no recipe: batches "
            "are then smaller for fewer than 4,096 training graphs, unless options set them]",
        )
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one [auto]")
    add_options(parser, TrainConfig, "training", init_from="--from")
    add_options(parser, SplitConfig, "split", prefix="split_", kind="--split")
    parser.add_argument(
        "--time-column", dest="split_column", metavar="NAME", help="of --split time: the same as --split-column"
    )
    table = parser.add_argument_group("tables of molecules (.csv, .tsv, .smi), and graphs of your own")
    column_options(table)
    add_options(parser, TableConfig, "", into=table)
    table.add_argument(
        "--task",
        metavar="single-label|multi-label|regression|censored-regression|mixed|node-regression|edge-regression",
        help="kind of target [auto]",
    )
    table.add_argument(
        "--censored",
        dest="task",
        action="store_const",
        const="censored-regression",
        help="read bounds (>10, <0.1) among numbers: predictions on the right side of one cost nothing, and scores "
        "leave them out",
    )
    list_target_options(table)
    if not has_model:
        return
    asks_for_help = "--help" in words or "-h" in words
    if asks_for_help and not any(word.startswith(("--model", "--recipe")) for word in words):
        command = f"{parser.prog} --model {RunConfig.model} --help"
        parser.epilog = f"The settings of a model are options too: `{command}` lists them."
        return  # without torch, which takes seconds to import
    from mnagt.models.registry import MODELS

    name = _chosen_model(words, finds_recipe=finds_recipe)
    if name != RunConfig.model:
        parser.set_defaults(command=f"{parser.prog} --model {name}")
    add_options(parser, lookup(MODELS, name, "model").config, f"settings of the model {name}")


SMILES_HELP = "the column of SMILES; for rows of several molecules, their columns (solute,solvent) [guessed from names]"


def reaction_option(parser: Any) -> None:
    parser.add_argument(
        "--reaction",
        dest="smiles",
        metavar="COLUMN",
        help="the same as --smiles, for a column of reactions with atom maps (reactants>>products)",
    )


def list_target_options(parser: Any) -> None:
    for item, task, order in (
        ("atom", "node-regression", "the SMILES"),
        ("bond", "edge-regression", "RDKit's GetBonds()"),
    ):
        parser.add_argument(
            f"--{item}-targets",
            dest="task",
            action="store_const",
            const=task,
            help=f"each target cell lists a number for each {item} ([0.1, -0.2]), in the order of {order}",
        )


def column_options(parser: Any) -> None:
    parser.add_argument("--smiles", metavar="COLUMN[,...]", help=SMILES_HELP)
    reaction_option(parser)
    parser.add_argument(
        "--target",
        "--targets",
        action="append",
        metavar="COLUMN",
        help="a target column, a pattern ('NR-*'), or all for every column of numbers that is no id; may be repeated",
    )


def run_config(args: argparse.Namespace) -> RunConfig:
    """The settings of a run: defaults, then the recipe, then what the command line says."""
    from mnagt.models.registry import MODELS
    from mnagt.runs.options import RUN_OPTIONS, apply_options
    from mnagt.runs.recipes import read_recipe

    base, settings = read_recipe(args.recipe or "none"), read_options(args, RunConfig)
    base = replace(base, dataset=settings.get("dataset", base.dataset))
    if not base.dataset:
        raise InputError("which data set? `mnagt datasets` lists them; for example: mnagt train MUTAG")
    model = settings.get("model", base.model)
    split = read_options(args, SplitConfig, prefix="split_", kind="--split")
    options = {
        "model": model,
        **{name: settings[name] for name in RUN_OPTIONS if name in settings},
        **({"target": args.target} if args.target else {}),
        **read_options(args, TrainConfig, init_from="--from"),
        **read_options(args, TableConfig),
        **{"split" if name == "kind" else f"split_{name}": value for name, value in split.items()},
        **read_options(args, lookup(MODELS, model, "model").config),
    }
    return apply_options(base, options)


def with_open_settings(config: RunConfig, args: argparse.Namespace) -> RunConfig:
    """The settings, with those left to the data that the command line does not give."""
    from mnagt.runs.options import leave_open

    return leave_open(config, {name for name, value in vars(args).items() if value is not None})


def run_train(args: argparse.Namespace) -> int:
    """Trains a model, keeps the weights of the epoch with the best validation score, and scores them once on the test
    part."""
    from mnagt.runs.defaults import default_model
    from mnagt.runs.folder import RUNS, read_run_config
    from mnagt.runs.recipes import find_recipe, log_recipe
    from mnagt.training.distributed import is_first
    from mnagt.training.progress import pick_reporter
    from mnagt.training.run import resume, train
    from mnagt.training.several_runs import NAMES, resume_several, train_several
    from mnagt.training.trainer import Interrupted

    kind: Any = next((kind for kind in NAMES if getattr(args, kind) is not None), None)
    if kind is not None and getattr(args, kind) < 1:
        raise InputError(f"--{kind} counts from 1, got {getattr(args, kind)}")
    if args.resume:
        apart = ("run", "command", "options", "resume", "tensorboard", "next_step")
        if names := [name for name, value in vars(args).items() if value is not None and name not in apart]:
            raise InputError(f"--resume goes on with the run's own settings; leave out: {', '.join(names)}")
        out = args.resume
        if (out / RUNS).exists():
            return _finish_several(partial(resume_several, out), out)
        config, start = read_run_config(out), partial(resume, out)
    else:
        if args.recipe is None:
            args.recipe = find_recipe(args.dataset, args.model)
            log_recipe(args.recipe)
            if args.recipe == "none" and args.model is None and args.dataset:
                args.model = default_model(args.dataset, args.init_from, args.smiles, args.task)
        config = run_config(args)
        if args.recipe in (None, "none"):
            config = with_open_settings(config, args)
        name = f"{Path(config.dataset).stem}-{config.model}-{datetime.now():%Y%m%d-%H%M%S}"
        out = args.out or Path("runs") / name
        start = partial(train, config, out)
        if kind is not None:
            return _finish_several(partial(train_several, config, out, kind, getattr(args, kind)), out)
    if config.train.activation_checkpointing:  # cuBLAS takes 32 MiB a stream on Hopper, more than the activations
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    try:
        run = start(reporter=pick_reporter(), tensorboard=args.tensorboard)
    except Interrupted:
        if is_first():
            print(f"mnagt: interrupted, nothing lost; go on with: mnagt train --resume {out}", file=sys.stderr)
        return 130
    if not is_first():
        return 0
    trained, result = run.trained, run.result
    test = f"test {result.metric} {result.test[result.metric]:.4f}"
    print(f"{trained.name} on {trained.origin['dataset']}: {result.parameters:,} parameters, {result.seconds:.1f} s")
    print(f"epoch {result.epoch}, chosen by validation ({result.metric} {result.valid:.4f} in that epoch): {test}")
    print_scores(result.test, result.test_intervals)
    words = ["mnagt", "predict", str(out), name_new_graphs(out), "--out", "predictions.csv"]
    print(f"saved in {out}; next: {shlex.join(words)}")
    return 0


def name_new_graphs(folder: Path) -> str:
    """What to predict next with the model of a run: a file like the one it was trained on, or else its data set."""
    from mnagt.runs.folder import RUN, read_run_config

    if not (folder / RUN).exists():
        return "NEW.csv"
    source = Path(read_run_config(folder).dataset)
    return f"NEW{''.join(source.suffixes)}" if source.is_file() else str(source)


def _finish_several(start: Callable[..., Any], out: Path) -> int:
    """Run several trainings and print their table."""
    from mnagt.training.progress import pick_reporter
    from mnagt.training.trainer import Interrupted

    try:
        several = start(reporter=pick_reporter())
    except Interrupted:
        print(f"mnagt: interrupted, nothing lost; go on with: mnagt train --resume {out}", file=sys.stderr)
        return 130
    print_table(*several.table())
    if several.ensemble is not None:
        print_scores(several.ensemble, several.ensemble_intervals)
    step = "evaluate {}" if several.ensemble is not None else "predict {} NEW.csv"  # parts of other runs differ
    print(f"saved in {out}, which other commands take as one model; next: mnagt {step.format(shlex.quote(str(out)))}")
    return 0
