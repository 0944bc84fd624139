"""From a table of SMILES to predictions with calibrated probabilities, in one folder.

python examples/molecules_from_csv.py
"""

import csv
import tempfile
from pathlib import Path

from mnagt import RunConfig, SplitConfig, TrainConfig, calibrate, predict, train

EPOCHS = 30


def write_table(path: Path) -> None:
    """A table whose target is known: does the molecule have an amine?"""
    bodies = ["C1CCCCC1", "c1ccccc1", "C1CCCC1", "CCCCC", "CC(C)CC", "C1CCOCC1"]
    groups = {"CN": "yes", "CNC": "yes", "CCN(C)C": "yes", "CO": "no", "COC": "no", "CCCl": "no", "CC#C": "no"}
    rows = [(body + group, groups[group]) for body in bodies for group in groups]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("smiles", "amine"), *rows])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table, model = Path(folder) / "my.csv", Path(folder) / "model"
        write_table(table)
        config = RunConfig(
            str(table), train=TrainConfig(epochs=EPOCHS, batch_size=16), split=SplitConfig("stratified"), device="cpu"
        )
        print("test", train(config, model).result.test)
        print("temperature", round(calibrate(model).calibration.temperature, 2))
        for smiles in ("CCCCCCN", "CCCCCCO"):
            print(smiles, predict(model, smiles))


if __name__ == "__main__":
    main()
