"""From a table of SMILES to predictions with calibrated probabilities, in one folder.

python examples/molecules_from_csv.py
"""

import tempfile
from pathlib import Path

from mnagt import RunConfig, SplitConfig, TrainConfig, calibrate, predict, train

EPOCHS = 10
TABLE = Path(__file__).with_name("amines.csv")
"""Molecules whose target is known: is there an amine?"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        config = RunConfig(
            str(TABLE), train=TrainConfig(epochs=EPOCHS, batch_size=16), split=SplitConfig("stratified"), device="cpu"
        )
        print("test", train(config, model).result.test)
        print("temperature", round(calibrate(model).calibration.temperature, 2))
        for smiles in ("CCCCCCN", "CCCCCCO"):
            print(smiles, predict(model, smiles))


if __name__ == "__main__":
    main()
