"""``mnagt train``: options for every setting of a run, and the run."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from mnagt.cli.options import Parser, add_options, read_options
from mnagt.errors import InputError
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig

logger = logging.getLogger(__name__)


def _chosen_model(words: Sequence[str]) -> str:
    """The model named on the command line, read ahead of the rest: its settings are options too."""
    from mnagt.runs.recipes import read_recipe

    ahead = Parser(prog="mnagt train", add_help=False, allow_abbrev=False)
    ahead.add_argument("--model")
    ahead.add_argument("--recipe", default="none")
    found, _ = ahead.parse_known_args(list(words))
    return found.model or read_recipe(found.recipe).model


def train_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the run goes [runs/DATASET-MODEL-TIME]")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on with an interrupted run")
    parser.add_argument("--tensorboard", action="store_true", help="write TensorBoard logs into the run's folder")
    run_options(parser, words)


def run_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """What ``run_config`` reads."""
    from mnagt.models.registry import MODELS
    from mnagt.registry import lookup

    name = _chosen_model(words)
    if name != RunConfig.model:
        parser.set_defaults(command=f"{parser.prog} --model {name}")
    parser.add_argument("dataset", nargs="?", help="name (see `mnagt datasets`) or path of a data set")
    parser.add_argument("--model", help=f"one of {', '.join(MODELS)} [{RunConfig.model}]")
    parser.add_argument(
        "--recipe",
        metavar="RECIPE",
        help="TOML file with the run's settings, or one of the package, such as nci1/gin; options override it "
        "[for `train`, that of the package for data set and model, if there is one; none for no recipe]",
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one [auto]")
    add_options(parser, TrainConfig, "training")
    add_options(parser, SplitConfig, "split", prefix="split_", kind="--split")
    table = parser.add_argument_group("tables of molecules (.csv, .tsv, .smi), and graphs of your own")
    column_options(table)
    table.add_argument("--task", metavar="single-label|multi-label|regression", help="kind of target [auto]")
    add_options(parser, lookup(MODELS, name, "model").config, f"settings of the model {name}")


def column_options(parser: Any) -> None:
    parser.add_argument("--smiles", metavar="COLUMN", help="the column of SMILES [guessed from names]")
    parser.add_argument("--target", action="append", metavar="COLUMN", help="a target column; may be repeated")


def run_config(args: argparse.Namespace) -> RunConfig:
    """The settings of a run: defaults, then the recipe, then what the command line says."""
    from mnagt.models.registry import MODELS
    from mnagt.registry import lookup
    from mnagt.runs.recipes import read_recipe

    base, given = read_recipe(args.recipe or "none"), read_options(args, RunConfig)
    if not (args.dataset or base.dataset):
        raise InputError("which data set? `mnagt datasets` lists them; for example: mnagt train MUTAG")
    model = given.get("model", base.model)
    settings = base.settings if model == base.model else {}
    return replace(
        base,
        **given,
        settings=settings | read_options(args, lookup(MODELS, model, "model").config),
        train=replace(base.train, **read_options(args, TrainConfig)),
        split=replace(base.split, **read_options(args, SplitConfig, prefix="split_", kind="--split")),
        targets=tuple(args.target) if args.target else base.targets,
    )


def run_train(args: argparse.Namespace) -> int:
    """Trains a model, keeps the weights of the epoch with the best validation score, and scores them once on the test
    part."""
    from mnagt.runs.folder import read_run_config
    from mnagt.training.distributed import is_first
    from mnagt.training.progress import pick_reporter
    from mnagt.training.run import resume, train
    from mnagt.training.trainer import Interrupted

    if args.resume:
        apart = ("run", "command", "options", "resume", "tensorboard")
        if given := [name for name, value in vars(args).items() if value is not None and name not in apart]:
            raise InputError(f"--resume goes on with the run's own settings; leave out: {', '.join(given)}")
        config, out = read_run_config(args.resume), args.resume
        start = partial(resume, out)
    else:
        args.recipe = args.recipe or _find_shipped_recipe(args.dataset, args.model or RunConfig.model)
        config = run_config(args)
        name = f"{Path(config.dataset).stem}-{config.model}-{datetime.now():%Y%m%d-%H%M%S}"
        out = args.out or Path("runs") / name
        start = partial(train, config, out)
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
    test = "  ".join(f"test {name} {score:.4f}" for name, score in result.test.items())
    print(f"{trained.name} on {trained.origin['dataset']}: {result.parameters:,} parameters, {result.seconds:.1f} s")
    print(f"epoch {result.epoch}, chosen by validation ({result.metric} {result.valid:.4f} in that epoch): {test}")
    print(f"saved in {out}; try: mnagt evaluate {out}")
    return 0


def _find_shipped_recipe(dataset: str | None, model: str) -> str | None:
    """The recipe of the package for a data set that it knows by name."""
    from mnagt.data.registry import DATASETS
    from mnagt.runs.recipes import shipped_recipe
    from mnagt.training.distributed import is_first

    if dataset not in DATASETS or shipped_recipe(dataset, model) is None:
        return None
    name = f"{dataset.lower()}/{model}"
    if is_first():
        logger.info("settings of the recipe %s; options override them, --recipe none ignores them", name)
    return name
