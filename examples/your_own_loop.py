"""A model in a training loop of your own: plain PyTorch, batches without padding.

python examples/your_own_loop.py
"""

import torch

from mnagt import build_model, load_dataset

EPOCHS = 20


def main() -> None:
    torch.manual_seed(0)
    dataset = load_dataset("MUTAG")
    train, test = torch.randperm(len(dataset)).split([150, 38])
    model = build_model("gin", {"dim": 32, "depth": 3}, dataset.features, outputs=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        for graphs, batch in dataset.batches(train, 32, torch.Generator().manual_seed(epoch)):
            loss = torch.nn.functional.cross_entropy(model(batch), dataset.targets[graphs])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    predicted = model.eval()(dataset.batch(test)).argmax(dim=1)
    print(f"test accuracy {(predicted == dataset.targets[test]).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
