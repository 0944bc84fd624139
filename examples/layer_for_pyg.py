"""`MNAGTConv` as a layer of a model on PyTorch Geometric's tensors: x, edge_index, batch.

python examples/layer_for_pyg.py
"""

import torch
from torch import nn

from mnagt.nn import MNAGTConv

STEPS = 40


class Network(nn.Module):
    """Two layers, then the mean over the nodes of each graph."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MNAGTConv(dim, heads=2) for _ in range(2))
        self.head = nn.Linear(dim, 2)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, edge_index, batch)
        sizes = torch.bincount(batch)[:, None]
        return self.head(x.new_zeros(len(sizes), x.shape[1]).index_add(0, batch, x) / sizes)


def main() -> None:
    torch.manual_seed(0)
    ring, path = [(i, (i + 1) % 6) for i in range(6)], [(i, i + 1) for i in range(6, 11)]
    edges = torch.tensor(ring + path).T
    edge_index = torch.cat([edges, edges.flip(0)], dim=1)
    x = torch.eye(16)[torch.bincount(edge_index[1])]  # degrees, one-hot
    batch, target = torch.arange(12) // 6, torch.tensor([0, 1])
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(model(x, edge_index, batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}, classes {model.eval()(x, edge_index, batch).argmax(dim=1).tolist()}")


if __name__ == "__main__":
    main()
