"""The quickstart: the default model on MUTAG, which comes with the package, from cross-validation to a report."""

import os
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import category_meanings, load_dataset
from mnagt.devices import device_name
from mnagt.experiments.config import QuickstartConfig
from mnagt.experiments.executors import run_parallel
from mnagt.experiments.statistics import Paired
from mnagt.files import write_text
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.reports.charts import Series, confusion_matrix, dot_plot, line_chart, mean_series, stacked_bars
from mnagt.reports.graph_drawing import DrawnGraph, draw_pies, list_bonds
from mnagt.reports.page import html, render_page
from mnagt.reports.picture import Picture, kernel_keys
from mnagt.reports.theme import series_style
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.runs.folder import RUN
from mnagt.runs.split import make_split
from mnagt.training.progress import clock
from mnagt.training.run import train

DATASET = "MUTAG"
COMPARED = ("mnagt", "gin", "wl-linear")
"""Models that are cross-validated, ours first."""
MAJORITY = 125 / 188
PUBLISHED = (
    ("GIN-0", 89.4, 5.6),
    ("WL subtree kernel", 90.4, 5.7),
    ("DGCNN (SortPool)", 85.8, None),
    ("GCN (mean, 1 layer)", 85.6, 5.8),
    ("GraphSAGE (max, 1 layer)", 85.1, 7.6),
)
"""Xu et al. 2019, Table 1: name, accuracy, deviation. Their folds have no validation part: the epoch was chosen on the
test folds' mean curve, which flatters."""


@dataclass(frozen=True)
class Fold:
    """Results on one part of the graphs, of a model trained on the others."""

    accuracy: float
    """Share of its graphs whose class was predicted, by the weights that validation chose."""
    history: list[dict[str, float]]
    """One record an epoch: loss, valid_accuracy, ..."""
    predicted: list[int]
    """Class of each graph of the fold."""
    actual: list[int]


@dataclass(frozen=True)
class CrossValidation:
    """Results of a model on all folds."""

    model: str
    parameters: int
    """Of the first fold; those of `wl-linear` depend on the graphs."""
    folds: tuple[Fold, ...]

    @property
    def mean(self) -> float:
        return mean(fold.accuracy for fold in self.folds)

    @property
    def deviation(self) -> float:
        return stdev(fold.accuracy for fold in self.folds)

    def __str__(self) -> str:
        return format_percent(100 * self.mean, 100 * self.deviation)


def format_percent(score: float, deviation: float | None) -> str:
    return f"{score:.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")


@dataclass(frozen=True)
class Molecule:
    """A molecule that the model did not see in training, its prediction, and the kernel weights of its atoms."""

    number: int
    """Its index in the data set."""
    graph: DrawnGraph
    actual: str
    predicted: str
    probability: float
    """Of the predicted class."""
    weights: list[list[list[float]]]
    """For each layer and atom, the weight of each kernel; they add up to 1."""


@dataclass(frozen=True)
class Evidence:
    """All that the report shows."""

    dataset: str
    graphs: int
    class_names: tuple[str, ...]
    models: tuple[CrossValidation, ...]
    """Ours first."""
    molecules: list[Molecule]
    seconds: float
    """The whole of it, from the wall clock."""
    device: str


def quickstart(
    config: QuickstartConfig,
    out: Path,
    say: Callable[[str], None] = lambda line: None,
    show_progress: Callable[[str], None] = lambda words: None,
) -> Evidence:
    """Cross-validate on MUTAG, save a model, predict molecules that it has not seen, and write a report.

    Args:
        config: Epochs, folds, processes and seed.
        out: The folder of model and report. The model is that of the first fold.
        say: Called with each line of the result.
        show_progress: Called with what is being done; each call replaces the words of the one before.

    >>> from mnagt import quickstart
    >>> quickstart(QuickstartConfig(epochs=1, folds=3), Path("runs/quickstart"))  # doctest: +SKIP
    """
    start = time.monotonic()
    dataset = load_dataset(DATASET)
    jobs = min(config.folds, config.jobs or os.cpu_count() or 1)
    run = RunConfig(
        DATASET,
        train=TrainConfig(epochs=config.epochs, batch_size=32, seed=config.seed),
        split=SplitConfig("stratified", seed=config.seed, folds=config.folds),
        device="cpu",
    )
    folder = out / "model"
    if (folder / RUN).exists():  # of the quickstart before
        shutil.rmtree(folder)
    say(f"{DATASET}: {len(dataset)} molecules that come with the package, mutagenic or not")
    say(f"Test accuracy in percent, {config.folds}-fold cross-validation, {config.epochs} epochs:")
    say(f"  {'majority class':17} {100 * MAJORITY:.1f}")
    results = {}
    for name in reversed(COMPARED):  # the fastest first
        saved = folder if name == COMPARED[0] else None
        results[name] = cross_validate(replace(run, model=name), jobs, show_progress, saved)
        say(f"  {name:17} {results[name]!s:12} {results[name].parameters:9,} parameters")
    for name, score, deviation in PUBLISHED[:2]:
        say(f"  {name:17} {format_percent(score, deviation):12} published; epoch chosen on the test folds")
    trained, test = load_model(folder), make_split(run.split, dataset).test
    molecules = predict_molecules(trained, dataset, test[:: max(1, len(test) // 6)][:6])
    names, seconds = category_meanings(dataset, "classes"), time.monotonic() - start
    models = tuple(results[name] for name in COMPARED)
    device = device_name(torch.device("cpu"))
    evidence = Evidence(DATASET, len(dataset), names, models, molecules, seconds, device)
    write_text(out / "report.html", build_page(evidence))
    _report_summary(evidence, out, say)
    return evidence


def cross_validate(
    config: RunConfig, jobs: int, show_progress: Callable[[str], None], saved: Path | None = None
) -> CrossValidation:
    """Train and test ``config`` on each of its folds, ``jobs`` at a time in processes of one thread each.

    The run of the first fold is ``saved`` in this folder.
    """
    configs = [replace(config, split=replace(config.split, fold=i)) for i in range(config.split.folds)]
    items = [(each, saved if i == 0 else None) for i, each in enumerate(configs)]
    folds, parameters = {}, {}
    show_progress(f"{config.model}: fold 1 of {len(configs)}")
    with run_parallel(_run_fold, items, jobs=jobs) as outcomes:
        for (each, _), outcome in outcomes:
            folds[each.split.fold], parameters[each.split.fold] = outcome()
            words = f"{config.model}: {len(folds)} of {len(configs)} folds"
            show_progress(words if len(folds) < len(configs) else "")
    return CrossValidation(config.model, parameters[0], tuple(folds[number] for number in sorted(folds)))


def _run_fold(item: tuple[RunConfig, Path | None]) -> tuple[Fold, int]:
    """The results on a fold, and the number of parameters."""
    config, saved = item
    dataset = load_dataset(config.dataset)
    run = train(config, saved, dataset=dataset)
    predicted = run.trained.outputs(dataset, run.split.test).argmax(dim=1).tolist()
    actual = dataset.targets[run.split.test].tolist()
    return Fold(run.result.test["accuracy"], run.history, predicted, actual), run.result.parameters


def predict_molecules(trained: TrainedModel, dataset: PackedDataset, graphs: torch.Tensor) -> list[Molecule]:
    """Predictions for these graphs, with the weights that their atoms gave to the kernels."""
    probability = trained.outputs(dataset, graphs).softmax(dim=1)
    atoms, bonds, classes = (category_meanings(dataset, c) for c in ("node_labels/0", "edge_labels/0", "classes"))
    molecules = []
    for row, number in enumerate(graphs.tolist()):
        graph = dataset.batch(torch.tensor([number]))
        with torch.inference_mode():
            weights = [layer.tolist() for layer in trained.model.kernel_weights(graph)]
        assert graph.node_labels is not None
        drawn = DrawnGraph([atoms[label] for label in graph.node_labels[:, 0].tolist()], list_bonds(graph, bonds))
        actual, predicted = classes[int(dataset.targets[number])], classes[int(probability[row].argmax())]
        molecules.append(Molecule(number, drawn, actual, predicted, probability[row].max().item(), weights))
    return molecules


def _report_summary(evidence: Evidence, out: Path, say: Callable[[str], None]) -> None:
    say("\nMolecules that the saved model has not seen; the report draws them:")
    for m in evidence.molecules[:3]:
        is_right = "right" if m.predicted == m.actual else "wrong"
        words = f"{m.predicted}, probability {m.probability:.2f}"
        say(f"  no. {m.number:3}, {len(m.graph.nodes):2} atoms: {words:33} {is_right}")
    say(f"\nmodel   {out / 'model'}\nreport  {out / 'report.html'}\ntook    {clock(evidence.seconds)}")
    explain = f"mnagt explain {out / 'model'} {DATASET} --graphs {evidence.molecules[0].number} --out why.html"
    table = "examples/amines.csv --target amine" if Path("examples/amines.csv").is_file() else "MY.csv --target COLUMN"
    commands = [*_list_activation(), explain, f"mnagt train {table}"]
    say("next    " + "\n        ".join(commands))


def _list_activation() -> list[str]:
    """The command that puts mnagt on the path, where it is not."""
    script = Path(sys.prefix, "bin", "activate")
    if shutil.which("mnagt") or not script.is_file():
        return []
    is_below = script.is_relative_to(Path.cwd())
    return [f". {shlex.quote(str(script.relative_to(Path.cwd()) if is_below else script))}"]


# --- the report ---


def build_page(evidence: Evidence) -> str:
    """The page: scores, comparison, learning curves, folds, confusion matrices and molecules."""
    models, (first, *others) = evidence.models, evidence.models
    labels = Counter(label for fold in first.folds for label in fold.actual)
    (majority, count), *_ = labels.most_common(1)
    tiles = [(f"{m.model}, accuracy", f"{100 * m.mean:.1f}", f" ± {100 * m.deviation:.1f} %") for m in models]
    tiles.append((f"majority class ({evidence.class_names[majority]})", f"{100 * count / labels.total():.1f}", " %"))
    low, rows = _build_rows(models)
    return render_page(
        "experiments/quickstart.html",
        evidence=evidence,
        tiles=tiles,
        comparisons=[compare(first, other) for other in others],
        low=low,
        rows=rows,
        losses=_draw_learning(models, "loss", "Training loss", 1, inf),
        accuracies=_draw_learning(models, "valid_accuracy", "Validation accuracy", 100, 100),
        fold_size=round(mean(len(fold.actual) for fold in first.folds)),
        folds=_draw_folds(models),
        confusions=[_draw_confusions(model, i, evidence.class_names) for i, model in enumerate(models)],
        right=sum(molecule.predicted == molecule.actual for molecule in evidence.molecules),
        duration=clock(evidence.seconds),
        **_draw_molecules(evidence.molecules),
    )


def _build_rows(models: tuple[CrossValidation, ...]) -> tuple[float, list[list[str]]]:
    """The low end of the axis on which accuracies are drawn; rows of our models and of published ones."""
    scores: list[tuple[str, float, float | None, str, str]] = [
        (m.model, 100 * m.mean, 100 * m.deviation, f"{m.parameters:,}", "validation fold") for m in models
    ]
    scores += [(f"{name}, published", score, deviation, "–", "see note*") for name, score, deviation in PUBLISHED]
    low = max(0, 10 * int(min(score - (deviation or 0) for _, score, deviation, *_ in scores) / 10))
    rows = []
    for i, (name, score, deviation, parameters, chosen_on) in enumerate(scores):
        text = f"{format_percent(score, deviation)} %"
        sketch = html.interval(f"{name}: {text}", score, low, 100, deviation or 0, is_ours=i < len(models))
        rows.append([name, text, sketch, parameters, chosen_on])
    return low, rows


def compare(ours: CrossValidation, other: CrossValidation) -> str:
    """Which of two is higher, and whether Wilcoxon's signed-rank test over the folds shows it."""
    pair = Paired(tuple(a.accuracy - b.accuracy for a, b in zip(ours.folds, other.folds, strict=True)))
    if abs(pair.mean) < 5e-4:
        return f"{ours.model} and {other.model} reach the same mean accuracy."
    high, low = (ours, other) if pair.mean > 0 else (other, ours)
    text = (
        f"{high.model} is higher than {low.model}, by {100 * abs(pair.mean):.1f} points (standard error over the folds "
        f"{100 * pair.error:.1f}; Wilcoxon's signed-rank test p = {pair.p:.2g}). "
    )
    if pair.p >= 0.05:
        return text + f"With {len(pair.gaps)} folds that does not show a difference."
    return text + "That shows a difference, though folds share molecules in training."


def _draw_learning(models: tuple[CrossValidation, ...], key: str, caption: str, unit: float, highest: float) -> Picture:
    series = []
    for i, model in enumerate(models):
        if max(len(fold.history) for fold in model.folds) == 1:  # one record is no curve
            continue
        histories = [[record[key] * unit for record in fold.history if key in record] for fold in model.folds]
        epochs = list(zip(*histories, strict=False))
        series.append(mean_series(model.model, i, range(1, len(epochs) + 1), epochs, within=(0, highest)))
    y_label = "%" if unit == 100 else ""
    return line_chart(f"{caption}, mean over the folds", series, x_label="epoch", y_label=y_label)


def _draw_folds(models: tuple[CrossValidation, ...]) -> Picture:
    columns = [str(i + 1) for i in range(len(models[0].folds))]
    series = [
        Series(m.model, series_style(i), range(len(columns)), [100 * fold.accuracy for fold in m.folds])
        for i, m in enumerate(models)
    ]
    return dot_plot("Test accuracy of each fold", columns, series, x_label="fold", y_label="%")


def _draw_confusions(model: CrossValidation, number: int, names: tuple[str, ...]) -> tuple[str, Picture]:
    """A caption, and the counts of all folds together."""
    pairs = Counter(pair for fold in model.folds for pair in zip(fold.actual, fold.predicted, strict=True))
    counts = [[pairs[actual, predicted] for predicted in range(len(names))] for actual in range(len(names))]
    right = sum(counts[c][c] for c in range(len(names)))
    caption = f"{model.model}: {right} of {pairs.total()} right"
    return caption, confusion_matrix(f"Confusion matrix of {caption}", counts, names, series_style(number).colour)


def _draw_molecules(molecules: list[Molecule]) -> dict[str, Any]:
    """Molecules with their pictures, and the mean weights of each layer where there are any."""
    layers = max((len(molecule.weights) for molecule in molecules), default=0)
    keys = kernel_keys(max((len(atom) for m in molecules for layer in m.weights for atom in layer), default=0))
    drawn = []
    for m in molecules:
        caption = f"Molecule {m.number}: {len(m.graph.nodes)} atoms, {len(m.graph.bonds)} bonds"
        drawn.append((m, draw_pies(caption, m.graph, m.weights, keys)))
    rows = []
    for i in range(layers):
        atoms = [atom for molecule in molecules for atom in molecule.weights[i]]
        rows.append((f"layer {i + 1}", [mean(shares) for shares in zip(*atoms, strict=True)]))
    weights = stacked_bars("Mean weight of each kernel over the atoms drawn above", rows, keys)
    return {"molecules": drawn, "layers": layers, "kernels": keys, "mean_weights": weights}
