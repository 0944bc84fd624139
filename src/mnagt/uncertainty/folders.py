"""Calibration of the models in folders, by the validation part of the graphs they were trained from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.errors import InputError
from mnagt.settings import from_dict
from mnagt.training.config import RunConfig
from mnagt.training.devices import pick_device
from mnagt.training.model_folder import Trained, load_model
from mnagt.training.run import RUN, dataset_of, kept, kept_split
from mnagt.uncertainty.calibration import Calibration, Reliability, calibrated, reliability
from mnagt.uncertainty.ensemble import Ensemble


@dataclass(frozen=True)
class Calibrated:
    """What a calibration did."""

    calibration: Calibration
    before: Reliability | None
    """On the test part; None for answers without probabilities."""
    after: Reliability | None
    test_graphs: int


def calibrate(folder: Path | str, *, device: str = "auto") -> Calibrated:
    """Calibrate the model in ``folder`` by its validation part, and keep that beside it: predictions then use it.

    The validation part also chose the epoch, so that it is a little kinder to the model than new graphs are;
    what that costs the test part shows.
    """
    folder, place = Path(folder), pick_device(device)
    trained = replace(load_model(folder), calibration=None)
    dataset, split = _graphs_of(folder)
    trained = replace(trained, calibration=_of_validation(trained, dataset, split, place))
    assert trained.calibration is not None
    trained.save_calibration(folder)
    output, target = trained.outputs(dataset, split.test, place), dataset.targets[split.test]
    before, after = (reliability(trained.task, out, target) for out in (output, trained.tempered(output)))
    return Calibrated(trained.calibration, before, after, len(split.test))


def load_models(folders: Sequence[Path | str], *, is_calibrated: bool = False, device: str = "auto") -> Trained:
    """The model in a folder, or those in several as one.

    ``is_calibrated``: sets and intervals will be asked for. An ensemble keeps no calibration of its own; it is then
    worked out, from the validation part that its members share.
    """
    if len(folders) == 1:
        return load_model(folders[0])
    ensemble = Ensemble.load(folders)
    if not is_calibrated:
        return ensemble
    dataset, split = _graphs_of(Path(folders[0]))
    for folder in folders[1:]:
        if not torch.equal(kept_split(Path(folder), dataset).train.sort().values, split.train.sort().values):
            raise InputError(
                f"{folder}: trained on other graphs than {folders[0]}, so none are left to calibrate the two together; "
                "train members with another --seed and the same --split-seed"
            )
    calibration = _of_validation(ensemble, dataset, split, pick_device(device), temperature=1.0)  # members have theirs
    return replace(ensemble, calibration=calibration)


def _of_validation(
    trained: Trained, dataset: PackedDataset, split: Split, device: torch.device, temperature: float | None = None
) -> Calibration:
    output, target = trained.outputs(dataset, split.valid, device), dataset.targets[split.valid]
    return calibrated(trained.task, output, target, temperature)


def _graphs_of(folder: Path) -> tuple[PackedDataset, Split]:
    """The graphs that the run in ``folder`` was about, and its split."""
    dataset = dataset_of(from_dict(RunConfig, kept(folder, "config"), where=str(folder / RUN)))
    return dataset, kept_split(folder, dataset)
