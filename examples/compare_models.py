"""Which model suits my data? Four models on the same split, compared with the majority class.

python examples/compare_models.py
"""

import torch

from mnagt import RunConfig, TrainConfig, load_dataset, train

EPOCHS = 30
MODELS = ["wl-linear", "gin", "gps", "mnagt"]


def main() -> None:
    dataset = load_dataset("MUTAG")
    print(f"{dataset.name}: {len(dataset)} graphs")
    share = torch.bincount(dataset.targets).max().item() / len(dataset)
    print(f"{'majority class':15} {share:.3f}")
    for model in MODELS:
        config = RunConfig("MUTAG", model, train=TrainConfig(epochs=EPOCHS, batch_size=32), device="cpu")
        run = train(config, dataset=dataset)
        print(f"{model:15} {run.result.test['accuracy']:.3f}  ({run.result.parameters:,} parameters)")


if __name__ == "__main__":
    main()
