"""What ``mnagt`` can be asked to do. Heavy imports wait until a command runs."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mnagt.cli.answers import (
    calibrate_options,
    embed_options,
    evaluate_options,
    explain_options,
    export_options,
    predict_options,
    run_calibrate,
    run_embed,
    run_evaluate,
    run_explain,
    run_export,
    run_predict,
    run_serve,
    serve_options,
)
from mnagt.cli.lists import (
    data_options,
    no_options,
    pack_options,
    run_data,
    run_datasets,
    run_info,
    run_models,
    run_pack,
)
from mnagt.cli.studies import (
    quickstart_options,
    reproduce_options,
    run_quickstart,
    run_reproduce,
    run_trials,
    run_tune,
    trials_options,
    tune_options,
)
from mnagt.cli.training import run_train, train_options


@dataclass(frozen=True)
class Command:
    summary: str
    description: str
    add_options: Callable[[argparse.ArgumentParser, Sequence[str]], None]
    run: Callable[[argparse.Namespace], int | None]


COMMANDS = {
    "quickstart": Command(
        "see it work: cross-validate on molecules that come with the package",
        "Cross-validates the default model and a GIN on MUTAG, saves a model, predicts unseen molecules and writes a "
        "report.",
        quickstart_options,
        run_quickstart,
    ),
    "train": Command(
        "train a model on a data set",
        "Trains a model, keeps the weights of the epoch that validation likes best, and scores them once on the test "
        "part.",
        train_options,
        run_train,
    ),
    "evaluate": Command(
        "score a trained model", "Scores a trained model on graphs with known answers.", evaluate_options, run_evaluate
    ),
    "predict": Command(
        "answers for graphs, as CSV",
        "A trained model's answers as CSV, one row a graph. Of a Python file: names for its functions.",
        predict_options,
        run_predict,
    ),
    "calibrate": Command(
        "make a model's probabilities believable",
        "Learns from the validation part how sure a trained model may be (temperature; thresholds of prediction sets), "
        "keeps that in its folder for `mnagt predict`, and tells on the test part what it changes.",
        calibrate_options,
        run_calibrate,
    ),
    "explain": Command(
        "why a model says what it says, as a page",
        "Writes an HTML page: which nodes an answer is due to (integrated gradients, checked by deletion), how nodes "
        "weighed their kernels, whom they attended to.",
        explain_options,
        run_explain,
    ),
    "embed": Command(
        "vectors of graphs, for use elsewhere",
        "Writes a vector for each graph, as the model's head gets it: NumPy (.npy), or Parquet with pyarrow.",
        embed_options,
        run_embed,
    ),
    "export": Command(
        "a trained model as one file for other programs",
        "Writes a trained model as ONNX or as an exported program of PyTorch, for any number of graphs, nodes and "
        "edges, and checks that it answers as the model does.",
        export_options,
        run_export,
    ),
    "serve": Command(
        "answers over HTTP, and a page to try them on",
        "Answers questions about graphs over HTTP (predict, explain, health, metrics, OpenAPI) and serves a page to "
        "try them on, to this machine only unless told otherwise. MNAGT_TOKEN may hold the token.",
        serve_options,
        run_serve,
    ),
    "trials": Command(
        "recipes over several seeds: mean and deviation",
        "Runs recipes over several seeds and splits, side by side, and prints mean and deviation of the test score. "
        "Finished trials are kept in a ledger and not run again.",
        trials_options,
        run_trials,
    ),
    "tune": Command(
        "search for better settings, by validation",
        "Searches for settings that validate best (Optuna: TPE, with pruning), beginning with those given. The test "
        "part is never scored. The same command again goes on where it stopped.",
        tune_options,
        run_tune,
    ),
    "reproduce": Command(
        "the paper's tables and figures, and ours beside them",
        "Runs an experiment of the paper over several seeds, as far as the ledger does not hold it already, and writes "
        "a report: one HTML page, a Markdown table, figures.",
        reproduce_options,
        run_reproduce,
    ),
    "data": Command(
        "make a data set: Python functions, from source",
        "Makes a data set in OGB's layout. From Python files and folders: what are their functions called? Divided by "
        "project, each method name masked, copies left out.",
        data_options,
        run_data,
    ),
    "pack": Command(
        "make a data set larger than memory",
        "Reads a JSONL file of graphs some at a time and writes them as a folder that is mapped, not loaded, when a "
        "model is trained on it.",
        pack_options,
        run_pack,
    ),
    "datasets": Command(
        "list the data sets", "Lists the data sets that have names, and where they are.", no_options, run_datasets
    ),
    "models": Command("list the models", "Lists the models.", no_options, run_models),
    "info": Command("versions, devices, folders", "Says what this installation has and uses.", no_options, run_info),
}
