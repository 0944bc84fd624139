"""Accuracy with and without test graphs that have a structural duplicate in training.

A random split of COLLAB leaves a fifth of its test graphs with one: a training graph whose nodes have the same degrees
and numbers of triangles. ``wl-linear`` is fitted again, by its recipes and on the splits of table 1, and scored on both
kinds of test graphs. Ledgers before 0.2 keep no predictions, so the networks in them cannot be scored this way; a trial
records it from 0.2 on (``without_duplicates``).
"""

import json

import common
import torch

from mnagt.data.duplicates import structural_signatures
from mnagt.data.registry import load_dataset
from mnagt.experiments.reproduce_tables import TU, recipe
from mnagt.experiments.trials import with_seed
from mnagt.training.run import train


def score_dataset(name: str, model: str, seeds: range) -> list[dict[str, float]]:
    """Accuracy on all test graphs, on those without and on those with a duplicate, split by split."""
    dataset, trials = load_dataset(name), []
    signatures = structural_signatures(dataset)
    for seed in seeds:
        run = train(with_seed(recipe(name, model), seed), dataset=dataset)
        test = run.split.test
        is_right = run.trained.outputs(dataset, test).argmax(dim=1) == dataset.targets[test]
        is_duplicate = torch.isin(signatures[test], signatures[run.split.train])
        parts = {"all": is_right, "unique": is_right[~is_duplicate], "duplicates": is_right[is_duplicate]}
        shares = {part: right.float().mean().item() if len(right) else None for part, right in parts.items()}
        trials.append({"seed": seed, "share": is_duplicate.float().mean().item(), **shares})
        print(name, model, json.dumps(trials[-1]), flush=True)
    return trials


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--seeds", type=int, default=10, help="splits [10]")
    options.add_argument("--first-seed", type=int, default=30, help="the first of them [30, as in table 1]")
    args = options.parse_args()
    seeds, model = range(args.first_seed, args.first_seed + args.seeds), "wl-linear"
    found = {name: {"models": {model: score_dataset(name, model, seeds)}} for name in TU}
    common.write(args.out, {"first_seed": args.first_seed, "datasets": found})


if __name__ == "__main__":
    main()
