"""Commands for a trained model: evaluate, predict, screen, calibrate, explain, embed, monitor, export, serve."""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnagt.cli.experiments import engine_options, read_ray
from mnagt.cli.options import add_options, print_scores, print_table, read_options
from mnagt.cli.training import SMILES_HELP, column_options, name_new_graphs, reaction_option
from mnagt.errors import InputError, count, explain_missing
from mnagt.explain.config import ExplainConfig
from mnagt.files import csv_writer, write_atomically
from mnagt.screening.config import ScreenConfig
from mnagt.serve.config import ServeConfig

if TYPE_CHECKING:
    from mnagt.tasks import IntervalCoverage


def model_options(parser: argparse.ArgumentParser, words: Sequence[str], **model: Any) -> None:
    parser.add_argument("model", type=Path, **{"help": "folder of a run", **model})
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... [auto]")


_DESCRIPTORS = "table with the columns that the model reads beside the graphs [those of the data set]"


def input_options(parser: argparse.ArgumentParser) -> None:
    """What ``_read_inputs`` reads, and the data set."""
    parser.add_argument("dataset", help="name or path of a data set, a SMILES, or a Python file")
    parser.add_argument("--smiles", metavar="COLUMN[,...]", help=SMILES_HELP)
    reaction_option(parser)
    parser.add_argument("--descriptors", metavar="FILE", help=_DESCRIPTORS)
    parser.add_argument("--graphs", metavar="I,J,...", help="only these graphs, rows or functions, counted from 0")


def _read_inputs(args: argparse.Namespace) -> dict[str, Any]:
    try:
        graphs = None if args.graphs is None else [int(word) for word in args.graphs.split(",")]
    except ValueError:
        raise InputError(f"--graphs: expected whole numbers with commas between, got {args.graphs!r}") from None
    return {"graphs": graphs, "smiles": args.smiles, "descriptors": args.descriptors, "device": args.device}


def evaluate_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    model_options(parser, words)
    parser.add_argument("--dataset", help="name or path of another data set; all of its graphs are scored")
    column_options(parser)
    parser.add_argument("--descriptors", metavar="FILE", help=_DESCRIPTORS)
    parser.add_argument("--part", choices=("train", "valid", "test", "all"), default="test", help="graphs to score")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_evaluate(args: argparse.Namespace) -> None:
    """Scores a trained model on graphs with known targets, with a bootstrap interval of each score."""
    from mnagt.inference.predict import evaluate

    columns = {"smiles": args.smiles, "targets": args.target, "descriptors": args.descriptors}
    scores = evaluate(args.model, dataset=args.dataset, part=args.part, device=args.device, **columns)
    args.new = name_new_graphs(args.model)
    if args.json:
        return print(json.dumps(scores))
    graphs, intervals = scores.pop("graphs"), scores.pop("intervals")
    print(f"{graphs} graphs")
    print_scores(scores, intervals)


def predict_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    model_options(parser, words, nargs="+", help="folder of a run; several make an ensemble")
    input_options(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="CSV file to write [standard output]")
    _quote_option(parser)
    level = "add prediction sets or intervals that hold the target this often, such as 0.9"
    parser.add_argument("--level", type=float, metavar="X", help=level)
    samples = "average N predictions with dropout (Monte Carlo dropout); spread columns say how far they agree"
    parser.add_argument("--dropout-samples", type=int, default=0, metavar="N", help=samples)


def _quote_option(parser: argparse.ArgumentParser) -> None:
    quoted = "in CSV, write ' before texts that a spreadsheet would take for formulas (=, +, -, @)"
    parser.add_argument("--quote-formulas", action="store_const", const="true", help=quoted)


def run_predict(args: argparse.Namespace) -> None:
    """Writes the predictions of a trained model as CSV, one row a graph; of a Python file, names for its functions."""
    from mnagt.inference.predict import is_source, predict

    table = predict(
        args.model, args.dataset, level=args.level, dropout_samples=args.dropout_samples, **_read_inputs(args)
    )
    quotes_formulas = bool(args.quote_formulas)
    if args.out is None:
        _print_names(table) if is_source(args.dataset) else _write_csv(table, sys.stdout, quotes_formulas)
        return
    with write_atomically(args.out) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        _write_csv(table, file, quotes_formulas)
    print(_count_predictions(table, args.out), file=sys.stderr)


def _count_predictions(table: dict[str, list], out: Path) -> str:
    """How many predictions a file has, and how many rows have a note in their place; the note is the last column."""
    column, values = next(reversed(table.items()))
    num_notes = sum(isinstance(value, str) for value in values) if column.endswith("note") else 0
    count = len(values) - num_notes
    without = f"; {num_notes} more with a note in place of a prediction" if num_notes else ""
    return f"{count} prediction{'' if count == 1 else 's'} in {out}{without}"


def _print_names(table: dict[str, list]) -> None:
    """Functions, and beside them the names suggested, each with its probability."""
    distances = {name: [f"{d:.2f}" for d in table.pop(name)] for name in list(table) if name == "distance"}
    lines, functions, *pairs = table.values()
    named = [[f"{n} {p:.3f}" for n, p in zip(*pair, strict=True)] for pair in zip(pairs[::2], pairs[1::2], strict=True)]
    head = ["line", "function", *map(str, range(1, len(named) + 1)), *distances]
    print_table(head, [list(row) for row in zip(lines, functions, *named, *distances.values(), strict=True)])


def _write_csv(table: dict[str, list], file: Any, quotes_formulas: bool) -> None:
    write = csv_writer(file, quotes_formulas=quotes_formulas)
    write([table])
    write(zip(*table.values(), strict=True))


def screen_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, help="folder of a run, or of several runs (an ensemble)")
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="files of molecules, folders of files, or patterns")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder for the predictions")
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... [auto]")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes, each with one for RDKit [one a CPU]")
    add_options(parser, ScreenConfig, "output", leave_out=("quote_formulas",))
    _quote_option(parser)
    engine_options(parser)


def run_screen(args: argparse.Namespace) -> None:
    """Writes predictions for tables of molecules of any size: CSV, TSV, .smi (each also .gz) or Parquet. Rows are read,
    predicted for and written shard by shard, in many processes. The same command goes on where another ended."""
    from mnagt.screening.screen import BEST, screen

    config = ScreenConfig(**read_options(args, ScreenConfig))
    done = screen(args.model, args.inputs, args.out, config, jobs=args.jobs, ray=read_ray(args), device=args.device)
    print(
        f"{done.rows:,} rows of {count(done.files, 'file')} in {args.out}; {done.refused:,} have no predictions (note)"
    )
    if done.new_rows:
        print(f"{done.new_rows:,} of them now, in {done.seconds:,.1f} s: {done.new_rows / done.seconds:,.0f} a second")
    if config.top_k:
        print(f"the best by {config.by} are in {args.out / BEST}")


def run_calibrate(args: argparse.Namespace) -> None:
    """Fits temperature scaling and the thresholds of prediction sets on the validation part, saves them in the model's
    folder for `mnagt predict`, and reports the calibration error on the test part, before and after."""
    from mnagt.inference.predict import calibrate

    done = calibrate(args.model, device=args.device)
    args.new = name_new_graphs(args.model)
    print(f"temperature {done.calibration.temperature:.3f}, from {done.calibration.graphs:,} validation graphs")
    if done.before and done.after:
        reports = {"before": done.before, "after": done.after}
        rows = [[when, f"{report.brier:.4f}", f"{report.ece:.4f}"] for when, report in reports.items()]
        print_table([f"{done.test_graphs:,} test graphs", "Brier", "calibration error"], rows)
    if done.coverage:
        pairs = {
            f"{name}, level {level:g}" if len(done.coverage) > 1 else f"level {level:g}": pair
            for name, levels in done.coverage.items()
            for level, pair in levels.items()
        }
        has_missing = any(conformal.targets != done.test_graphs for conformal, _ in pairs.values())
        rows = [
            [name, f"{conformal.targets:,}" * has_missing, *_format_coverage(conformal), *_format_coverage(raw)]
            for name, (conformal, raw) in pairs.items()
        ]
        widths = "covered", "mean width"
        head = [f"{done.test_graphs:,} test graphs", "with a target", *widths, "uncalibrated: covered", widths[1]]
        is_filled = [any(column) for column in zip(*rows, strict=True)]
        print_table([*compress(head, is_filled)], [[*compress(row, is_filled)] for row in rows])
    print(f"saved in {args.model}; with --level, `mnagt predict` adds sets or intervals")


def _format_coverage(coverage: "IntervalCoverage | None") -> list[str]:
    return ["", ""] if coverage is None else [f"{coverage.share:.3f}", f"{coverage.width:.3f}"]


def explain_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    model_options(parser, words)
    input_options(parser)
    parser.add_argument("--out", type=Path, default=Path("explained.html"), metavar="FILE", help="[explained.html]")
    add_options(parser, ExplainConfig, "explanation")


def run_explain(args: argparse.Namespace) -> None:
    """Writes an HTML page: the attribution of a prediction to nodes (integrated gradients, checked by deletion), kernel
    weights and attention."""
    from mnagt.explain.report import explain_to

    config = ExplainConfig(**read_options(args, ExplainConfig))
    for line in explain_to(args.out, args.model, args.dataset, config, **_read_inputs(args)):
        print(line)


def embed_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    model_options(parser, words)
    input_options(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="vectors.npy or vectors.parquet")


def run_embed(args: argparse.Namespace) -> None:
    """Writes an embedding of each graph, the input of the model's head: NumPy (.npy), or Parquet with pyarrow."""
    from mnagt.inference.predict import embed_to

    count, dim = embed_to(args.out, args.model, args.dataset, **_read_inputs(args))
    print(f"{count} vectors of {dim} numbers in {args.out}", file=sys.stderr)


def monitor_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    model_options(parser, words)
    input_options(parser)
    parser.add_argument("--out", type=Path, default=Path("drift.html"), metavar="FILE", help="[drift.html]")


def run_monitor(args: argparse.Namespace) -> int:
    """Compares graphs with those that the model was trained on: sizes, categories, and distances to the training
    graphs. Writes a page. The exit status is 1 if a feature has drifted."""
    from mnagt.monitor import monitor_to

    monitored = monitor_to(args.out, args.model, args.dataset, **_read_inputs(args))
    print_table(*monitored.table())
    print(f"{monitored.summary()}; a page is in {args.out}")
    return 1 if monitored.drifted else 0


def export_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, help="folder of a run")
    kinds = "onnx, torch.export's, or compiled by AOTInductor [onnx]"
    parser.add_argument("--format", choices=("onnx", "torch", "compiled"), default="onnx", help=kinds)
    quantize = "weights of 8 bits in an ONNX file; prints its size, error and speed"
    parser.add_argument("--quantize", choices=("int8",), help=quantize)
    parser.add_argument("--out", type=Path, metavar="FILE", help="[FOLDER.onnx or FOLDER.pt2]")


def run_export(args: argparse.Namespace) -> None:
    """Writes a trained model as ONNX, as an exported program of PyTorch or as compiled code, for any number of graphs,
    nodes and edges, and checks that its outputs are those of the model."""
    from mnagt.inference.export import FORMATS

    out = args.out or Path(f"{args.model.resolve()}.{'onnx' if args.format == 'onnx' else 'pt2'}")
    if args.quantize:
        from mnagt.inference.quantization import export_int8

        if args.format != "onnx":
            raise InputError(f"--quantize: only ONNX files can have weights of 8 bits, not --format {args.format}")
        return print(f"{out}: {export_int8(args.model, out)}")
    FORMATS[args.format](args.model, out)
    print(f"{out} gives the outputs of the model; docs/export.md describes its inputs")


def serve_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("model", type=Path, help="folder of a run, or a folder of several models")
    add_options(parser, ServeConfig, "service", leave_out=("token",))
    parser.add_argument("--token", help=argparse.SUPPRESS)


def run_serve(args: argparse.Namespace) -> None:
    """Serves predictions and explanations over HTTP (predict, explain, health, metrics, OpenAPI) and a page to try them
    on, to this machine only unless --host says otherwise. The environment variable MNAGT_TOKEN may hold a token."""
    config = ServeConfig(**read_options(args, ServeConfig))
    if args.token is not None:
        notice = (
            "all users of this machine can see --token, and 0.4 has it no more; set MNAGT_TOKEN, or use --tokens FILE"
        )
        print(f"mnagt: {notice}", file=sys.stderr)
    with explain_missing("the service", "serve"):
        from mnagt.serve.app import serve
    ask = "open it in a browser to try it; /openapi.json describes requests"
    serve(args.model, config, say=lambda address: print(f"{address}\n{ask}", flush=True))
