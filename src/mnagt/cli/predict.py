"""Commands for a trained model: evaluate, predict, calibrate, explain, embed, export, serve."""

import argparse
import csv
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mnagt.cli.options import add_options, print_table, read_options
from mnagt.cli.training import column_options
from mnagt.errors import InputError
from mnagt.files import write_atomically


def evaluate_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, help="folder of a run")
    parser.add_argument("--dataset", help="name or path of another data set; all of its graphs are scored")
    column_options(parser)
    parser.add_argument("--part", choices=("train", "valid", "test", "all"), default="test", help="graphs to score")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... [auto]")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_evaluate(args: argparse.Namespace) -> None:
    from mnagt.inference.predict import evaluate

    columns = {"smiles": args.smiles, "targets": args.target}
    scores = evaluate(args.model, dataset=args.dataset, part=args.part, device=args.device, **columns)
    parts = [f"{value} {name}" if name == "graphs" else f"{name} {value:.4f}" for name, value in scores.items()]
    print(json.dumps(scores) if args.json else "  ".join(parts))


def predict_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, nargs="+", help="folder of a run; several make an ensemble")
    _input_options(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="CSV file to write [standard output]")
    parser.add_argument(
        "--level",
        type=float,
        metavar="X",
        help="add prediction sets or intervals that hold the target this often, such as 0.9",
    )


def _input_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", help="name or path of a data set, a SMILES, or a Python file")
    parser.add_argument("--smiles", metavar="COLUMN", help="the column of SMILES in a table [guessed from names]")
    parser.add_argument("--graphs", metavar="I,J,...", help="only these graphs, rows or functions, counted from 0")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... [auto]")


def _graphs(args: argparse.Namespace) -> list[int] | None:
    try:
        return None if args.graphs is None else [int(word) for word in args.graphs.split(",")]
    except ValueError:
        raise InputError(f"--graphs: expected whole numbers with commas between, got {args.graphs!r}") from None


def run_predict(args: argparse.Namespace) -> None:
    from mnagt.inference.predict import is_source, predict

    how = {"smiles": args.smiles, "device": args.device, "level": args.level}
    table = predict(args.model, args.dataset, graphs=_graphs(args), **how)
    if args.out is None:
        _print_names(table) if is_source(args.dataset) else _write_csv(table, sys.stdout)
        return
    with write_atomically(args.out) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        _write_csv(table, file)
    print(f"{len(next(iter(table.values())))} predictions in {args.out}", file=sys.stderr)


def _print_names(table: dict[str, list]) -> None:
    """Functions, and beside them the names suggested, each with its probability."""
    lines, functions, *pairs = table.values()
    named = [[f"{n} {p:.3f}" for n, p in zip(*pair, strict=True)] for pair in zip(pairs[::2], pairs[1::2], strict=True)]
    head = ["line", "function", *map(str, range(1, len(named) + 1))]
    print_table(head, [list(row) for row in zip(lines, functions, *named, strict=True)])


def _write_csv(table: dict[str, list], file: Any) -> None:
    writer = csv.writer(file)
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))


def calibrate_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, help="folder of a run")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... [auto]")


def run_calibrate(args: argparse.Namespace) -> None:
    from mnagt.inference.calibrate import calibrate

    done = calibrate(args.model, device=args.device)
    print(f"temperature {done.calibration.temperature:.3f}, from {done.calibration.graphs:,} validation graphs")
    if done.before and done.after:
        rows = [
            [when, f"{r.brier:.4f}", f"{r.ece:.4f}"] for when, r in (("before", done.before), ("after", done.after))
        ]
        print_table([f"{done.test_graphs:,} test graphs", "Brier", "calibration error"], rows)
    print(f"saved in {args.model}; `mnagt predict {args.model} ... --level 0.9` adds sets or intervals")


def explain_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from mnagt.explain.settings import ExplainConfig

    parser.add_argument("model", type=Path, help="folder of a run")
    _input_options(parser)
    parser.add_argument("--out", type=Path, default=Path("explained.html"), metavar="FILE", help="[explained.html]")
    add_options(parser, ExplainConfig, "explanation")


def run_explain(args: argparse.Namespace) -> None:
    from mnagt.explain.report import explain_to
    from mnagt.explain.settings import ExplainConfig

    config = ExplainConfig(**read_options(args, ExplainConfig))
    how = {"graphs": _graphs(args), "smiles": args.smiles, "device": args.device}
    for line in explain_to(args.out, args.model, args.dataset, config, **how):
        print(line)


def embed_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, help="folder of a run")
    _input_options(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="vectors.npy or vectors.parquet")


def run_embed(args: argparse.Namespace) -> None:
    from mnagt.inference.embed import embed_to

    shape = embed_to(args.out, args.model, args.dataset, graphs=_graphs(args), smiles=args.smiles, device=args.device)
    print(f"{shape[0]} vectors of {shape[1]} numbers in {args.out}", file=sys.stderr)


def export_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, help="folder of a run")
    parser.add_argument("--format", choices=("onnx", "torch"), default="onnx", help="onnx, or torch.export's [onnx]")
    parser.add_argument("--out", type=Path, metavar="FILE", help="[FOLDER.onnx or FOLDER.pt2]")


def run_export(args: argparse.Namespace) -> None:
    from mnagt.inference.export import FORMATS

    out = args.out or Path(f"{args.model.resolve()}.{'onnx' if args.format == 'onnx' else 'pt2'}")
    FORMATS[args.format](args.model, out)
    print(f"{out} gives the outputs of the model; docs/export.md describes its inputs")


def serve_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    from mnagt.serve.config import ServeConfig

    parser.add_argument("model", type=Path, help="folder of a run")
    add_options(parser, ServeConfig, "service")


def run_serve(args: argparse.Namespace) -> None:
    from mnagt.serve.config import ServeConfig

    config = ServeConfig(**read_options(args, ServeConfig))
    config = replace(config, token=config.token or os.environ.get("MNAGT_TOKEN", ""))
    try:
        from mnagt.serve.app import serve
    except ImportError:
        raise InputError("the service needs packages that are not installed: pip install 'mnagt[serve]'") from None
    serve(args.model, config, say=lambda line: print(line, flush=True))
