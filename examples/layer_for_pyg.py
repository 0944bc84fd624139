"""`MNAGTConv` in a model on PyTorch Geometric's tensors: x, edge_index, batch. Is it a ring or a path?

python examples/layer_for_pyg.py
"""

import torch

from mnagt.nn import GraphTransformer, MNAGTConv

STEPS = 40


def main() -> None:
    torch.manual_seed(0)
    ring, path = [(i, (i + 1) % 6) for i in range(6)], [(i, i + 1) for i in range(6, 11)]
    edges = torch.tensor(ring + path).T
    edge_index = torch.cat([edges, edges.flip(0)], dim=1)
    x = torch.eye(16)[torch.bincount(edge_index[1])]  # degrees, one-hot
    batch, target = torch.arange(12) // 6, torch.tensor([0, 1])
    model = GraphTransformer(16, 16, num_layers=2, out_channels=2, layer=lambda number: MNAGTConv(16, heads=2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss = torch.nn.functional.cross_entropy(model(x, edge_index, batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}, classes {model.eval()(x, edge_index, batch).argmax(dim=1).tolist()}")


if __name__ == "__main__":
    main()
