"""A trained model in a folder that stands alone: ``config.json`` and ``model.safetensors`` rebuild it."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.attention.kernels import KERNELS
from mnagt.attention.mixers import MIXERS
from mnagt.data.categories import align_categories
from mnagt.data.in_memory import read_graphs
from mnagt.data.packed import PackedDataset
from mnagt.data.readers.descriptor_columns import KIND as DESCRIPTORS
from mnagt.data.readers.list_targets import with_bond_numbers
from mnagt.data.registry import DATASETS
from mnagt.errors import InputError, join_names, quote
from mnagt.files import read_json, write_json, write_record, write_text
from mnagt.graphs.features import Features
from mnagt.inference.build import SkipInit, parameters_up_to
from mnagt.inference.calibration import Calibration
from mnagt.inference.domain import DISTANCE, DistanceModel, Domain
from mnagt.inference.hub import HubMixin
from mnagt.inference.model_card import render_card
from mnagt.inference.outputs import compute_outputs
from mnagt.inference.random_forest import ForestEnsemble, RandomForest
from mnagt.inference.weights import (
    CALIBRATION,
    CARD,
    CONFIG,
    DOMAIN,
    WEIGHTS,
    add_prefix,
    check_files,
    check_fingerprints,
    check_weights,
    fingerprints,
    load_tensors,
    save_tensors,
    select_prefix,
)
from mnagt.migrations import add_tree_roots, rename_weights, reorder_members
from mnagt.models.registry import MODELS, build_model, full_settings, use_module
from mnagt.nn.graph_model import GraphModel, resize_tables
from mnagt.nn.inference_fusion import FusedModel
from mnagt.nn.module_model import ModuleModel
from mnagt.nn.readouts import READOUTS
from mnagt.plugins import describe_missing, find_plugin
from mnagt.settings import from_dict
from mnagt.tasks import UNKNOWN, Suggestion, Task, task_from_dict, task_to_dict
from mnagt.version import __version__

Graphs = Any
"""What ``from_graphs`` takes: a data set, a batch, SMILES, or graphs of networkx or PyTorch Geometric, one or many."""
Some = Int[Tensor, "some"] | None
"""Indices of graphs; None for all."""
Device = torch.device | str
Outputs = Float[Tensor, "some outputs"]

SPARE_TENSORS = 64
"""Parameters that may be created while a model is built and are not part of it."""
FEW = 32
"""Up to so many graphs at once the fused model is faster: with more, Python calls no longer dominate."""
FOREST = "forest."
"""The tensors of the forest have names that begin so, beside those of the model."""


@dataclass(frozen=True, eq=False, repr=False)
class TrainedModel(HubMixin):
    """A trained model with its task, settings and calibration: what ``train`` returns and ``load_model`` reads.

    >>> from mnagt import load_dataset, load_model
    >>> trained = load_model("runs/mutag")
    >>> list(trained.predict(load_dataset("MUTAG")))
    ['prediction', 'p(-1)', 'p(1)', 'distance']
    """

    model: GraphModel
    """The network, from a ``GraphBatch`` to outputs."""
    task: Task
    """What is predicted."""
    name: str
    """Its name in ``MODELS``."""
    settings: Mapping[str, Any]
    """The model's settings, in full."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from: data set, run settings."""
    vocabularies: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the categories that it learned from, in its order, by column: 'node_labels/0', ..."""
    calibration: Calibration | None = None
    """Temperature and conformal thresholds, fitted to held-out graphs (``mnagt calibrate``)."""
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the columns that it reads, where the training graphs have any, by kind: 'node_labels', ..."""
    forest: RandomForest | None = None
    """A second member of the ensemble; its weight is among the settings."""
    domain: Domain | None = None
    """Where predictions can be trusted: how far graphs are from the training graphs."""

    def __repr__(self) -> str:
        features = self.model.features
        return (
            f"{type(self).__name__} {self.name}, trained on {self.origin.get('dataset', 'other graphs')}: "
            f"{self.model.parameter_count:,} parameters\n"
            f"  reads nodes: {features.nodes}; edges: {features.edges}\n"
            f"  predicts: {self.task.describe()}{'' if self.calibration is None else ', calibrated'}"
        )

    def outputs(self, graphs: Graphs, indices: Some = None, device: Device = "cpu") -> Outputs:
        """Outputs for the graphs ``indices`` (all, if None), in that order; with a forest, those of the ensemble."""
        return self._compute(graphs, indices, device)

    def outputs_with_distances(
        self, graphs: Graphs, indices: Some = None, device: Device = "cpu"
    ) -> tuple[Outputs, Float[Tensor, "some"] | None]:
        """As ``outputs``, and how far each graph is from the training graphs; None if the model has no domain."""
        if self.domain is None:
            return self.outputs(graphs, indices, device), None
        both = self._compute(graphs, indices, device, with_distances=True)
        return both[:, 1:], both[:, 0]

    def _compute(
        self, graphs: Graphs, indices: Some, device: Device, *, with_distances: bool = False
    ) -> Float[Tensor, "some columns"]:
        """What ``predictor`` gives for these graphs, on the CPU."""
        dataset, indices = self.read(graphs, indices, device)
        if len(indices) == 0:
            return torch.zeros(0, self.task.num_outputs + with_distances)
        num_graphs = len(indices) if dataset.device.type == "cpu" else None
        return compute_outputs(self.predictor(num_graphs, with_distances=with_distances), dataset, indices).cpu()

    def predictor(self, num_graphs: int | None = None, *, with_distances: bool = False) -> nn.Module:
        """The module from a batch to outputs: the model, or the ensemble with its forest.

        With ``num_graphs``, in the form that is fastest for so many graphs at once on a CPU. With ``with_distances``, a
        first column holds how far graphs are from the training graphs.
        """
        network, predictor = self._fused() if num_graphs is not None and num_graphs <= FEW else self.model, None
        if self.forest is not None:
            predictor = ForestEnsemble(network, self.forest, self.task, self.settings["forest_weight"])
        if with_distances:
            assert self.domain is not None
            return DistanceModel(network, self.domain, predictor)
        return predictor or network

    @cached_property
    def _fused(self) -> FusedModel:
        return FusedModel(self.model)

    def to(self, device: Device) -> Self:
        """Move the model and its forest to ``device``, in place."""
        self.model.to(device)
        if self.forest is not None:
            self.forest.to(device)
        return self

    def embed(self, graphs: Graphs, indices: Some = None, device: Device = "cpu") -> Float[Tensor, "some dim"]:
        """The vector of each of these graphs that the model's head maps to outputs."""
        dataset, indices = self.read(graphs, indices, device)
        return compute_outputs(self.model.eval().embed, dataset, indices).cpu()

    def read(self, graphs: Graphs, indices: Some, device: Device) -> tuple[PackedDataset, Int[Tensor, "some"]]:
        """The graphs as the model reads them, both on ``device``, and the indices."""
        dataset = self.align(self.to_dataset(graphs)).to(device)
        if next(self.model.parameters()).device != torch.device(device):  # moving a model that is there takes time
            self.to(device)
        return dataset, torch.arange(len(dataset)) if indices is None else indices

    def to_dataset(self, graphs: Graphs) -> PackedDataset:
        """The graphs with the columns that the model reads; a data set stays as it is."""
        model = {"features": self.model.features, "vocabularies": self.vocabularies}
        return read_graphs(graphs, columns=self.columns, **model)

    def predict(
        self, graphs: Graphs, indices: Some = None, device: Device = "cpu", *, level: float | None = None
    ) -> dict[str, list]:
        """Predictions as columns of a table, one row a graph, for whatever ``from_graphs`` takes, and for one graph.

        With a ``level``, of a calibrated model: also sets or intervals that hold the target in that share of cases. The
        column ``distance`` is above 1 for graphs unlike those of the training (``Domain``).
        """
        output, distances = self.outputs_with_distances(graphs, indices, device)
        return self.decode(output, level) | distance_column(distances)

    def decode(self, output: Outputs, level: float | None = None) -> dict[str, list]:
        """Outputs as the columns that ``predict`` gives."""
        columns = self.task.decode(self.apply_temperature(output))
        if level is None:
            return columns
        if self.calibration is None:
            raise InputError("the model is not calibrated, which a level needs; first run: mnagt calibrate FOLDER")
        return columns | self.calibration.prediction_sets(self.task, output, level)

    def suggest(self, output: Outputs) -> list[list[Suggestion]]:
        """For a model of code: the most probable names of each function, each with its probability."""
        return self.task.suggest(self.apply_temperature(output))

    def apply_temperature(self, output: Outputs) -> Outputs:
        """Outputs divided by the temperature of their calibration, if there is one."""
        if self.calibration is None:
            return output
        return self.task.apply_temperature(output, self.calibration.temperature)

    @property
    def code_vocabularies(self) -> tuple[Sequence[str], Sequence[str]] | None:
        """The types and attributes of syntax-tree nodes that it knows, if it is a model of code."""
        types, attributes = (self.vocabularies.get(f"node_labels/{column}", ()) for column in (0, 1))
        is_of_code = self.task.is_sequence and UNKNOWN in types and UNKNOWN in attributes
        return (types, attributes) if is_of_code else None

    def align(self, dataset: PackedDataset, *, unknown_as_none: bool = False) -> PackedDataset:
        """The graphs with categories numbered as in training (``align_categories``), or an error where it cannot."""
        has, reads = (tuple(columns.get(DESCRIPTORS, ())) for columns in (dataset.columns, self.columns))
        if has != reads and reads:
            raise InputError(
                f"{dataset.name}: the model reads {join_names(reads)} beside the graphs, and these have "
                f"{join_names(has)}; give a table of molecules with these columns, or one of them alone (--descriptors)"
            )
        if self.task.level == "edge" and dataset.edge_numbers is None:
            dataset = with_bond_numbers(dataset)
        return align_categories(
            dataset,
            self.model.features,
            self.vocabularies,
            columns=self.columns,
            trained_on=self.origin.get("dataset", "other graphs"),
            unknown_as_none=unknown_as_none,
        )

    def save(self, folder: Path) -> None:
        """Write the model; the weights go last, so that a folder with weights is whole."""
        content = {
            "mnagt": __version__,
            "model": {"name": self.name, "settings": dict(self.settings), **self._describe_module()},
            "features": asdict(self.model.features),
            "task": task_to_dict(self.task),
            "origin": dict(self.origin),
            "vocabularies": {column: list(names) for column, names in self.vocabularies.items()},
            "columns": {kind: list(names) for kind, names in self.columns.items()},
        }
        content |= {"plugins": plugins} if (plugins := self._find_plugins()) else {}
        write_json(folder / CONFIG, content)
        write_text(folder / CARD, render_card(self))
        if self.calibration is not None:
            write_record(folder / CALIBRATION, self.calibration.to_dict())
        weights = _join_weights(self.model, self.forest)
        note = fingerprints(folder / CONFIG, weights)
        if self.domain is not None:
            self.domain.save(folder / DOMAIN, note["weights"])
        save_tensors(folder / WEIGHTS, weights, note)

    def _find_plugins(self) -> list[str]:
        """The plugins that registered the model, its parts, its task or its data."""
        parts = {*KERNELS.values(), *MIXERS.values(), *READOUTS.values()}
        made_by: list[Any] = [type(self.task), *(type(part) for part in self.model.modules() if type(part) in parts)]
        data = DATASETS.get(self.origin.get("dataset", ""))
        made_by += [MODELS[self.name].build] if self.name in MODELS else []
        made_by += [data.build] if data is not None and data.build is not None else []
        return sorted({plugin for thing in made_by if (plugin := find_plugin(thing)) is not None})

    def _describe_module(self) -> dict[str, str]:
        """Where a module of one's own comes from; the folder does not hold it."""
        if not isinstance(self.model, ModuleModel):
            return {}
        cls = type(self.model.module)
        return {"module": f"{cls.__module__}.{cls.__qualname__}"}

    @classmethod
    def _read_folder(cls, folder: Path) -> "TrainedModel":
        """As ``load_model``."""
        return load_model(folder)


def distance_column(distances: Float[Tensor, "some"] | None) -> dict[str, list]:
    """The column of a table; none without a domain."""
    return {} if distances is None else {DISTANCE: distances.tolist()}


def load_model(folder: Path | str, *, model: nn.Module | None = None) -> TrainedModel:
    """Load the model in a folder, ready to predict.

    Nothing is unpickled. Files that changed since they were saved are refused, and config and weights are compared
    before the model is built. ``model`` is the module that the weights are for, if it was one of your own.

    >>> from mnagt import load_model
    >>> load_model("runs/mutag").name
    'mnagt'
    """
    with use_module(model):
        return _load(Path(folder))


def _load(folder: Path) -> TrainedModel:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the folder that `mnagt train` wrote")
    if not (folder / CONFIG).exists() or not (folder / WEIGHTS).exists():
        raise InputError(f"{folder}: holds no trained model; train it, or go on with `mnagt train --resume {folder}`")
    check_files(folder)
    weights, note = load_tensors(folder / WEIGHTS)
    content = read_json(folder / CONFIG)
    _check_version(content, folder / CONFIG)
    try:
        name = content["model"]["name"]
        settings = full_settings(name, content["model"]["settings"])
        features = from_dict(Features, content["features"], where="features")
        task = task_from_dict(content["task"])
        definition = name, settings, features, task
        renamed = rename_weights(reorder_members(weights))
        renamed = add_tree_roots(renamed, settings.get("forest_trees", 0) * task.num_outputs)
        with torch.device("meta"), SkipInit(), parameters_up_to(SPARE_TENSORS + 2 * len(weights)):
            expected = _join_weights(*_build(*definition, renamed))
    except KeyError as error:
        raise InputError(f"{folder / CONFIG}: no {error} in it; it is damaged or not a model's") from None
    except (TypeError, AttributeError):
        raise InputError(f"{folder / CONFIG}: it is damaged or not a model's; restore it or train again") from None
    except InputError as error:
        module, reason = content["model"].get("module"), str(error)
        if isinstance(module, str) and content["model"]["name"] not in MODELS:
            reason = f"it is for the module {quote(module)}, which no folder holds: load_model(folder, model=...)"
        missing = _missing_plugins(content)
        hint = f"; {describe_missing(missing)}" if missing else ""
        raise InputError(f"{folder / CONFIG}: {reason}{hint}") from None
    check_weights(expected, renamed, folder / WEIGHTS)
    check_fingerprints(folder, weights, note)
    with SkipInit():
        model, forest = _build(*definition, renamed)
    model.load_state_dict({name: tensor for name, tensor in renamed.items() if not name.startswith(FOREST)})
    if forest is not None:
        forest.load_state_dict(select_prefix(FOREST, renamed))
    origin, vocabularies, columns = (content.get(part, {}) for part in ("origin", "vocabularies", "columns"))
    if not (isinstance(origin, dict) and _are_names(vocabularies) and _are_names(columns)):
        raise InputError(f"{folder / CONFIG}: it is damaged or not a model's; restore it or train again")
    path, calibration = folder / CALIBRATION, None
    if path.exists():
        calibration = Calibration.from_dict(read_json(path), task, str(path))
    domain = Domain.load(folder / DOMAIN, note["weights"]) if (folder / DOMAIN).exists() else None
    return TrainedModel(model.eval(), task, name, settings, origin, vocabularies, calibration, columns, forest, domain)


def _check_version(content: Any, path: Path) -> None:
    """Refuse a model that a newer version saved, whose settings may mean something else there."""
    saved = content.get("mnagt") if isinstance(content, dict) else None
    numbers = re.match(r"(\d{1,6})\.(\d{1,6})(\D|$)", saved) if isinstance(saved, str) else None
    if numbers and (int(numbers[1]), int(numbers[2])) > tuple(map(int, __version__.split(".")[:2])):
        raise InputError(f"{path}: saved by mnagt {quote(saved)[1:-1]}, and this is {__version__}; upgrade mnagt")


def _missing_plugins(content: Any) -> list[str]:
    """The plugins that a model names and that are not imported."""
    plugins = content.get("plugins", []) if isinstance(content, dict) else []
    names = plugins if isinstance(plugins, list) else []
    return [name for name in names if isinstance(name, str) and name not in sys.modules]


def _build(
    name: str, settings: Mapping[str, Any], features: Features, task: Task, weights: Mapping[str, Tensor]
) -> tuple[GraphModel, RandomForest | None]:
    """The model and its forest, with as many rows in their tables as ``weights`` has."""
    model = build_model(name, settings, features, task.num_outputs, task.level)
    forest = RandomForest.from_settings(settings, task.num_outputs)
    resize_tables(model, weights)
    if forest is not None:
        resize_tables(forest, select_prefix(FOREST, weights))
    return model, forest


def _join_weights(model: GraphModel, forest: RandomForest | None) -> dict[str, Tensor]:
    return model.state_dict() | ({} if forest is None else add_prefix(FOREST, forest.state_dict()))


def _are_names(content: Any) -> bool:
    """Whether ``content`` maps names to lists of texts."""
    return isinstance(content, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in content.values()
    )
