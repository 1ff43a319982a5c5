"""A U-Net without normalisation on one large cloud per batch: rooms to segment, and a labelled PLY."""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

import pointvar as pv
from pointvar import data


def main(steps: int, folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)  # of dropout
    rooms = data.Rooms(2, num_points=6000)
    sizes = {"channels": (16, 32, 64), "radii": (0.1, 0.2, 0.4)}
    model = pv.models.SegmentationUNet(rooms.num_features, len(rooms.classes), **sizes, generator=generator)

    # Spheres of 1.5 m are the input, those of 1 m inside them are predicted; one per batch.
    crops = data.SphereCrops(rooms, inner=1.0, outer=1.5)
    sampler = data.CropSampler(rooms, radius=1.0, length=steps, generator=generator)
    batches = torch.utils.data.DataLoader(crops, batch_size=1, sampler=sampler, collate_fn=data.collate)

    def forward(model: nn.Module, batch: data.Batch) -> torch.Tensor:
        return model(batch.features, model.hierarchy(batch.cloud, generator=generator))

    options = {"num_batches": 2, "generator": generator}
    print(pv.variance_init(model, batches, forward=forward, **options))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for step, batch in enumerate(batches, 1):
        loss = nn.functional.cross_entropy(forward(model, batch), batch.labels, ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step}: {len(batch.cloud)} points, loss {loss.item():.3f}")

    model.eval()
    room = data.Rooms(1, "test", num_points=6000)[0]
    with torch.no_grad():
        labels = model(room.features, model.hierarchy(pv.PointCloud(room.points))).argmax(1)
    target = folder / "room.ply"
    data.write_ply(target, room.points, label=room.label, prediction=labels)
    print(
        f"{target}: {(labels == room.label).float().mean():.0%} right; look at it: pointvar report {target}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    main(options.steps, options.folder or Path(tempfile.mkdtemp()))
