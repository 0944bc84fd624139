"""The commands of ``mnagt``. Heavy imports wait until a command runs."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mnagt.cli.experiments import (
    quickstart_options,
    reproduce_options,
    run_quickstart,
    run_reproduce,
    run_trials,
    run_tune,
    trials_options,
    tune_options,
)
from mnagt.cli.listing import (
    data_options,
    no_options,
    pack_options,
    run_data,
    run_datasets,
    run_info,
    run_models,
    run_pack,
)
from mnagt.cli.predict import (
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
from mnagt.cli.training import run_train, train_options


@dataclass(frozen=True)
class Command:
    summary: str
    description: str
    add_options: Callable[[argparse.ArgumentParser, Sequence[str]], None]
    run: Callable[[argparse.Namespace], int | None]


COMMANDS = {
    "quickstart": Command(
        "cross-validate on molecules that come with the package, and write a report",
        "Cross-validates the default model and a GIN on MUTAG, saves a model, predicts unseen molecules and writes a "
        "report.",
        quickstart_options,
        run_quickstart,
    ),
    "train": Command(
        "train a model on a data set",
        "Trains a model, keeps the weights of the epoch with the best validation score, and scores them once on the "
        "test part.",
        train_options,
        run_train,
    ),
    "evaluate": Command(
        "score a trained model", "Scores a trained model on graphs with known targets.", evaluate_options, run_evaluate
    ),
    "predict": Command(
        "predictions for graphs, as CSV",
        "Writes the predictions of a trained model as CSV, one row a graph; of a Python file, names for its functions.",
        predict_options,
        run_predict,
    ),
    "calibrate": Command(
        "calibrate a model's probabilities",
        "Fits temperature scaling and the thresholds of prediction sets on the validation part, saves them in the "
        "model's folder for `mnagt predict`, and reports the calibration error on the test part, before and after.",
        calibrate_options,
        run_calibrate,
    ),
    "explain": Command(
        "explain predictions, as an HTML page",
        "Writes an HTML page: the attribution of a prediction to nodes (integrated gradients, checked by deletion), "
        "kernel weights and attention.",
        explain_options,
        run_explain,
    ),
    "embed": Command(
        "embeddings of graphs, as NumPy or Parquet",
        "Writes an embedding of each graph, the input of the model's head: NumPy (.npy), or Parquet with pyarrow.",
        embed_options,
        run_embed,
    ),
    "export": Command(
        "export a trained model to ONNX or torch.export",
        "Writes a trained model as ONNX or as an exported program of PyTorch, for any number of graphs, nodes and "
        "edges, and checks that its outputs are those of the model.",
        export_options,
        run_export,
    ),
    "serve": Command(
        "predictions over HTTP, and a page to try them on",
        "Serves predictions and explanations over HTTP (predict, explain, health, metrics, OpenAPI) and a page to try "
        "them on, to this machine only unless --host says otherwise. MNAGT_TOKEN may hold the token.",
        serve_options,
        run_serve,
    ),
    "trials": Command(
        "recipes over several seeds: mean and deviation",
        "Runs recipes over several seeds and splits, in parallel, and prints mean and deviation of the test score. "
        "Finished trials are kept in a ledger and not run again.",
        trials_options,
        run_trials,
    ),
    "tune": Command(
        "search for better settings, by validation",
        "Searches for the settings with the best validation score (Optuna: TPE, with pruning), starting from those "
        "given. The test part is never scored. The same command again goes on where it stopped.",
        tune_options,
        run_tune,
    ),
    "reproduce": Command(
        "run the paper's experiments and compare tables and figures",
        "Runs an experiment of the paper over several seeds, as far as the ledger does not hold it already, and writes "
        "a report: one HTML page, a Markdown table, figures.",
        reproduce_options,
        run_reproduce,
    ),
    "data": Command(
        "make a data set: Python functions, from source",
        "Makes a data set in OGB's layout. From Python files and folders: the task is to name "
        "functions. Split by project; each method name is masked, copies are left out.",
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
    "info": Command("versions, devices, folders", "Lists versions, devices and folders.", no_options, run_info),
}
