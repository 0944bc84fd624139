"""Whether attributions find the atoms that matter: what becomes of answers as nodes go, in their order and by chance.

Nodes go in two ways: silent (they bring nothing along, and stay) and cut out with their edges. Orders: by integrated
gradients, by occlusion (what the answer loses if a node alone is cut out), and two of chance: scattered, any node next,
and contiguous, neighbours of those already gone first: attributions of neighbours are alike, and holes in one place
may spoil less, or more, of a molecule than holes all over it. Figures are areas under what is left of the answer, over
that of chance; below 1 is better than chance.

Molecules are of the test part: some drawn at random, and as many that the model takes for likeliest. ``--trained``
names the folder of a trained model; without it a small one is trained first. ``MNAGT_DATA`` names the folder of data.
"""

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import common
import torch
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import load_dataset
from mnagt.explain.attribution import DeletionCurve, deletion_curve, integrated_gradients, occlusion
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.runs.split import make_split
from mnagt.training.run import train

SMALL = {"dim": 48, "depth": 3, "readout": "mean", "dropout": 0.2, "wl_iterations": 0}
SEED = 0


def score_contiguous(dataset: PackedDataset, index: int, chance: torch.Generator) -> Tensor:
    """Scores that take the nodes of a graph from one of them outwards."""
    size = int(dataset.sizes[index])
    score, left, waiting = torch.zeros(size), set(range(size)), deque[int]()
    ends: dict[int, list[int]] = {}
    for start, end in dataset.batch(torch.tensor([index])).edge_index.T.tolist():
        ends.setdefault(start, []).append(end)
    while left:
        node = waiting.popleft() if waiting else sorted(left)[int(torch.randint(len(left), (), generator=chance))]
        if node in left:
            score[node] = len(left)
            left.remove(node)
            waiting.extend(ends.get(node, ()))
    return score


def measure_curves(trained: TrainedModel, dataset: PackedDataset, indices: Tensor, orders: int) -> dict[str, dict]:
    """For each way to go: the curve of each order, and the ratios of areas."""
    explained = trained.task.explained_outputs(trained.outputs(dataset, indices))
    model, chance = trained.model, torch.Generator().manual_seed(SEED)
    wanted = [each.score for each in explained]
    by = {
        "integrated gradients": [each.nodes for each in integrated_gradients(model, dataset, indices, wanted)],
        "occlusion": occlusion(model, dataset, indices, wanted),
    }
    regions = [[score_contiguous(dataset, index, chance) for index in indices.tolist()] for _ in range(orders)]
    found = {}
    for way, is_cut in (("silent", False), ("cut", True)):

        def curve(scores: Sequence[Tensor], is_cut: bool = is_cut, orders: int = 0) -> DeletionCurve:
            left = [each.confidence for each in explained]
            return deletion_curve(model, dataset, indices, scores, left, is_cut=is_cut, orders=orders, seed=SEED)

        outwards = [curve(scores).ordered for scores in regions]
        together = tuple(map(mean, zip(*outwards, strict=True)))
        scattered = curve(regions[0], orders=orders).chance
        found[way] = {"contiguous": together, "scattered": scattered}
        for name, scores in by.items():
            ordered = curve(scores).ordered
            found[way][name] = {
                "curve": ordered,
                "ratio": DeletionCurve(ordered, scattered, len(indices)).ratio,
                "ratio to contiguous": DeletionCurve(ordered, together, len(indices)).ratio,
            }
    return found


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--dataset", default="ogbg-molhiv")
    parser.add_argument("--trained", type=Path, help="folder of a model [trains a small one]")
    parser.add_argument("--epochs", type=int, default=12, help="of the one trained here [12]")
    parser.add_argument("--molecules", type=int, default=200)
    parser.add_argument("--orders", type=int, default=3, help="by chance, of each kind [3]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = load_dataset(options.dataset)
    if options.trained:
        trained = load_model(options.trained)
    else:
        settings = TrainConfig(epochs=options.epochs)
        trained = train(RunConfig(options.dataset, "mnagt", SMALL, settings, device="cpu"), dataset=dataset).trained
    test = make_split(SplitConfig(), dataset).test
    likely = trained.outputs(dataset, test).max(dim=1).values.argsort(descending=True, stable=True)
    drawn = torch.randperm(len(test), generator=torch.Generator().manual_seed(SEED))
    figures, missed = {}, []
    for chosen, order in (("likeliest", likely), ("drawn at random", drawn)):
        figures[chosen] = found = measure_curves(trained, dataset, test[order[: options.molecules]], options.orders)
        for way, rows in found.items():
            for name in ("integrated gradients", "occlusion"):
                row = rows[name]
                ratios = f"{row['ratio']:.3f} of scattered chance, {row['ratio to contiguous']:.3f} of contiguous"
                print(f"{chosen}, {way}, {name}: {ratios}", flush=True)
        if found["silent"]["integrated gradients"]["ratio"] >= 1:
            missed.append(f"{chosen}: silencing by integrated gradients is no better than chance")
        if found["cut"]["occlusion"]["ratio"] >= 1:
            missed.append(f"{chosen}: cutting by occlusion is no better than chance")
    settings = {"data": options.dataset, "molecules": options.molecules, "model": trained.name}
    origin = {"settings": dict(trained.settings), "result": trained.origin.get("result"), "run": trained.origin["run"]}
    common.write(options.out, settings | origin | {"figures": figures})
    common.exit_if_missed(missed)


if __name__ == "__main__":
    main()
