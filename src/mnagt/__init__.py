"""Learning on whole graphs with multi-neighbourhood attention.

Names below are imported at first use, so that ``import mnagt`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mnagt.version import __version__

if TYPE_CHECKING:
    from mnagt.data import DATASETS, load_dataset
    from mnagt.data.in_memory import from_graphs
    from mnagt.data.molecule_table import read_molecules
    from mnagt.data.packed import PackedDataset
    from mnagt.data.smiles import molecules
    from mnagt.data.splits import Split, random_split, stratified_folds
    from mnagt.environment import environment
    from mnagt.errors import InputError
    from mnagt.experiments.ledger import Ledger
    from mnagt.experiments.quickstart import quickstart
    from mnagt.experiments.trials import run_trials
    from mnagt.export import export_onnx, export_torch
    from mnagt.graphs.batch import GraphBatch
    from mnagt.graphs.convert import from_networkx, from_pyg, to_networkx, to_pyg
    from mnagt.models import MODELS, build_model
    from mnagt.tasks import MultiLabel, Regression, SingleLabel, SubTokens
    from mnagt.training.answers import evaluate, predict
    from mnagt.training.config import RunConfig, SplitConfig, TrainConfig
    from mnagt.training.fit import Trainer
    from mnagt.training.model_folder import Trained, load_model
    from mnagt.training.run import read_recipe, resume, train
    from mnagt.uncertainty.ensemble import Ensemble
    from mnagt.uncertainty.folders import calibrate

_HOMES = {
    "mnagt.data": ("DATASETS", "load_dataset"),
    "mnagt.data.in_memory": ("from_graphs",),
    "mnagt.data.molecule_table": ("read_molecules",),
    "mnagt.data.packed": ("PackedDataset",),
    "mnagt.data.smiles": ("molecules",),
    "mnagt.data.splits": ("Split", "random_split", "stratified_folds"),
    "mnagt.environment": ("environment",),
    "mnagt.errors": ("InputError",),
    "mnagt.experiments.ledger": ("Ledger",),
    "mnagt.experiments.quickstart": ("quickstart",),
    "mnagt.experiments.trials": ("run_trials",),
    "mnagt.export": ("export_onnx", "export_torch"),
    "mnagt.graphs.batch": ("GraphBatch",),
    "mnagt.graphs.convert": ("from_networkx", "from_pyg", "to_networkx", "to_pyg"),
    "mnagt.models": ("MODELS", "build_model"),
    "mnagt.tasks": ("MultiLabel", "Regression", "SingleLabel", "SubTokens"),
    "mnagt.training.config": ("RunConfig", "SplitConfig", "TrainConfig"),
    "mnagt.training.fit": ("Trainer",),
    "mnagt.training.model_folder": ("Trained", "load_model"),
    "mnagt.training.run": ("read_recipe", "resume", "train"),
    "mnagt.training.answers": ("evaluate", "predict"),
    "mnagt.uncertainty.ensemble": ("Ensemble",),
    "mnagt.uncertainty.folders": ("calibrate",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "DATASETS",
    "MODELS",
    "Ensemble",
    "GraphBatch",
    "InputError",
    "Ledger",
    "MultiLabel",
    "PackedDataset",
    "Regression",
    "RunConfig",
    "SingleLabel",
    "Split",
    "SplitConfig",
    "SubTokens",
    "TrainConfig",
    "Trained",
    "Trainer",
    "__version__",
    "build_model",
    "calibrate",
    "environment",
    "evaluate",
    "export_onnx",
    "export_torch",
    "from_graphs",
    "from_networkx",
    "from_pyg",
    "load_dataset",
    "load_model",
    "molecules",
    "predict",
    "quickstart",
    "random_split",
    "read_molecules",
    "read_recipe",
    "resume",
    "run_trials",
    "stratified_folds",
    "to_networkx",
    "to_pyg",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mnagt' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
