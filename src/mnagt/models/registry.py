"""Every model by name. To add one: a file named after it, and a line here."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from mnagt.errors import InputError, one_line
from mnagt.graphs.features import Features
from mnagt.graphs.molecules import MOLECULES, are_molecules
from mnagt.models.config import ReadoutConfig, SklearnConfig, WidthConfig
from mnagt.models.counts import CountsConfig, counts
from mnagt.models.descriptor_boosting import DescriptorBoostingConfig, descriptor_boosting
from mnagt.models.gat import GatConfig, gat
from mnagt.models.gcn import GcnConfig, gcn
from mnagt.models.gin import GinConfig, gin
from mnagt.models.gophormer import GophormerConfig, gophormer
from mnagt.models.gps import GpsConfig, gps
from mnagt.models.graphit import GraphitConfig, graphit
from mnagt.models.graphormer import GraphormerConfig, graphormer
from mnagt.models.graphtrans import GraphTransConfig, graphtrans
from mnagt.models.grover import GroverConfig, grover
from mnagt.models.grpe import GrpeConfig, grpe
from mnagt.models.gt import GtConfig, gt
from mnagt.models.mnagt import MnagtConfig, mnagt
from mnagt.models.mnagt_ensemble import MnagtEnsembleConfig, mnagt_ensemble
from mnagt.models.mnagt_paper import PaperConfig, mnagt_paper
from mnagt.models.mnagt_wl import MnagtWLConfig, mnagt_wl
from mnagt.models.morgan_forest import MorganForestConfig, morgan_forest
from mnagt.models.sage import SageConfig, sage
from mnagt.models.sagpool import SagPoolConfig, sagpool
from mnagt.models.san import SanConfig, san
from mnagt.models.sat import SatConfig, sat
from mnagt.models.set2set import Set2SetConfig, set2set
from mnagt.models.sortpool import SortPoolConfig, sortpool
from mnagt.models.transformer import TransformerConfig, transformer
from mnagt.models.virtual_node import VirtualConfig, gcn_virtual, gin_virtual
from mnagt.models.wl_linear import WLLinearConfig, wl_linear
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.list_model import is_network, make_list_model
from mnagt.nn.module_model import ModuleModel
from mnagt.registry import add_entry, lookup
from mnagt.settings import Settings, from_dict
from mnagt.tasks.base import Level

Build = Callable[[Any, Features, int], GraphModel]


@dataclass(frozen=True)
class Entry:
    """A model: its settings, and the function that builds it from them.

    >>> MODELS["gin"].config().depth, MODELS["gin"].summary
    (4, 'Sums over neighbours through small networks')
    """

    config: type
    """Its settings, a frozen dataclass that inherits from ``ModelConfig``."""
    build: Build
    """From settings, features and number of outputs to the model."""
    family: str
    """Where ``mnagt models`` lists it."""
    paper: str
    """What ``mnagt models`` shows as its paper."""
    reads: Features | None = None
    """The columns that graphs must have; None for any. Molecules may be of several components."""

    @property
    def is_fitted_by_sklearn(self) -> bool:
        """Whether scikit-learn fits the model (``training/sklearn_trainer.py``), in place of epochs of training."""
        return issubclass(self.config, SklearnConfig)

    @property
    def is_joined(self) -> bool:
        """Whether scikit-learn fits a part of the model before the rest is trained (``training/fit_members.py``)."""
        return issubclass(self.config, MnagtWLConfig | MnagtEnsembleConfig)

    @property
    def summary(self) -> str:
        """What the model does: the first line of its function's docstring."""
        return (inspect.getdoc(self.build) or "").partition("\n")[0].rstrip(".")


MODELS: dict[str, Entry] = {
    "mnagt": Entry(MnagtConfig, mnagt, "transformer", "here"),
    "mnagt-wl": Entry(MnagtWLConfig, mnagt_wl, "transformer", "here"),
    "mnagt-ensemble": Entry(MnagtEnsembleConfig, mnagt_ensemble, "transformer", "here", reads=MOLECULES),
    "mnagt-paper": Entry(PaperConfig, mnagt_paper, "transformer", "MNA-GT"),
    "transformer": Entry(TransformerConfig, transformer, "transformer", "Vaswani 2017"),
    "gt": Entry(GtConfig, gt, "transformer", "Dwivedi 2020"),
    "graphtrans": Entry(GraphTransConfig, graphtrans, "transformer", "Wu 2021"),
    "sat": Entry(SatConfig, sat, "transformer", "Chen 2022"),
    "graphormer": Entry(GraphormerConfig, graphormer, "transformer", "Ying 2021"),
    "gps": Entry(GpsConfig, gps, "transformer", "Rampášek 2022"),
    "graphit": Entry(GraphitConfig, graphit, "transformer", "Mialon 2021"),
    "grpe": Entry(GrpeConfig, grpe, "transformer", "Park 2022"),
    "grover": Entry(GroverConfig, grover, "transformer", "Rong 2020"),
    "gophormer": Entry(GophormerConfig, gophormer, "transformer", "Zhao 2021"),
    "san": Entry(SanConfig, san, "transformer", "Kreuzer 2021"),
    "gcn": Entry(GcnConfig, gcn, "gnn", "Kipf 2017"),
    "gat": Entry(GatConfig, gat, "gnn", "Veličković 2018"),
    "sage": Entry(SageConfig, sage, "gnn", "Hamilton 2017"),
    "gin": Entry(GinConfig, gin, "gnn", "Xu 2019"),
    "gcn-virtual": Entry(VirtualConfig, gcn_virtual, "gnn", "Hu 2020"),
    "gin-virtual": Entry(VirtualConfig, gin_virtual, "gnn", "Hu 2020"),
    "set2set": Entry(Set2SetConfig, set2set, "pooling", "Vinyals 2016"),
    "sortpool": Entry(SortPoolConfig, sortpool, "pooling", "Zhang 2018"),
    "sagpool": Entry(SagPoolConfig, sagpool, "pooling", "Lee 2019"),
    "counts": Entry(CountsConfig, counts, "features", "Shervashidze 2011"),
    "wl-linear": Entry(WLLinearConfig, wl_linear, "features", "Shervashidze 2011"),
    "morgan-forest": Entry(MorganForestConfig, morgan_forest, "features", "Rogers 2010", reads=MOLECULES),
    "descriptor-boosting": Entry(
        DescriptorBoostingConfig, descriptor_boosting, "features", "Friedman 2001", reads=MOLECULES
    ),
}
"""Every model by name. ``register_model`` adds one."""


def register_model(name: str, config: type, *, family: str = "own", paper: str = "own") -> Callable[[Build], Build]:
    """Decorate a function that builds a model of one's own: the command line and all of Python know it by ``name``.

    Args:
        name: The name of the model.
        config: Its settings, a frozen dataclass that inherits from ``ModelConfig``.
        family: transformer, gnn, pooling or own: where ``mnagt models`` lists it.
        paper: What ``mnagt models`` shows as its paper.

    >>> from mnagt import build_model, register_model
    >>> from mnagt.models.config import ReadoutConfig
    >>> from mnagt.models.builders import make_model
    >>> @register_model("no-layers", ReadoutConfig)
    ... def no_layers(config, features, outputs):
    ...     return make_model(config, features, outputs, [])
    >>> build_model("no-layers", {"dim": 8}, Features(), 3).parameter_count > 0
    True
    >>> del MODELS["no-layers"]
    """

    def add(build: Build) -> Build:
        add_entry(MODELS, name, Entry(config, build, family, paper), "model")
        return build

    return add


@dataclass(frozen=True)
class ModuleConfig(Settings):
    """A module of one's own comes with its settings."""


@contextmanager
def use_module(module: nn.Module | None) -> Iterator[str]:
    """Within the block, ``MODELS`` has ``module`` by the name of its class, which is yielded; '' where it is None."""
    if module is None:
        yield ""
        return
    name = type(module).__name__

    def build(config: ModuleConfig, features: Features, outputs: int) -> GraphModel:
        return ModuleModel(module, features, outputs)

    add_entry(MODELS, name, Entry(ModuleConfig, build, "own", "own"), "model")
    try:
        yield name
    finally:
        del MODELS[name]


def full_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The model's settings with its defaults written out: what is kept must not change when a default does.

    >>> full_settings("gin", {"dim": 32})["depth"]
    4
    """
    return _to_dict(_read_settings(name, settings))


def resolve_settings(name: str, settings: Mapping[str, Any], features: Features, outputs: int) -> dict[str, Any]:
    """As ``full_settings``, with values in place of 'auto' and None, for graphs with these features.

    >>> resolve_settings("gin", {"dim": 32}, Features(), outputs=2)["conv"]
    'gin'
    """
    return _to_dict(_resolve(name, settings, features, outputs))


def _to_dict(config: Any) -> dict[str, Any]:
    """The settings as files hold them, which know no tuples: they are compared with those of other runs."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(config).items()}


def _read_settings(name: str, settings: Mapping[str, Any]) -> Any:
    return from_dict(lookup(MODELS, name, "model").config, settings, where=f"model {name}")


def _resolve(name: str, settings: Mapping[str, Any], features: Features, outputs: int) -> Any:
    config = _read_settings(name, settings)
    return config.resolve(features, outputs) if isinstance(config, WidthConfig) else config


def build_model(
    name: str,
    settings: Mapping[str, Any],
    features: Features,
    outputs: int,
    level: Level = "graph",
) -> GraphModel:
    """A model with fresh weights.

    Args:
        name: A name in ``MODELS``.
        settings: Those that differ from the model's defaults.
        features: The columns of nodes and edges that it reads; ``dataset.features``.
        outputs: Columns of its output; ``dataset.task.num_outputs``.
        level: What it predicts for; ``dataset.task.level``.

    Returns:
        A module from a ``GraphBatch`` to a tensor of shape [graphs, outputs]; for nodes and edges see ``ListModel``.

    >>> import torch
    >>> from mnagt import build_model, load_dataset
    >>> dataset = load_dataset("MUTAG")
    >>> model = build_model("gin", {"dim": 32}, dataset.features, dataset.task.num_outputs)
    >>> model(dataset.batch(torch.tensor([0, 1, 2]))).shape
    torch.Size([3, 2])
    """
    config = _resolve(name, settings, features, outputs)
    if MODELS[name].reads is not None and not are_molecules(features):
        raise InputError(
            f"{name} reads molecules, with the nine columns of atoms and three of bonds that SMILES and OGB's "
            "molecules have, and these graphs have others; choose mnagt, gin or wl-linear"
        )
    try:
        model = MODELS[name].build(config, features, outputs)
    except InputError:
        raise
    except (ValueError, RuntimeError, MemoryError) as error:  # PyTorch refuses a setting or lacks memory
        raise InputError(f"model {name}: {one_line(error)}; change its settings") from error
    if level == "graph":
        return model
    if not (isinstance(config, ReadoutConfig) and is_network(model)):
        raise InputError(
            f"{name} has no vectors of nodes that another readout could take, which targets of {level}s need; choose "
            "another model: mnagt, gps or gin"
        )
    if getattr(config, "descriptors", ()):
        raise InputError(f"descriptors are of whole graphs, and the targets of {level}s; leave out --descriptors")
    return make_list_model(model, level, config.dim, outputs, getattr(config, "head_dropout", 0.0))
