"""The commands of ``mnagt``. Heavy imports wait until a command runs."""

import argparse
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mnagt.cli import experiments, listing, predict, training


@dataclass(frozen=True)
class Command:
    """A command: its line in ``mnagt --help``, what runs it, described by its docstring, and what adds its options."""

    summary: str
    run: Callable[[argparse.Namespace], int | None]
    add_options: Callable[[argparse.ArgumentParser, Sequence[str]], None] = lambda parser, words: None

    @property
    def description(self) -> str:
        return " ".join((inspect.getdoc(self.run) or self.summary).split())


COMMANDS = {
    "quickstart": Command(
        "cross-validate on molecules that come with the package, and write a report",
        experiments.run_quickstart,
        experiments.quickstart_options,
    ),
    "train": Command("train a model on a data set", training.run_train, training.train_options),
    "evaluate": Command("score a trained model", predict.run_evaluate, predict.evaluate_options),
    "predict": Command("predictions for graphs, as CSV", predict.run_predict, predict.predict_options),
    "calibrate": Command("calibrate a model's probabilities", predict.run_calibrate, predict.model_options),
    "explain": Command("explain predictions, as an HTML page", predict.run_explain, predict.explain_options),
    "embed": Command("embeddings of graphs, as NumPy or Parquet", predict.run_embed, predict.embed_options),
    "export": Command("export a trained model to ONNX or torch.export", predict.run_export, predict.export_options),
    "serve": Command("predictions over HTTP, and a page to try them on", predict.run_serve, predict.serve_options),
    "trials": Command(
        "recipes over several seeds: mean and deviation", experiments.run_trials, experiments.trials_options
    ),
    "tune": Command("search for better settings, by validation", experiments.run_tune, experiments.tune_options),
    "reproduce": Command(
        "run the paper's experiments and compare tables and figures",
        experiments.run_reproduce,
        experiments.reproduce_options,
    ),
    "data": Command("make a data set: Python functions, from source", listing.run_data, listing.data_options),
    "pack": Command("make a data set larger than memory", listing.run_pack, listing.pack_options),
    "datasets": Command("list the data sets", listing.run_datasets),
    "models": Command("list the models", listing.run_models),
    "info": Command("versions, devices, folders", listing.run_info),
}
