"""Commands that list data sets, models and versions, and that make data sets."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mnagt.cli.options import add_options, print_table, read_options
from mnagt.data.readers.code_config import CodeConfig
from mnagt.plugins import load_plugins

MAX_SKIPPED = 20
"""Files that could not be read, of which more are only counted."""


def data_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("kind", choices=("code",), help="code: naming functions, from Python sources")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="Python files, or folders that hold some")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="new folder for the data set")
    add_options(parser, CodeConfig, "how")


def run_data(args: argparse.Namespace) -> None:
    """Makes a data set in OGB's layout. From Python files and folders: the task is to name functions. Split by project;
    each method name is masked, copies are left out."""
    from mnagt.data.readers.code import build_code

    report = build_code(args.paths, args.out, CodeConfig(**read_options(args, CodeConfig)))
    print(report)
    for skipped in report.skipped[:MAX_SKIPPED]:
        print(f"not read: {skipped}", file=sys.stderr)
    if len(report.skipped) > MAX_SKIPPED:
        print(f"not read: {len(report.skipped) - MAX_SKIPPED:,} more", file=sys.stderr)
    print(f"written to {args.out}")


def pack_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    add = parser.add_argument
    add("graphs", type=Path, metavar="GRAPHS", help="a JSONL file (.jsonl, .ndjson, each also .gz)")
    add("--out", type=Path, required=True, metavar="FOLDER", help="new folder for the data set")
    add("--target", action="append", metavar="NAME", help="target column; may be repeated [y]")
    add("--task", default="auto", metavar="KIND", help="kind of target: see `mnagt train --help` [auto]")
    add("--split-column", metavar="NAME", help="column whose groups stay in one part of a group split")
    add("--block", type=int, metavar="N", help="graphs that stay together when shuffled; 0 for none [by size]")


def run_pack(args: argparse.Namespace) -> None:
    """Reads a JSONL file of graphs some at a time and writes them as a folder that is mapped, not loaded, when a model
    is trained on it."""
    from mnagt.data.memmap import pack_jsonl

    dataset = pack_jsonl(
        args.graphs, args.out, targets=args.target, task=args.task, group=args.split_column, block=args.block
    )
    shuffled = f"shuffled by blocks of {dataset.block:,}" if dataset.block else "shuffled fully"
    print(f"{len(dataset):,} graphs, {dataset.nbytes / 2**20:,.1f} MiB, {dataset.task.kind}; {shuffled}")
    print(f"written to {args.out}")


def run_datasets(args: argparse.Namespace) -> None:
    """Lists the data sets that have names, and where they are."""
    load_plugins()
    from mnagt.data.registry import DATASETS, data_root, locate_dataset

    print(f"data root: {data_root()} (set MNAGT_DATA to change it)\n")
    rows = []
    for s in DATASETS.values():
        where = locate_dataset(s.name, data_root()) or s.availability
        rows.append([s.name, f"{s.graphs:,}", s.classes, s.metric, s.mean_nodes, s.mean_edges, s.description, where])
    print_table(["name", "graphs", "classes", "score", "nodes", "edges", "what", "where"], rows)
    print("\nEvery other data set of the TU collection has its name there, too: ENZYMES, REDDIT-BINARY, ...")


def run_models(args: argparse.Namespace) -> None:
    """Lists the models."""
    load_plugins()
    from mnagt.graphs.features import Columns, Features
    from mnagt.models.description import describe_parts
    from mnagt.models.registry import MODELS, build_model

    nci1 = Features(Columns((37,)))
    rows = []
    for name, entry in MODELS.items():
        model = build_model(name, {}, entry.reads or nci1, 2)
        parts, stack = describe_parts(model), "own stack" if entry.family == "transformer" else ""
        parts = f"{parts.kernels}; {parts.bias}; {parts.residual}" if parts else stack
        rows.append(
            [
                name,
                entry.family,
                entry.paper,
                "fitted" if entry.is_fitted_by_sklearn else f"{model.parameter_count:,}",
                parts,
                entry.summary,
            ]
        )
    print_table(["name", "family", "paper", "parameters", "kernels; bias; residual", "what"], rows)
    print("\nparameters at default size, on NCI1. Settings: mnagt train --model NAME --help")


def run_info(args: argparse.Namespace) -> None:
    """Lists versions, devices and folders."""
    from mnagt.installation import environment

    for name, value in environment().items():
        print(f"{name:18} {value}")
