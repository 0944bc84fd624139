"""What chemists have today: a random forest over Morgan fingerprints, on an OGB set of molecules with one question.

Nothing is tuned: 2,048 bits of radius 2, 300 trees, two molecules in a leaf at least. It learns from the training part
of the official split and is scored on the other two; with ``--folds`` (``rare_scaffolds.py``) from each fold's, and the
test part is left alone. The published figure for ogbg-molhiv is 0.8060 ± 0.0010 (OGB's leaderboard).
"""

from pathlib import Path
from statistics import mean

import common
import numpy as np
from numpy.typing import NDArray
from rare_scaffolds import get_smiles
from rdkit.Chem import MolFromSmiles
from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
from rdkit.rdBase import BlockLogs
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score

from mnagt.data.registry import load_dataset
from mnagt.data.splits import Split
from mnagt.runs.config import SplitConfig
from mnagt.runs.split import make_split

RADIUS, BITS, TREES, LEAF, SEED = 2, 2048, 300, 2, 0


def fingerprints(smiles: list[str]) -> NDArray[np.uint8]:
    """A row of bits for each molecule; of one that RDKit cannot read, none is set."""
    generator = GetMorganGenerator(radius=RADIUS, fpSize=BITS)
    rows = np.zeros((len(smiles), BITS), np.uint8)
    with BlockLogs():
        for row, each in zip(rows, smiles, strict=True):
            if (molecule := MolFromSmiles(each)) is not None:
                row[:] = generator.GetFingerprintAsNumPy(molecule)
    return rows


def scores(
    bits: NDArray[np.uint8], active: NDArray[np.bool_], split: Split, parts: tuple[str, ...]
) -> dict[str, float]:
    """ROC-AUC on each of ``parts``."""
    forest = RandomForestClassifier(TREES, min_samples_leaf=LEAF, n_jobs=-1, random_state=SEED)
    forest.fit(bits[split.train], active[split.train])
    graphs = {part: getattr(split, part).numpy() for part in parts}
    sure = {part: np.asarray(forest.predict_proba(bits[at]))[:, 1] for part, at in graphs.items()}
    return {part: float(roc_auc_score(active[at], sure[part])) for part, at in graphs.items()}


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("dataset", nargs="?", default="ogbg-molhiv")
    parser.add_argument("--folds", type=Path, help="folder of splits, in place of the official one")
    options = parser.parse_args()
    dataset = load_dataset(options.dataset)
    bits, active = fingerprints(get_smiles(options.dataset)), dataset.targets[:, 0].numpy() == 1
    configs = {"official": SplitConfig("official")}
    if options.folds:
        configs = {each.name: SplitConfig("files", folder=str(each)) for each in sorted(options.folds.iterdir())}
    found = {}
    for name, config in configs.items():
        parts = ("valid",) if options.folds else ("valid", "test")
        found[name] = scores(bits, active, make_split(config, dataset), parts)
        print(name, {part: round(score, 4) for part, score in found[name].items()}, flush=True)
    if options.folds:
        print(f"mean {mean(each['valid'] for each in found.values()):.4f}")
    settings = {"radius": RADIUS, "bits": BITS, "trees": TREES, "leaf": LEAF, "seed": SEED}
    common.write(options.out, {"dataset": options.dataset, **settings, "rocauc": found})


if __name__ == "__main__":
    main()
