"""Coverage of prediction sets and calibration of probabilities: a small model on NCI1.

``MNAGT_DATA`` names the folder that holds NCI1.zip. For each of several splits, models with different seeds are
trained, on the CPU. Each is calibrated by its validation part, and so are the sets of their ensemble; figures are over
the test parts of all splits together, for each class and for all graphs. Coverage has to reach its level but for
chance: two standard errors, that of calibration counted.

With ``--trained FOLDER``, a run with binary labels is measured instead, such as one on ogbg-molhiv: calibrated by its
validation part, on its test part. A scaffold split makes these unlike, and then nothing is promised; so also on halves
of both together, drawn at random, which are alike.

With ``--numbers``, intervals of numbers are measured: a small ``mnagt`` on ogbg-molesol and ogbg-molfreesolv, random
splits, each way to an uncertainty. Coverage and mean width of the intervals that the model itself gives, and of
conformal ones, which the validation part calibrates.
"""

import argparse
from dataclasses import replace
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import mean

import common
import torch

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.inference.calibration import fit_calibration
from mnagt.inference.ensemble import DropoutEnsemble, Ensemble
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.runs.folder import read_run_config, read_split
from mnagt.tasks import UNCERTAINTIES, IntervalCoverage, MultiLabel, Regression, SingleLabel
from mnagt.training.run import Run, train

LEVELS = (0.8, 0.9, 0.95)
LABELS = ("yes", "no")
HALVES = 20
NUMBERS = ("ogbg_molesol", "ogbg_molfreesolv")
NUMBERS_SETTINGS = {"dim": 32, "depth": 2, "dropout": 0.2}
SAMPLES = 30
"""Of dropout."""


def main() -> None:
    parser: argparse.ArgumentParser = common.parser(__doc__)
    parser.add_argument("--model", default="gin")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--splits", type=int, default=4)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--trained", type=Path, help="folder of a run with binary labels")
    parser.add_argument("--numbers", action="store_true", help="intervals of numbers, over so many --splits")
    options = parser.parse_args()
    if options.numbers:
        return measure_numbers(options.epochs, options.splits, options.out)
    if options.trained:
        return measure_labels(options.trained, options.out)
    dataset = load_dataset(common.data_file("NCI1.zip"))
    task = dataset.task
    assert isinstance(task, SingleLabel)
    found: dict[str, list[dict[str, torch.Tensor]]] = {"one model": [], f"{options.members} models": []}
    for seed in range(options.splits):
        members, split = [], None
        for member in range(options.members):
            settings = TrainConfig(epochs=options.epochs, seed=options.members * seed + member)
            config = RunConfig("NCI1", options.model, train=settings, split=SplitConfig(seed=seed), device="cpu")
            run = train(config, dataset=dataset)
            members.append(run.trained)
            split = run.split
            print(f"split {seed}, member {member}: test accuracy {run.result.test['accuracy']:.3f}", flush=True)
        assert split is not None
        valid, test = dataset.targets[split.valid], dataset.targets[split.test]
        calibrated = [
            replace(member, calibration=fit_calibration(task, member.outputs(dataset, split.valid), valid))
            for member in members
        ]
        pairs: list[tuple[TrainedModel, TrainedModel]] = [
            (members[0], Ensemble.of(calibrated[:1])),
            (Ensemble.of(members), Ensemble.of(calibrated)),
        ]
        for rows, (before, after) in zip(found.values(), pairs, strict=True):
            output = after.outputs(dataset, split.test)
            calibration = fit_calibration(task, after.outputs(dataset, split.valid), valid, temperature=1.0)
            sets = {f"set {level}": task.is_in_set(output, calibration.threshold(level)) for level in LEVELS}
            rows.append({"before": before.outputs(dataset, split.test), "after": output, "target": test, **sets})
    held_out = len(found["one model"]) * int(len(dataset) * 0.1)
    figures, missed = {}, []
    for name, rows in found.items():
        whole = {key: torch.cat([row[key] for row in rows]) for key in rows[0]}
        figures[name] = figure = compute_figures(task, whole)
        print(f"\n{name}: accuracy {figure['accuracy']:.4f}, {len(whole['target'])} test graphs")
        for when in ("before", "after"):
            print(f"  {when:6} Brier {figure[when]['brier']:.4f}  calibration error {figure[when]['ece']:.4f}")
        for level in LEVELS:
            row = figure[f"level {level}"]
            covered = f"coverage {row['coverage']:.4f}, by class {row['by_class']}, sets of {row['size']:.3f}"
            print(f"  level {level:4}: {covered}")
            for covered, share in zip(row["by_class"], row["class_shares"], strict=True):
                error = sqrt(2 * level * (1 - level) / (share * held_out))
                if covered < level - 2 * error:
                    missed.append(f"{name}: coverage {covered} of a class at level {level}")
    common.write(options.out, {"data": "NCI1", "model": options.model, "epochs": options.epochs, "figures": figures})
    common.exit_if_missed(missed)


def measure_labels(folder: Path, out: Path | None) -> None:
    trained = load_model(folder)
    task = trained.task
    assert isinstance(task, MultiLabel)
    dataset = load_dataset(read_run_config(folder).dataset)
    split = read_split(folder, dataset)
    held_out = torch.cat([split.valid, split.test])
    output, target = trained.outputs(dataset, held_out), dataset.targets[held_out]
    chance = torch.Generator().manual_seed(0)
    halves = [torch.randperm(len(held_out), generator=chance).tensor_split(2) for _ in range(HALVES)]
    ways = {
        "its own split": [torch.arange(len(held_out)).split([len(split.valid), len(split.test)])],
        f"{HALVES} random halves": halves,
    }
    figures, missed = {}, []
    for way, pairs in ways.items():
        figures[way] = {}
        for level in LEVELS:
            rows = [measure_coverage(task, output, target, valid, test, level) for valid, test in pairs]
            figures[way][f"level {level}"] = row = {key: mean(each[key] for each in rows) for key in rows[0]}
            print(f"{way}, level {level}: " + ", ".join(f"{key} {value:.4f}" for key, value in row.items()))
            for label in ("yes", "no"):
                count = int((target == (label == "yes")).sum()) / 2
                error = sqrt(2 * level * (1 - level) / count)  # of one half; those drawn are not independent
                if way != "its own split" and row[label] < level - 2 * error:
                    missed.append(f"coverage {row[label]:.3f} of {label} at level {level}")
    about = {"data": dataset.name, "model": trained.name, "result": trained.origin.get("result")}
    common.write(out, about | {"valid": len(split.valid), "test": len(split.test), "figures": figures})
    common.exit_if_missed(missed)


def measure_numbers(epochs: int, splits: int, out: Path | None) -> None:
    rows, missed = [], []
    for name, kind, seed in product(NUMBERS, ("none", *UNCERTAINTIES), range(splits)):
        dataset = load_dataset(common.data_file(name))
        settings = TrainConfig(epochs=epochs, batch_size=32, seed=seed, uncertainty=kind)  # type: ignore[arg-type]
        split = SplitConfig("random", seed=seed)
        config = RunConfig(name, "mnagt", NUMBERS_SETTINGS, train=settings, split=split, device="cpu")
        run = train(config, dataset=dataset)
        row = {"data": name, "uncertainty": kind, "seed": seed, "rmse": run.result.test["rmse"]}
        row |= {
            way: {str(level): found for level, found in each.items()}
            for way, each in measure_ways(run, dataset).items()
        }
        rows.append(row)
        print(row, flush=True)
    for name, kind in product(NUMBERS, ("none", *UNCERTAINTIES)):
        found = [row for row in rows if (row["data"], row["uncertainty"]) == (name, kind)]
        graphs = 0.1 * len(load_dataset(common.data_file(name))) * splits
        for level in LEVELS:
            covered = mean(row["conformal"][str(level)]["share"] for row in found)
            if covered < level - 2 * sqrt(2 * level * (1 - level) / graphs):
                missed.append(f"{name}, {kind}: conformal intervals hold {covered:.3f} at level {level}")
    about = {"model": "mnagt", "settings": NUMBERS_SETTINGS, "epochs": epochs, "splits": splits}
    common.write(out, about | {"figures": rows})
    common.exit_if_missed(missed)


def measure_ways(run: Run, dataset: PackedDataset) -> dict[str, dict[float, dict[str, float]]]:
    """Coverage and mean width of test intervals by level: conformal, of the model itself, and of samples of dropout."""
    trained, task = run.trained, run.trained.task
    assert isinstance(task, Regression)
    target = dataset.targets[run.split.test]
    calibration = fit_calibration(task, trained.outputs(dataset, run.split.valid), dataset.targets[run.split.valid])
    output = trained.outputs(dataset, run.split.test)
    ways: dict[str, dict[float, dict[str, float]]] = {"conformal": {}, "model": {}}
    for level in LEVELS:
        (found,) = task.interval_coverage(output, target, calibration.threshold(level)).values()
        ways["conformal"][level] = found._asdict()
        if (thresholds := task.model_thresholds(level)) is not None:
            (found,) = task.interval_coverage(output, target, thresholds).values()
            ways["model"][level] = found._asdict()
    if not ways["model"]:
        table = DropoutEnsemble.sample(trained, SAMPLES).predict(dataset, run.split.test)
        value, spread = (torch.tensor(table[prefix + task.names[0]]) for prefix in ("", "spread "))
        for level in LEVELS:
            half = spread * torch.special.ndtri(torch.tensor((1 + level) / 2))
            is_within = (value - target[:, 0]).abs() <= half
            found = IntervalCoverage(is_within.float().mean().item(), 2 * half.mean().item(), len(target))
            ways["model"][level] = found._asdict()
    return ways


def measure_coverage(
    task: MultiLabel, output: torch.Tensor, target: torch.Tensor, valid: torch.Tensor, test: torch.Tensor, level: float
) -> dict[str, float]:
    """How often the target is in the set, for each label, and how many sets hold both labels."""
    calibration = fit_calibration(task, output[valid], target[valid])
    columns = list(calibration.prediction_sets(task, output[test], level).values())
    has_yes, has_no = (
        torch.tensor([[label in cell.split("|") for cell in column] for column in columns]).T for label in LABELS
    )
    labels = target[test]
    return {
        "yes": has_yes[labels == 1].double().mean().item(),
        "no": has_no[labels == 0].double().mean().item(),
        "sets of both": (has_yes & has_no).double().mean().item(),
    }


def compute_figures(task: SingleLabel, whole: dict[str, torch.Tensor]) -> dict:
    target = whole["target"]
    figures: dict = {"accuracy": task.scores(whole["after"], target)["accuracy"]}
    for when in ("before", "after"):
        scores = task.scores(whole[when], target)
        figures[when] = {name: scores[name] for name in ("brier", "ece")}
        figures[when]["bins"] = bin_confidences(whole[when], target)
    for level in LEVELS:
        possible = whole[f"set {level}"]
        is_covered = possible[torch.arange(len(target)), target]
        classes = range(task.num_outputs)
        figures[f"level {level}"] = {
            "coverage": is_covered.double().mean().item(),
            "by_class": [round(is_covered[target == c].double().mean().item(), 4) for c in classes],
            "class_shares": [(target == c).double().mean().item() for c in classes],
            "size": possible.sum(dim=1).double().mean().item(),
        }
    return figures


def bin_confidences(output: torch.Tensor, target: torch.Tensor) -> list[dict[str, float]]:
    """Graphs by the probability of their predicted class: its mean, the accuracy and the number in each bin of 0.05."""
    confidence, predicted = output.softmax(dim=1).max(dim=1)
    index, is_right = (confidence * 20).long().clamp(max=19), (predicted == target).double()
    return [
        {
            "confidence": confidence[index == i].double().mean().item(),
            "accuracy": is_right[index == i].mean().item(),
            "graphs": int((index == i).sum()),
        }
        for i in index.unique().tolist()
    ]


if __name__ == "__main__":
    main()
