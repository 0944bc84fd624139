"""A model in a training loop of your own: plain PyTorch, batches without padding.

python examples/your_own_loop.py
"""

import torch
from torch.nn import functional as F

from mnagt import build_model, load_dataset

EPOCHS = 20


def main() -> None:
    torch.manual_seed(0)
    dataset = load_dataset("MUTAG")
    order = torch.randperm(len(dataset))
    train, test = order[:150], order[150:]
    model = build_model("gin", {"dim": 32, "depth": 3}, dataset.features, outputs=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(1, EPOCHS + 1):
        model.train()
        for graphs, batch in dataset.batches(train, 32, torch.Generator().manual_seed(epoch)):
            loss = F.cross_entropy(model(batch), dataset.targets[graphs])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.inference_mode():
        accuracy = (model(dataset.batch(test)).argmax(dim=1) == dataset.targets[test]).float().mean().item()
    print(f"loss {loss.item():.3f}, test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
