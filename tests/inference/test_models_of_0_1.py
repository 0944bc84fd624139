"""Models and runs that 0.1 saved are read, predict and resume as they did."""

import csv
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from mnagt.inference.predict import calibrate, evaluate, predict
from mnagt.training.progress import Reporter
from mnagt.training.run import resume
from mnagt.training.trainer import Interrupted

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v0.1"


def unpack(name: str, folder: Path) -> Path:
    with zipfile.ZipFile(FIXTURES / f"{name}.zip") as archive:
        archive.extractall(folder)
    return folder / name


def assert_same_table(found: dict[str, list], path: Path) -> None:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert list(found) == list(rows[0])
    for column, values in found.items():
        for value, row in zip(values, rows, strict=True):
            if isinstance(value, float):
                assert value == pytest.approx(float(row[column]), abs=1e-5)
            else:
                assert ("" if value is None else str(value)) == row[column]


@pytest.mark.parametrize(
    ("name", "graphs", "level"),
    [("classes", "MUTAG", 0.9), ("numbers", "molecules", 0.9), ("tasks", "molecules", None)],
)
def test_a_model_of_0_1_predicts_as_it_did(name: str, graphs: str, level: float | None, tmp_path: Path):
    dataset = str(FIXTURES / f"{graphs}.csv") if graphs == "molecules" else graphs
    found = predict(unpack(name, tmp_path), dataset, level=level, device="cpu")
    assert_same_table(found, FIXTURES / f"{name}.csv")


def test_a_run_of_0_1_is_evaluated_as_it_was_and_calibrated_anew(tmp_path: Path):
    folder = unpack("classes", tmp_path)
    result = json.loads((folder / "result.json").read_text())
    scores = evaluate(folder, device="cpu")
    assert scores[result["metric"]] == pytest.approx(result["test"][result["metric"]])
    before = json.loads((folder / "calibration.json").read_text())
    after = calibrate(folder, device="cpu").calibration
    assert after.temperature < before["temperature"]  # 0.1 kept label smoothing in the loss
    assert after.graphs == before["graphs"]


class StopAfter(Reporter):
    """Ends the training once the epoch is done."""

    def __init__(self, epoch: int) -> None:
        self.last, self.record = epoch, {}

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        if record["epoch"] == self.last:
            self.record = dict(record)
            raise Interrupted


def test_a_run_that_0_1_began_goes_on_as_it_would_have(tmp_path: Path):
    folder, reporter = unpack("interrupted", tmp_path), StopAfter(22)
    with pytest.raises(Interrupted):
        resume(folder, reporter=reporter)
    assert reporter.record["loss"] == pytest.approx(0.4495049285888672, rel=1e-4)  # 0.1 went on to this
