"""Milliseconds of a training step of one of our models on NCI1, everything from building the batch to AdamW.

By default the model as printed, three layers of width 128. ``Trainer`` does what it always does, but for validation; a
figure is the median over epochs.
"""

import json
from typing import Any

import common
import torch
from epoch import SEED, Ours, draw_batches, time_epoch

from mnagt.data.encodings import with_encodings
from mnagt.data.registry import load_dataset
from mnagt.devices import device_name, pick_device
from mnagt.inference.outputs import matmul_precision
from mnagt.models.registry import build_model
from mnagt.runs.config import TrainConfig

TARGET = 1.3
"""Milliseconds of the default step on an H200 in bf16, at most."""


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--model", default="mnagt-paper", help="one of `mnagt models`")
    parser.add_argument("--settings", type=json.loads, default={"dropout": 0.0}, help="of the model, as JSON")
    parser.add_argument("--precision", default="bf16", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--device", default="cuda", help="cpu or cuda")
    parser.add_argument("--batches", type=int, help="batches an epoch, at most [all]")
    parser.add_argument("--rounds", type=int, default=10, help="epochs timed")
    options = parser.parse_args()
    device = pick_device(options.device)
    dataset = load_dataset(common.data_file("NCI1.zip"))
    dataset, split = draw_batches(dataset, 256, options.batches)
    torch.manual_seed(SEED)
    model = build_model(options.model, options.settings, dataset.features, dataset.task.num_outputs)
    config = TrainConfig(epochs=999, precision=options.precision, seed=SEED, checkpoint_seconds=1e9)
    ours = Ours(model, with_encodings(dataset, model.encodings), split, config, str(device))
    with matmul_precision(device, options.precision):
        took = common.medians({"ours": time_epoch(ours, str(device))}, options.rounds, warm_up=2)["ours"]
    figures: dict[str, Any] = {"ms": 1000 * took / (len(split.train) // 256)}
    settings = {"model": options.model, "settings": options.settings, "precision": options.precision, "seed": SEED}
    print(f"{device_name(device)}, {options.model}, {options.precision}: {figures['ms']:.3f} ms a step")
    common.write(options.out, {**settings, "device": device_name(device), "rounds": options.rounds, **figures})
    if device.type != "cpu" and options.model == "mnagt-paper" and figures["ms"] > TARGET:
        common.exit_if_missed([f"{figures['ms']:.2f} ms a step, not {TARGET}"])


if __name__ == "__main__":
    main()
