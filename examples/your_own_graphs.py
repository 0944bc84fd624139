"""Graphs of networkx, with targets of your own: is it a ring or a path?

python examples/your_own_graphs.py
"""

import networkx as nx

from mnagt import from_graphs, train

EPOCHS = 60
SIZES = range(3, 33)


def main() -> None:
    rings, paths = [nx.cycle_graph(n) for n in SIZES], [nx.path_graph(n) for n in SIZES]
    dataset = from_graphs(rings + paths, ["ring"] * len(rings) + ["path"] * len(paths), name="rings")
    run = train(dataset, epochs=EPOCHS, batch_size=16, device="cpu")
    print("test", run.result.test)
    print(run.trained.predict([nx.cycle_graph(50), nx.path_graph(50)]))


if __name__ == "__main__":
    main()
