"""The command line: each command parses into settings, calls one library function, and prints what came back."""

import argparse
import inspect
import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mnagt.cli import experiments, listing, predict, training
from mnagt.cli.allocator import restart_with_jemalloc
from mnagt.cli.completion import SHELLS, completion_script
from mnagt.cli.garbage_collection import import_torch
from mnagt.cli.options import Parser
from mnagt.cli.threads import limit_spinning
from mnagt.errors import InputError, suggest
from mnagt.plugins import load_plugins
from mnagt.registry import lookup
from mnagt.version import __version__


@dataclass(frozen=True)
class Command:
    """A command: its line in ``mnagt --help``, what runs it, described by its docstring, and what adds its options."""

    summary: str
    run: Callable[[argparse.Namespace], int | None]
    add_options: Callable[[argparse.ArgumentParser, Sequence[str]], None] = lambda parser, words: None
    next_step: str = ""
    """A command that is useful after this one, with the arguments of this one in braces; some print their own."""
    is_long_running: bool = False
    """Whether it may run for long, and starts itself again with jemalloc where that keeps memory from growing."""

    @property
    def description(self) -> str:
        return " ".join((inspect.getdoc(self.run) or self.summary).split())


def completion_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("shell", choices=SHELLS, help="bash, zsh or fish")


def run_completion(args: argparse.Namespace) -> None:
    """Prints a script that completes commands and options. In ~/.bashrc: `source <(mnagt completion bash)`."""
    options = {}
    for name in COMMANDS:
        (commands,) = [action for action in _parser([name])._actions if isinstance(action, argparse._SubParsersAction)]
        actions = [action for action in commands.choices[name]._actions if action.help != argparse.SUPPRESS]
        options[name] = [each for action in actions for each in action.option_strings if each.startswith("--")]
    print(completion_script(args.shell, options), end="")


COMMANDS = {
    "quickstart": Command(
        "cross-validate on molecules that come with the package, and write a report",
        experiments.run_quickstart,
        experiments.quickstart_options,
    ),
    "train": Command("train a model on a data set", training.run_train, training.train_options, is_long_running=True),
    "evaluate": Command(
        "score a trained model",
        predict.run_evaluate,
        predict.evaluate_options,
        "mnagt predict {model} {new} --out predictions.csv",
    ),
    "predict": Command(
        "predictions for graphs, as CSV",
        predict.run_predict,
        predict.predict_options,
        "mnagt explain {model[0]} {dataset} --out why.html",
    ),
    "screen": Command(
        "predictions for tables of molecules of any size",
        predict.run_screen,
        predict.screen_options,
        "mnagt serve {model}",
    ),
    "calibrate": Command(
        "calibrate a model's probabilities",
        predict.run_calibrate,
        predict.model_options,
        "mnagt predict {model} {new} --level 0.9 --out predictions.csv",
    ),
    "explain": Command(
        "explain predictions, as an HTML page",
        predict.run_explain,
        predict.explain_options,
        "mnagt serve {model}",
    ),
    "embed": Command(
        "embeddings of graphs, as NumPy or Parquet",
        predict.run_embed,
        predict.embed_options,
        "mnagt explain {model} {dataset} --out why.html",
    ),
    "monitor": Command(
        "drift of graphs against the training graphs, as an HTML page",
        predict.run_monitor,
        predict.monitor_options,
        "mnagt explain {model} {dataset} --out why.html",
    ),
    "export": Command(
        "export a trained model to ONNX or torch.export",
        predict.run_export,
        predict.export_options,
        "mnagt serve {model}",
    ),
    "serve": Command(
        "predictions over HTTP, and a page to try them on",
        predict.run_serve,
        predict.serve_options,
        is_long_running=True,
    ),
    "trials": Command(
        "recipes over several seeds: mean and deviation",
        experiments.run_trials,
        experiments.trials_options,
        "mnagt compare {dataset}",
        is_long_running=True,
    ),
    "compare": Command(
        "which model for these data: several on the same splits, as an HTML page",
        experiments.run_compare,
        experiments.compare_options,
        is_long_running=True,
    ),
    "tune": Command(
        "search for better settings, by validation",
        experiments.run_tune,
        experiments.tune_options,
        is_long_running=True,
    ),
    "reproduce": Command(
        "run the paper's experiments and compare tables and figures",
        experiments.run_reproduce,
        experiments.reproduce_options,
        is_long_running=True,
    ),
    "data": Command(
        "make a data set: Python functions, from source", listing.run_data, listing.data_options, "mnagt train {out}"
    ),
    "pack": Command("make a data set larger than memory", listing.run_pack, listing.pack_options, "mnagt train {out}"),
    "datasets": Command("list the data sets", listing.run_datasets, next_step="mnagt train MUTAG"),
    "models": Command("list the models", listing.run_models, next_step="mnagt train MUTAG --model gin"),
    "info": Command("versions, devices, folders", listing.run_info, next_step="mnagt quickstart"),
    "completion": Command("completion of commands and options in a shell", run_completion, completion_options),
}
"""Heavy imports wait until a command runs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 is success, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        limit_spinning(os.environ)
        if any(COMMANDS[name].is_long_running for name in arguments[:1] if name in COMMANDS):
            restart_with_jemalloc()
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    logging.getLogger("mnagt").setLevel(logging.INFO)  # a download says how far it is
    try:
        plugins, arguments = _split_plugins(arguments)
        if plugins:
            load_plugins(plugins)
        if not arguments:
            _parser([]).print_help()
            return 0
        args, unknown = _parser(arguments).parse_known_args(arguments)
        if unknown:
            hint = suggest(unknown[0], args.options)
            if args.run is predict.run_evaluate and not unknown[0].startswith("-"):
                hint = f"to score the graphs of {unknown[0]!r} give --dataset {unknown[0]}; "
            raise InputError(f"{args.command} has no option {unknown[0]!r}; {hint}`{args.command} --help` lists them")
        if argv is None and args.run is not run_completion:
            import_torch()
        status = args.run(args) or 0
        next_step = COMMANDS[args.command.split()[1]].next_step
        if status == 0 and next_step and sys.stderr.isatty():
            print(f"next: {next_step.format(**_quote(vars(args)))}", file=sys.stderr)
        return status
    except InputError as error:
        print(f"mnagt: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"mnagt: error: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mnagt: interrupted", file=sys.stderr)
        return 130


def _quote(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as a shell takes them; of a list, each."""
    return {
        name: [shlex.quote(str(each)) for each in value] if isinstance(value, list) else shlex.quote(str(value))
        for name, value in arguments.items()
    }


def _split_plugins(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The modules that ``--plugin`` names, and the other arguments."""
    ahead = Parser(prog="mnagt", add_help=False, allow_abbrev=False)
    ahead.add_argument("--plugin", action="append", default=[], nargs="?", const="")
    parsed, rest = ahead.parse_known_args(arguments)
    if not all(parsed.plugin):
        raise InputError("--plugin takes the name of a Python module")
    return parsed.plugin, rest


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser; only the chosen command gets its options, since some of them depend on the model."""
    parser = Parser(
        prog="mnagt",
        description="Trains models that predict something about whole graphs, such as molecules, and uses them.",
        epilog="`mnagt COMMAND --help` explains a command. Begin with: mnagt quickstart, then mnagt train TABLE.csv",
    )
    parser.add_argument("--version", action="version", version=f"mnagt {__version__}")
    parser.add_argument(
        "--plugin", action="append", metavar="MODULE", help="import this module, which registers models"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _, arguments = _split_plugins(arguments)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    if chosen is not None:
        lookup(COMMANDS, chosen, "command")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.summary, description=command.description, allow_abbrev=False)
        if name == chosen:
            sub.set_defaults(run=command.run, command=sub.prog)
            command.add_options(sub, arguments)
            listed = [action for action in sub._actions if action.help != argparse.SUPPRESS]
            sub.set_defaults(options=[option for action in listed for option in action.option_strings])
    return parser
