"""Calibration of models in folders, on the validation part of their data set."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.devices import pick_device
from mnagt.errors import InputError
from mnagt.inference.calibration import Calibration, fit_calibration
from mnagt.inference.ensemble import Ensemble
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.metrics import Reliability
from mnagt.runs.folder import load_run_dataset, read_run_config, read_split


@dataclass(frozen=True)
class Calibrated:
    """A calibration, and its effect on the test part."""

    calibration: Calibration
    before: Reliability | None
    """On the test part; None for regression."""
    after: Reliability | None
    test_graphs: int


def calibrate(folder: Path | str, *, device: str = "auto") -> Calibrated:
    """Fit temperature scaling and prediction sets on the validation part, and save them in the model's folder.

    The epoch was selected on the validation part too, so calibration is slightly optimistic; the test part shows by how
    much.

    Args:
        folder: The folder of a run.
        device: cpu, cuda, ...; auto takes a GPU if there is one.

    >>> from mnagt import calibrate, load_model
    >>> calibrate("runs/a").calibration == load_model("runs/a").calibration
    True
    """
    folder, trained = Path(folder), load_model(folder)
    dataset, split = _load_run(folder)
    chosen_device = pick_device(device)
    valid, test = (trained.outputs(dataset, part, chosen_device) for part in (split.valid, split.test))
    calibration = fit_calibration(trained.task, valid, dataset.targets[split.valid])
    replace(trained, calibration=calibration).save_calibration(folder)
    target = dataset.targets[split.test]
    before, after = (trained.task.reliability(test / divisor, target) for divisor in (1, calibration.temperature))
    return Calibrated(calibration, before, after, len(split.test))


def load_models(folders: Sequence[Path | str], *, is_calibrated: bool = False, device: str = "auto") -> TrainedModel:
    """The model in a folder, or those in several as an ``Ensemble``.

    ``is_calibrated``: prediction sets and intervals are needed. An ensemble keeps no calibration; it is then fitted to
    the validation part that its members share.
    """
    if len(folders) == 1:
        return load_model(folders[0])
    ensemble = Ensemble.load(folders)
    if not is_calibrated:
        return ensemble
    dataset, split = _load_run(Path(folders[0]))
    for folder in folders[1:]:
        if not torch.equal(read_split(Path(folder), dataset).train.sort().values, split.train.sort().values):
            raise InputError(
                f"{folder}: trained on other graphs than {folders[0]}, so none are left to calibrate the two together; "
                "train members with another --seed and the same --split-seed"
            )
    output = ensemble.outputs(dataset, split.valid, pick_device(device))  # those of members are calibrated already
    calibration = fit_calibration(ensemble.task, output, dataset.targets[split.valid], temperature=1.0)
    return replace(ensemble, calibration=calibration)


def _load_run(folder: Path) -> tuple[PackedDataset, Split]:
    dataset = load_run_dataset(read_run_config(folder))
    return dataset, read_split(folder, dataset)
