"""The public names of the package, and the modules that they are imported from at first use."""

from mnagt.attention.kernels import register_kernel
from mnagt.attention.mixers import register_mixer
from mnagt.data.in_memory import from_graphs
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.molecule_table import read_molecules
from mnagt.data.readers.smiles import read_smiles
from mnagt.data.registry import DATASETS, load_dataset, register_dataset
from mnagt.data.splits import Split, random_split, stratified_folds
from mnagt.errors import InputError
from mnagt.experiments.ledger import Ledger
from mnagt.experiments.quickstart import quickstart
from mnagt.experiments.trials import run_trials
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.convert import from_networkx, from_pyg, to_networkx, to_pyg
from mnagt.inference.ensemble import Ensemble
from mnagt.inference.export import export_onnx, export_torch
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.inference.predict import calibrate, evaluate, predict
from mnagt.installation import environment
from mnagt.models.registry import MODELS, build_model, register_model
from mnagt.nn.readouts import register_readout
from mnagt.plugins import load_plugins
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.runs.recipes import read_recipe
from mnagt.screening.screen import screen
from mnagt.tasks import MultiLabel, Regression, SingleLabel, SubTokens, register_task
from mnagt.training.run import resume, train
from mnagt.training.trainer import Trainer
from mnagt.version import __version__

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
    "load_plugins",
    "predict",
    "quickstart",
    "random_split",
    "read_molecules",
    "read_recipe",
    "read_smiles",
    "register_dataset",
    "register_kernel",
    "register_mixer",
    "register_model",
    "register_readout",
    "register_task",
    "resume",
    "run_trials",
    "screen",
    "stratified_folds",
    "to_networkx",
    "to_pyg",
    "train",
]
