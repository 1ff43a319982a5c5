"""A classifier without any normalisation in a training loop of one's own, two clouds per batch."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader

import pointvar as pv
from pointvar import data
from pointvar.train import AdaptiveClipping


def main(steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)  # of dropout
    shapes = data.Shapes(32, num_points=512)
    transform = data.Compose(data.NormalizeBox(), data.Rotate(axis=2), data.Scale(0.9, 1.1))
    loader = DataLoader(
        data.Transformed(shapes, transform, seed=0),
        batch_size=2,
        shuffle=True,
        collate_fn=data.collate,
        generator=generator,
    )

    # The recipe norm-free: no norm, unit response, preconditioned steps, variance-aware weights, clipping.
    sizes = {"channels": (16, 32, 64), "head": 64}
    model = pv.models.Classifier(1, len(shapes.classes), "KPConvN", **sizes, generator=generator)

    def forward(model: nn.Module, batch: data.Batch) -> torch.Tensor:
        return model(batch.features, model.hierarchy(batch.cloud, generator))

    options = {"num_batches": 2, "generator": generator}
    print(pv.variance_init(model, loader, forward=forward, **options))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    clip = AdaptiveClipping(model, 0.05)

    losses: list[float] = []
    while len(losses) < steps:
        for batch in loader:
            loss = nn.functional.cross_entropy(forward(model, batch), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            clip()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) % 10 == 0:
                print(f"step {len(losses)}: loss {sum(losses[-10:]) / 10:.3f}, mean of 10 steps")
            if len(losses) == steps:
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    main(parser.parse_args().steps)
