"""Graphs of networkx, with targets of your own: is it a ring or a path?

python examples/your_own_graphs.py
"""

from dataclasses import replace

import networkx as nx
import torch

from mnagt import PackedDataset, RunConfig, SingleLabel, TrainConfig, from_networkx, train

EPOCHS = 60
SIZES = range(3, 33)


def main() -> None:
    graphs = from_networkx([nx.cycle_graph(n) for n in SIZES] + [nx.path_graph(n) for n in SIZES])
    graphs = replace(graphs, targets=torch.arange(2 * len(SIZES)) // len(SIZES))
    dataset = PackedDataset.from_batch("rings", SingleLabel(("ring", "path")), graphs)
    run = train(RunConfig("rings", train=TrainConfig(epochs=EPOCHS, batch_size=16), device="cpu"), dataset=dataset)
    print("test", run.result.test)
    print(run.trained.predict(from_networkx([nx.cycle_graph(50), nx.path_graph(50)])))


if __name__ == "__main__":
    main()
