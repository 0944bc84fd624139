"""Learning on whole graphs with multi-neighbourhood attention.

Names below are imported at first use, so that ``import mnagt`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mnagt.version import __version__

if TYPE_CHECKING:
    from mnagt.data.in_memory import from_graphs
    from mnagt.data.packed import PackedDataset
    from mnagt.data.readers.molecule_table import read_molecules
    from mnagt.data.readers.smiles import read_smiles
    from mnagt.data.registry import DATASETS, load_dataset
    from mnagt.data.splits import Split, random_split, stratified_folds
    from mnagt.errors import InputError
    from mnagt.experiments.ledger import Ledger
    from mnagt.experiments.quickstart import quickstart
    from mnagt.experiments.trials import run_trials
    from mnagt.graphs.batch import GraphBatch
    from mnagt.graphs.convert import from_networkx, from_pyg, to_networkx, to_pyg
    from mnagt.inference.calibrate import calibrate
    from mnagt.inference.ensemble import Ensemble
    from mnagt.inference.export import export_onnx, export_torch
    from mnagt.inference.model_folder import TrainedModel, load_model
    from mnagt.inference.predict import evaluate, predict
    from mnagt.installation import environment
    from mnagt.models.registry import MODELS, build_model
    from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
    from mnagt.runs.recipes import read_recipe
    from mnagt.tasks import MultiLabel, Regression, SingleLabel, SubTokens
    from mnagt.training.run import resume, train
    from mnagt.training.trainer import Trainer

_HOMES = {
    "mnagt.data.registry": ("DATASETS", "load_dataset"),
    "mnagt.data.in_memory": ("from_graphs",),
    "mnagt.data.readers.molecule_table": ("read_molecules",),
    "mnagt.data.packed": ("PackedDataset",),
    "mnagt.data.readers.smiles": ("read_smiles",),
    "mnagt.data.splits": ("Split", "random_split", "stratified_folds"),
    "mnagt.installation": ("environment",),
    "mnagt.errors": ("InputError",),
    "mnagt.experiments.ledger": ("Ledger",),
    "mnagt.experiments.quickstart": ("quickstart",),
    "mnagt.experiments.trials": ("run_trials",),
    "mnagt.inference.export": ("export_onnx", "export_torch"),
    "mnagt.graphs.batch": ("GraphBatch",),
    "mnagt.graphs.convert": ("from_networkx", "from_pyg", "to_networkx", "to_pyg"),
    "mnagt.models.registry": ("MODELS", "build_model"),
    "mnagt.tasks": ("MultiLabel", "Regression", "SingleLabel", "SubTokens"),
    "mnagt.runs.config": ("RunConfig", "SplitConfig", "TrainConfig"),
    "mnagt.runs.recipes": ("read_recipe",),
    "mnagt.training.trainer": ("Trainer",),
    "mnagt.inference.model_folder": ("TrainedModel", "load_model"),
    "mnagt.training.run": ("resume", "train"),
    "mnagt.inference.predict": ("evaluate", "predict"),
    "mnagt.inference.ensemble": ("Ensemble",),
    "mnagt.inference.calibrate": ("calibrate",),
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
    "TrainedModel",
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
    "predict",
    "quickstart",
    "random_split",
    "read_molecules",
    "read_recipe",
    "read_smiles",
    "resume",
    "run_trials",
    "stratified_folds",
    "to_networkx",
    "to_pyg",
    "train",
]


_OLD_NAMES = {"Trained": "TrainedModel", "molecules": "read_smiles"}
"""Names of 0.1 that are kept for one release."""


def __getattr__(name: str) -> Any:
    name = _OLD_NAMES.get(name, name)
    if name not in _HOME:
        raise AttributeError(f"module 'mnagt' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
