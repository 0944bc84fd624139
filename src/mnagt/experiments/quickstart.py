"""See it work: the default model on molecules that come with the package, end to end."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import category_meanings, load_dataset
from mnagt.experiments.crossval import cross_validate
from mnagt.experiments.quickstart_report import PUBLISHED, Evidence, Molecule, write_report
from mnagt.inference.model_folder import TrainedModel
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.runs.folder import RUN
from mnagt.settings import Ge, NonNegativeInt, PositiveInt, Settings
from mnagt.training.progress import clock
from mnagt.training.run import train

DATASET = "MUTAG"
MAJORITY = 125 / 188


@dataclass(frozen=True)
class QuickstartConfig(Settings):
    epochs: PositiveInt = 60
    """Epochs of each training."""
    folds: Annotated[int, Ge(3)] = 10
    """Folds of the cross-validation."""
    jobs: NonNegativeInt = 0
    """Folds trained side by side; 0 for one a core."""
    seed: NonNegativeInt = 0
    """Seed of folds and weights."""


def quickstart(config: QuickstartConfig, out: Path, say: Callable[[str], None] = lambda line: None) -> Evidence:
    """Cross-validate on MUTAG, save a model, predict molecules that it has not seen, and write a report.

    Args:
        config: Epochs, folds, processes and seed.
        out: The folder of model and report.
        say: Called with each line of progress.

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
    say(f"{DATASET}: {len(dataset)} molecules, mutagenic or not (majority class {100 * MAJORITY:.1f} %)")
    say(f"stratified {config.folds}-fold cross-validation, {config.epochs} epochs, {jobs} folds side by side\n")
    models = []
    for name in ("mnagt", "gin"):
        done = cross_validate(
            replace(run, model=name),
            jobs=jobs,
            on_fold=lambda i, fold, name=name: say(
                f"  {name:6} fold {i + 1:2}  test accuracy {100 * fold.accuracy:5.1f}"
            ),
        )
        say(f"  {name:6} {100 * done.mean:.1f} ± {100 * done.deviation:.1f}  ({done.parameters:,} parameters)\n")
        models.append(done)

    folder = out / "model"
    if (folder / RUN).exists():  # of the quickstart before
        shutil.rmtree(folder)
    final = train(run, folder, dataset=dataset)
    molecules = look_at(final.trained, dataset, final.split.test[:: max(1, len(final.split.test) // 6)][:6])
    names = category_meanings(dataset, "classes")
    evidence = Evidence(
        DATASET, len(dataset), names, tuple(models), molecules, time.monotonic() - start, final.result.device
    )
    write_report(out / "report.html", evidence)
    _say_summary(evidence, out, say)
    return evidence


def look_at(trained: TrainedModel, dataset: PackedDataset, graphs: torch.Tensor) -> list[Molecule]:
    """Predictions for these graphs, with the weights that their atoms gave to the kernels."""
    probability = trained.outputs(dataset, graphs).softmax(dim=1)
    atoms, bonds, classes = (category_meanings(dataset, c) for c in ("node_labels/0", "edge_labels/0", "classes"))
    molecules = []
    for row, number in enumerate(graphs.tolist()):
        graph = dataset.batch(torch.tensor([number]))
        with torch.inference_mode():
            weights = [layer.tolist() for layer in trained.model.kernel_weights(graph)]
        assert graph.node_labels is not None
        assert graph.edge_labels is not None
        ends = zip(graph.edge_index.T.tolist(), graph.edge_labels[:, 0].tolist(), strict=True)
        molecules.append(
            Molecule(
                number,
                atoms=[atoms[label] for label in graph.node_labels[:, 0].tolist()],
                bonds=[(i, j, bonds[label]) for (i, j), label in ends if i < j],
                actual=classes[int(dataset.targets[number])],
                predicted=classes[int(probability[row].argmax())],
                probability=probability[row].max().item(),
                weights=weights,
            )
        )
    return molecules


def _say_summary(evidence: Evidence, out: Path, say: Callable[[str], None]) -> None:
    say(f"{'accuracy over the folds':38} mean ± deviation")
    for model in evidence.models:
        say(f"  {model.model:36} {100 * model.mean:.1f} ± {100 * model.deviation:.1f}")
    for name, score, deviation in PUBLISHED:
        say(f"  {name + ', published':36} {score}" + ("" if deviation is None else f" ± {deviation}"))
    say("  (published: Xu et al. 2019, who choose the epoch on the test folds)\n")
    say("molecules the saved model had not seen:")
    for m in evidence.molecules:
        is_right = "right" if m.predicted == m.actual else "wrong"
        say(f"  no. {m.number:3}, {len(m.atoms):2} atoms: {m.predicted} ({100 * m.probability:.0f} %), {is_right}")
    say(f"\nmodel   {out / 'model'}\nreport  {out / 'report.html'}\ntook    {clock(evidence.seconds)}")
