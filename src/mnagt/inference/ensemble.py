"""Several models whose probabilities are averaged, and how far they agree."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mnagt.devices import pick_device
from mnagt.errors import InputError
from mnagt.files import read_json
from mnagt.graphs.batch import GraphBatch
from mnagt.inference.calibration import Calibration, fit_calibration
from mnagt.inference.model_folder import (
    CALIBRATION,
    Device,
    Graphs,
    Outputs,
    Some,
    TrainedModel,
    distance_column,
    load_model,
)
from mnagt.inference.outputs import compute_outputs
from mnagt.runs.folder import list_runs, load_run_split, read_split
from mnagt.tasks import Task

_SEED = 0
"""Of samples of dropout: predictions are the same in each call."""


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble(TrainedModel):
    """Several models of the same task used as one, such as runs with different seeds.

    Probabilities, or values in regression, are averaged, and so are distances, if all members give them. Columns, task
    and origin are those of the first member.

    >>> from mnagt import Ensemble, load_dataset, load_model
    >>> ensemble = Ensemble.of([load_model("runs/a"), load_model("runs/b")])
    >>> len(ensemble.predict(load_dataset("MUTAG"))["prediction"])
    188
    """

    members: tuple[TrainedModel, ...] = ()
    """The models."""

    @classmethod
    def of(cls, members: Sequence[TrainedModel]) -> Self:
        """The ensemble of these models; an error where their tasks differ."""
        first = members[0]
        for number, other in enumerate(members[1:], start=2):
            if not first.task.can_join(other.task):
                raise InputError(
                    f"the members of an ensemble have the same task, and model {number} has another than the first: "
                    f"{other.task.describe()}, not {first.task.describe()}; choose models of the same data"
                )
        inherited = {field.name: getattr(first, field.name) for field in fields(TrainedModel)}
        domain = first.domain if all(member.domain is not None for member in members) else None
        return replace(cls(**inherited, members=tuple(members)), calibration=None, domain=domain)

    @classmethod
    def load(cls, folders: Sequence[Path | str]) -> "Ensemble":
        """The models in these folders."""
        return cls.of([load_model(folder) for folder in folders])

    def save(self, folder: Path) -> None:
        raise InputError("an ensemble has no folder of its own; save its members")

    def outputs(self, graphs: Graphs, indices: Some = None, device: Device = "cpu") -> Outputs:
        """Outputs whose probabilities are the means of the members', each calibrated if it has been."""
        outputs = [member.outputs(graphs, indices, device) for member in self.members]
        return average_outputs(self.task, convert_outputs(self.members, outputs))

    def outputs_with_distances(
        self, graphs: Graphs, indices: Some = None, device: Device = "cpu"
    ) -> tuple[Outputs, Float[Tensor, "some"] | None]:
        outputs, distances = self._member_outputs(graphs, indices, device)
        return average_outputs(self.task, outputs), distances

    def predictor(self, num_graphs: int | None = None, *, with_distances: bool = False) -> "EnsembleModel":
        """The module from a batch to outputs of the ensemble, for graphs that are read as the first member does."""
        return EnsembleModel(self.members, num_graphs, with_distances)

    def to(self, device: Device) -> Self:
        for member in self.members:
            member.to(device)
        return self

    def predict(
        self, graphs: Graphs, indices: Some = None, device: Device = "cpu", *, level: float | None = None
    ) -> dict[str, list]:
        """As of one model, and in columns called 'spread' the standard deviation of each number between the members."""
        outputs, distances = self._member_outputs(graphs, indices, device)
        columns = self.decode(average_outputs(self.task, outputs), level)
        tables = [self.task.decode(output) for output in outputs]
        for name, values in tables[0].items():
            if any(isinstance(value, list) for value in values):  # of different lengths
                rows = zip(*(table[name] for table in tables), strict=True)
                columns[f"spread {name}"] = [measure_spread(row) for row in rows]
            elif not any(isinstance(value, str) for value in values):
                columns[f"spread {name}"] = measure_spread([table[name] for table in tables])
        return columns | distance_column(distances)

    def _member_outputs(
        self, graphs: Graphs, indices: Some, device: Device
    ) -> tuple[Float[Tensor, "members some outputs"], Float[Tensor, "some"] | None]:
        """The calibrated outputs of each member, and the mean of their distances."""
        predicted = [member.outputs_with_distances(graphs, indices, device) for member in self.members]
        distances = [each for _, each in predicted if each is not None]
        mean = torch.stack(distances).mean(dim=0) if len(distances) == len(predicted) else None
        return convert_outputs(self.members, [output for output, _ in predicted]), mean


@dataclass(frozen=True, eq=False, repr=False)
class DropoutEnsemble(Ensemble):
    """The members are one model with different units dropped: Monte Carlo dropout (Gal and Ghahramani, 2016).

    Units are drawn anew for each member, and alike in each call with the same graphs.

    >>> from mnagt import load_dataset, load_model
    >>> samples = DropoutEnsemble.sample(load_model("runs/mutag"), 3)
    >>> sorted(samples.predict(load_dataset("MUTAG")))
    ['distance', 'p(-1)', 'p(1)', 'prediction', 'spread p(-1)', 'spread p(1)']
    """

    @classmethod
    def sample(cls, trained: TrainedModel, count: int) -> "Ensemble":
        """``count`` members made of ``trained``; an error where it has no dropout."""
        if isinstance(trained, Ensemble):
            raise InputError("dropout is sampled in one model, and several are given; leave out --dropout-samples")
        if count < 2:
            raise InputError(f"at least 2 samples of dropout tell how far they agree, got {count}")
        if not _find_dropout(trained.model):
            raise InputError(
                f"this {trained.name} was trained without dropout; train with it (--dropout 0.2), or an ensemble"
            )
        return cls.of([trained] * count)

    def outputs(self, graphs: Graphs, indices: Some = None, device: Device = "cpu") -> Outputs:
        return self.outputs_with_distances(graphs, indices, device)[0]

    def _member_outputs(
        self, graphs: Graphs, indices: Some, device: Device
    ) -> tuple[Float[Tensor, "members some outputs"], Float[Tensor, "some"] | None]:
        (trained, *_), count = self.members, len(self.members)
        _, distances = trained.outputs_with_distances(graphs, indices, device)
        dataset, indices = trained.read(graphs, indices, device)
        if len(indices) == 0:
            return torch.zeros(count, 0, self.task.num_outputs), distances
        predictor = trained.predictor().eval()
        with _sampled_dropout(trained.model), torch.random.fork_rng():
            torch.manual_seed(_SEED)
            outputs = [compute_outputs(predictor, dataset, indices).cpu() for _ in range(count)]
        return trained.apply_temperature(torch.stack(outputs)), distances


class EnsembleModel(nn.Module):
    """The members of an ensemble as one module from a batch of graphs to outputs."""

    def __init__(
        self, members: Sequence[TrainedModel], num_graphs: int | None = None, with_distances: bool = False
    ) -> None:
        super().__init__()
        self.trained, self.with_distances = tuple(members), with_distances
        predictors = (member.predictor(num_graphs, with_distances=with_distances) for member in members)
        self.members = nn.ModuleList(predictors)
        self.training = False

    def forward(self, graph: GraphBatch) -> Outputs:
        outputs = [member(graph) for member in self.members]
        if not self.with_distances:
            return self.combine(outputs)
        distances = torch.stack([output[:, :1] for output in outputs]).mean(dim=0)
        return torch.cat([distances, self.combine([output[:, 1:] for output in outputs])], dim=1)

    def combine(self, outputs: Sequence[Outputs]) -> Outputs:
        """The outputs of the ensemble from those of its members."""
        return average_outputs(self.trained[0].task, convert_outputs(self.trained, outputs))


def load_models(
    folders: Sequence[Path | str], *, is_calibrated: bool = False, device: str = "auto", dropout_samples: int = 0
) -> TrainedModel:
    """The model in a folder, or those in several as an ``Ensemble``; or one as a ``DropoutEnsemble`` of so many.

    A folder of several runs (``mnagt train --ensemble``) stands for all of them. ``is_calibrated``: prediction sets and
    intervals are needed. An ensemble without a calibration of its own is then calibrated with the validation part that
    its members share.
    """
    calibration = Path(folders[0]) / CALIBRATION if len(folders) == 1 else None
    folders = [member for folder in folders for member in list_runs(Path(folder))]
    if len(folders) == 1 and not dropout_samples:
        return load_model(folders[0])
    ensemble = Ensemble.load(folders) if len(folders) > 1 else None
    if dropout_samples:
        ensemble = DropoutEnsemble.sample(ensemble or load_model(folders[0]), dropout_samples)
    assert ensemble is not None
    if not dropout_samples and calibration is not None and calibration.exists():
        content = Calibration.from_dict(read_json(calibration), ensemble.task, str(calibration))
        return replace(ensemble, calibration=content)
    if not is_calibrated:
        return ensemble
    dataset, split = load_run_split(Path(folders[0]))
    for folder in folders[1:]:
        if not torch.equal(read_split(Path(folder), dataset).train.sort().values, split.train.sort().values):
            raise InputError(
                f"{folder}: trained on other graphs than {folders[0]}, so none are left to calibrate the two together; "
                "train members with another --seed and the same --split-seed"
            )
    output = ensemble.outputs(dataset, split.valid, pick_device(device))  # those of members are calibrated already
    calibration = fit_calibration(ensemble.task, output, dataset.targets[split.valid], temperature=1.0)
    return replace(ensemble, calibration=calibration)


def convert_outputs(
    members: Sequence[TrainedModel], outputs: Sequence[Outputs]
) -> Float[Tensor, "members some outputs"]:
    """The outputs of the members, calibrated, in the form of the first's."""
    task, pairs = members[0].task, zip(members, outputs, strict=True)
    return torch.stack([task.convert_output(each.apply_temperature(output), each.task) for each, output in pairs])


def measure_spread(members: Sequence[list[float]]) -> list[float]:
    """The standard deviation of each number between the members."""
    return torch.tensor(members).std(dim=0, correction=0).tolist()


def average_outputs(task: Task, outputs: Float[Tensor, "members some outputs"]) -> Outputs:
    """Outputs whose probabilities, or numbers, are the means of the members'."""
    return task.from_probability(task.to_probability(outputs.double()).mean(dim=0)).to(outputs.dtype)


def _find_dropout(model: nn.Module) -> list[nn.Module]:
    """The modules that drop something in training."""
    modules = []
    for module in model.modules():
        share = module.p if isinstance(module, nn.Dropout) else getattr(module, "dropout", 0)
        if isinstance(share, float) and share > 0:
            modules.append(module)
    return modules


@contextmanager
def _sampled_dropout(model: nn.Module) -> Iterator[None]:
    """Within the block dropout acts as in training, and all else as in evaluation."""
    modules = _find_dropout(model)
    for module in modules:
        module.training = True  # of the module itself: parts of it stay in evaluation mode
    try:
        yield
    finally:
        for module in modules:
            module.training = False
