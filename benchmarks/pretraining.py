"""What does pre-training on molecules without labels gain? A network learns RDKit's descriptors before bace, bbbp, ...

First the network of ``mnagt-ensemble`` learns to predict RDKit's descriptors from the graphs of molecules: those of
ogbg-molhiv and ogbg-moltox21, and the training parts of bace, bbbp, esol and freesolv. No label is read, and molecules
of the validation and test parts of the four sets are left out.

Then each of the four is learned from its weights and from random ones, with the same settings, epochs, training
molecules and seeds. Scores are of the official validation part, which also chooses the epoch: ROC-AUC or RMSE. The test
part is not read. ``MNAGT_DATA`` names the folder with OGB's molecules. What is finished is kept, and the same command
goes on from there.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import common
import torch
from jaxtyping import Float
from molecule_tables import Task, write_ogb
from torch import Tensor, nn

from mnagt.data.packed import PackedDataset
from mnagt.data.readers.smiles import find_duplicates, get_smiles, read_smiles
from mnagt.data.splits import Split, keep_share
from mnagt.files import read_json
from mnagt.nn.joined_model import JoinedModel
from mnagt.nn.molecule_descriptors import NUM_DESCRIPTORS, Descriptors
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.runs.folder import LAST, load_run_dataset
from mnagt.runs.options import leave_open
from mnagt.runs.split import choose_split
from mnagt.tasks import Regression
from mnagt.training.fit_model import FittedModel, fit_model
from mnagt.training.progress import Reporter
from mnagt.training.run import remove_checkpoint

SETS, OTHERS = ("freesolv", "esol", "bace", "bbbp"), ("tox21", "hiv")
MODELS: Mapping[str, Mapping[str, Any]] = {"network": {"members": (), "descriptors": ()}, "mnagt-ensemble": {}}
SIZES = (100, 300, 0)
"""Training molecules; 0 for all."""
SCRATCH, PRETRAINED = "random weights", "pre-trained"
COMMONEST = 0.99
"""Descriptors that have the same value in so many molecules are no targets."""
VALIDATED = 1000
"""Molecules that say how well descriptors are learned."""
COMMAND = "python benchmarks/pretraining.py --folder FOLDER --out results/pretraining-cpu.json"


def gather(tables: Mapping[str, Task], folder: Path) -> PackedDataset:
    """The molecules to learn from, each once, with their descriptors as targets."""
    sources, kept_aside = dict[str, list[str]](), list[str]()
    for name, task in tables.items():
        sources[name] = []
        for smiles, *_, part in (line.split(",") for line in task.table.read_text().splitlines()[1:]):
            (kept_aside if name in SETS and part != "train" else sources[name]).append(smiles)
    tables_of_values = [compute_descriptors(name, smiles, folder) for name, smiles in sources.items()]
    smiles = [text for each in tables_of_values for text in each["smiles"]]
    values = torch.cat([each["descriptors"] for each in tables_of_values])
    kept_aside = get_smiles(read_smiles(kept_aside, workers=1).graphs)
    same_as = find_duplicates([*kept_aside, *smiles], workers=1)
    is_new = (same_as == torch.arange(len(same_as)))[len(kept_aside) :]
    graphs = read_smiles([smiles[i] for i in is_new.nonzero()[:, 0].tolist()], name="molecules", workers=1).graphs
    values = values[is_new]
    columns = [i for i in range(NUM_DESCRIPTORS) if is_informative(values[:, i])]
    print(f"{len(graphs)} molecules, {len(columns)} descriptors", flush=True)
    return replace(graphs, targets=values[:, columns], task=Regression(tuple(f"descriptor {i}" for i in columns)))


def compute_descriptors(name: str, smiles: Sequence[str], folder: Path) -> dict[str, Any]:
    """RDKit's descriptors of the molecules that it can read, and their SMILES; computed once."""
    path = folder / f"{name}.pt"
    if not path.exists():
        graphs = read_smiles(smiles, name=name, workers=1).graphs
        batches = (graphs.batch(chunk) for chunk in torch.arange(len(graphs)).split(256))
        rows = [Descriptors()(torch.zeros(batch.num_nodes, 0), batch) for batch in batches]
        torch.save({"smiles": get_smiles(graphs), "descriptors": torch.cat(rows)}, path)
    return torch.load(path)


def is_informative(column: Float[Tensor, "molecules"]) -> bool:
    values = column[column.isfinite()]
    return bool((values != values.mode().values).double().sum() > (1 - COMMONEST) * len(column))


class EpochPrinter(Reporter):
    """Prints a line an epoch."""

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        print({name: round(record[name], 4) for name in ("epoch", "loss", "valid_spearman")}, flush=True)


def pretrain(dataset: PackedDataset, folder: Path, epochs: int) -> None:
    """Train a network that predicts the descriptors, and save it in ``folder``."""
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    split = Split(order[VALIDATED + 1 :], order[1 : VALIDATED + 1], order[:1])
    train = TrainConfig(epochs=epochs, selection_window=epochs, target_transform="rank", metric="spearman")
    settings = {**MODELS["network"], "head": "mlp", "dropout": 0.1}
    folder.mkdir(parents=True, exist_ok=True)
    config = RunConfig(dataset.name, "mnagt-ensemble", settings, train, device="cpu")
    fitted = fit_model(config, dataset, split, checkpoint=folder / LAST, reporter=EpochPrinter())
    figures = {"molecules": len(split.train), "descriptors": dataset.task.num_outputs, "epochs": epochs}
    figures |= {"spearman": round(fitted.trainer.at.history[-1]["valid_spearman"], 4), "seconds": round(fitted.seconds)}
    fitted.to_trained({"dataset": dataset.name, "pretraining": figures}).save(folder)
    remove_checkpoint(folder / LAST)


@cache
def load_table(task: Task) -> tuple[RunConfig, PackedDataset, Split]:
    """The settings, molecules and official split of a table."""
    split = SplitConfig(column="split")
    config = RunConfig(str(task.table), smiles="smiles", targets=task.targets, split=split, device="cpu")
    dataset = load_run_dataset(config)
    return config, dataset, choose_split(split, dataset).split


def fine_tune(task: Task, model: str, size: int, epochs: int, seed: int, source: Path | None) -> dict[str, Any]:
    """Train on molecules of the training part, and score on the validation part."""
    config, dataset, split = load_table(task)
    split = keep_share(split, min(1.0, (size or len(split.train)) / len(split.train)), seed)
    train = TrainConfig(epochs=epochs, seed=seed, init_from=source and str(source))
    config = replace(config, model="mnagt-ensemble", settings=dict(MODELS[model]), train=train)
    fitted = fit_model(leave_open(config, ("epochs",)), dataset, split)
    record = {"molecules": len(split.train), "metric": fitted.trainer.task.metric} | score(fitted, fitted.model, split)
    if isinstance(fitted.model, JoinedModel):
        record |= {f"network_{name}": value for name, value in score(fitted, fitted.model.network, split).items()}
        record["weights"] = [round(weight, 1) for weight in fitted.model.weights.tolist()]
    return record | {"seconds": round(fitted.seconds, 1)}


def score(fitted: FittedModel, model: nn.Module, split: Split) -> dict[str, float]:
    trainer = fitted.trainer
    output = trainer.ranks.outputs(model.eval(), trainer.dataset, split.valid, trainer.evaluation_batch_size)
    target = trainer.dataset.targets[split.valid]
    loss = trainer.task.loss(output, target)
    return {"score": round(trainer.task.scores(output, target)[trainer.task.metric], 5), "loss": round(float(loss), 5)}


def summarise(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds, and the gain of pre-training with its standard error; a positive one is good."""
    found = {tuple(run[name] for name in ("set", "model", "size", "epochs", "start", "seed")): run for run in runs}
    summary = []
    for key in dict.fromkeys(each[:4] for each in found):
        seeds = [seed for *rest, seed in found if (*key, PRETRAINED) == tuple(rest) and (*key, SCRATCH, seed) in found]
        pairs = [(found[*key, SCRATCH, seed], found[*key, PRETRAINED, seed]) for seed in seeds]
        figures = [name for name in (pairs[0][0] if pairs else ()) if name.endswith(("score", "loss"))]
        for name in figures:
            is_lower_better = name.endswith("loss") or pairs[0][0]["metric"] == "rmse"
            gains = [(old[name] - new[name]) * (1 if is_lower_better else -1) for old, new in pairs]
            summary.append(
                dict(zip(("set", "model", "size", "epochs"), key, strict=True))
                | {"figure": name, "seeds": len(seeds)}
                | {SCRATCH: round(mean(old[name] for old, _ in pairs), 4)}
                | {PRETRAINED: round(mean(new[name] for _, new in pairs), 4), "gain": round(mean(gains), 4)}
                | {"standard_error": round(stdev(gains) / math.sqrt(len(gains)), 4) if len(gains) > 1 else None}
            )
    return summary


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where tables, descriptors and the network go")
    parser.add_argument("--pretraining-epochs", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    tables = {name: write_ogb(name, options.folder) for name in (*SETS, *OTHERS)}
    source = options.folder / "pretrained"
    if not (source / "config.json").exists():
        dataset = gather(tables, options.folder)
        pretrain(dataset, source, options.pretraining_epochs)
    figures = read_json(source / "config.json")["origin"]["pretraining"]
    runs = read_json(options.out)["runs"] if options.out and options.out.exists() else []
    starts = {SCRATCH: None, PRETRAINED: source}
    trainings = product(options.sizes, options.models, range(options.seeds), options.sets, starts)
    for size, model, seed, name, start in trainings:
        key = {"set": name, "model": model, "size": size, "epochs": options.epochs, "start": start, "seed": seed}
        if any(key.items() <= run.items() for run in runs):
            continue
        runs.append(key | fine_tune(tables[name], model, size, options.epochs, seed, starts[start]))
        print(runs[-1], flush=True)
        common.write(
            options.out, {"command": COMMAND, "pretraining": figures, "summary": summarise(runs), "runs": runs}
        )
    print(json.dumps(summarise(runs), indent=2))


if __name__ == "__main__":
    main()
