"""The command line: each command parses into settings, calls one library function, and prints what came back."""

import argparse
import difflib
import logging
import os
import sys
from collections.abc import Sequence

from mnagt.cli.commands import COMMANDS
from mnagt.cli.options import Parser
from mnagt.errors import InputError
from mnagt.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 is success, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    logging.getLogger("mnagt").setLevel(logging.INFO)  # a download says how far it is
    try:
        args, unknown = _parser(arguments).parse_known_args(arguments)
        if unknown:
            close = difflib.get_close_matches(unknown[0], args.options, n=1, cutoff=0.7)
            hint = f"did you mean {close[0]}? " if close else ""
            raise InputError(f"{args.command} has no option {unknown[0]!r}; {hint}`{args.command} --help` lists them")
        return args.run(args) or 0
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


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser; only the chosen command gets its options, since some of them depend on the model."""
    parser = Parser(
        prog="mnagt",
        description="Learn on whole graphs with multi-neighbourhood attention.",
        epilog="`mnagt COMMAND --help` explains a command. Try: mnagt quickstart",
    )
    parser.add_argument("--version", action="version", version=f"mnagt {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.summary, description=command.description, allow_abbrev=False)
        if name == chosen:
            sub.set_defaults(run=command.run, command=sub.prog)
            command.add_options(sub, arguments)
            listed = [action for action in sub._actions if action.help != argparse.SUPPRESS]
            sub.set_defaults(options=[option for action in listed for option in action.option_strings])
    return parser
