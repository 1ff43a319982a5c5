"""A basis and an estimator of one's own, in plain torch: they go through the same layer as all others."""

import torch

import pointvar as pv


class Waves(pv.Basis):
    """Cosines of the distance from the centre, 0 to K - 1 half waves per radius."""

    def __init__(self, num_basis: int = 8) -> None:
        super().__init__()
        self.size = num_basis
        self.register_buffer("number", torch.pi * torch.arange(num_basis))

    def forward(self, offsets: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
        return torch.cos(self.number * offsets.norm(dim=1, keepdim=True))


class Fading(pv.Estimator):
    """Neighbours count less towards the border, by a learned power; together they count 1."""

    def __init__(self) -> None:
        super().__init__()
        self.power = torch.nn.Parameter(torch.ones(()))

    def forward(self, hood: pv.Neighborhood) -> torch.Tensor:
        q = (1 - hood.relative_positions().norm(dim=1)).clamp(min=1e-6) ** self.power
        return q / q.new_zeros(len(hood.counts)).index_add(0, hood.rows, q)[hood.rows]


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    cloud = pv.PointCloud(torch.rand(2000, 3, generator=generator))
    hood = pv.ball_query(cloud, cloud, radius=0.15)
    features = torch.randn(2000, 16, generator=generator)

    conv = pv.PointConvolution(16, 32, basis=Waves(), estimator=Fading(), generator=generator)
    print(conv)
    out = conv(features, hood)
    out.square().mean().backward()
    print(f"output {list(out.shape)}, gradient of the power {conv.estimator.power.grad.item():.4f}")

    z = conv.second_moment(features, hood).item()
    torch.nn.init.normal_(conv.weight, std=z**-0.5, generator=generator)  # Var[w] = 1 / Z
    print(f"variance of the output with weights from Z: {conv(features, hood).var().item():.2f}")


if __name__ == "__main__":
    main()
