"""The callback in a user's own trainer, on a network that has nothing to do with points."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from training_cases import one_cloud, prepared, small_classifier, tiny

from pointvar.convolution import PointConvolution
from pointvar.init import INITS, Table
from pointvar.train import InitConfig, VarianceInit, fit


class Plain(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(64, 64), nn.ReLU())])
        self.start: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def on_train_batch_start(self, batch: Any, number: int) -> None:
        if self.start is None:
            self.start = self.net[0].weight.detach().clone()  # type: ignore[union-attr, operator]

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        return self(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.fixture
def loader(generator: torch.Generator) -> DataLoader[Any]:
    data = TensorDataset(torch.randn(256, 64, generator=generator) * 3, torch.zeros(256))
    return DataLoader(data, batch_size=64)


def trainer(folder: Path, callback: VarianceInit, epochs: int = 1) -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[callback],
    )


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore:.*does not have many workers.*")
def test_every_layer_has_the_target_and_resuming_leaves_it(tmp_path: Path, loader: DataLoader[Any]) -> None:
    module, callback = Plain(), VarianceInit(4, lambda m, batch: m(batch[0]), target=2.0)
    run = trainer(tmp_path, callback)
    run.fit(module, loader)
    assert callback.report is not None
    assert len(callback.report.layers) == 8
    data = torch.cat([batch[0] for batch in loader])
    for layer in module.net:
        data = layer(data)
        if isinstance(layer, nn.Linear):
            # The expectation over weights of 64 outputs, of which each is one draw: within 40 %.
            assert 1.2 < float(data.detach().square().mean()) < 2.8
    run.save_checkpoint(tmp_path / "x.ckpt")
    again, skipped = Plain(), VarianceInit(4, lambda m, batch: m(batch[0]))
    trainer(tmp_path, skipped, epochs=2).fit(again, loader, ckpt_path=tmp_path / "x.ckpt", weights_only=True)
    assert skipped.report is None
    assert again.start is not None
    assert torch.equal(again.start, module.net[0].weight)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore:.*does not have many workers.*")
def test_any_named_initialisation_of_a_part(tmp_path: Path, loader: DataLoader[Any]) -> None:
    module, callback = Plain(), VarianceInit(1, seed=5, method="xavier", part="net")
    trainer(tmp_path, callback).fit(module, loader)
    assert callback.report is not None
    assert [entry.name for entry in callback.report.layers] == [str(2 * n) for n in range(8)]  # within net
    expected = torch.randn(64, 64, generator=torch.Generator().manual_seed(5)) * (2 / 128) ** 0.5
    torch.testing.assert_close(module.start, expected)


def test_fit_tells_transfer_the_second_moment_of_the_features() -> None:
    """Var[w] = 1 / (C z m): normals have C = 3 channels and the second moment m = 1/3."""
    config = tiny({"init": {"method": "transfer"}, "data": {"normals": True, "scale": 0.0}}, epochs=1)
    result = fit(config)
    assert result.init is not None
    z = Table.load("modelnet40").z["MCConv"][0]
    assert result.init["layers"][0]["variance"] == pytest.approx(1 / z, rel=1e-5)


def test_in_fit_what_dropout_drops_while_measuring_depends_on_the_seed_alone() -> None:
    measured = []
    for state, seed in ((1, 0), (2, 0), (2, 1)):
        torch.manual_seed(state)
        result = fit(tiny({"model": {"dropout": 0.5}}, epochs=1, seed=seed))
        assert result.init is not None
        measured.append([layer["second_moment"] for layer in result.init["layers"]])
    assert measured[0] == measured[1] != measured[2]


def called(settings: InitConfig, batches: list[Any], model: nn.Module, **start: Any) -> list[dict[str, Any]]:
    """What the named initialisation is called with at the start of a training."""
    calls: list[dict[str, Any]] = []

    def own(model, batches, generator, forward, layers, target, table, input_moment=None) -> str:
        calls.append({**locals(), "drawn": float(torch.rand(())), "first": generator.initial_seed()})
        return "what was done"

    module = Plain()
    module.model = model
    state = {"ckpt_path": None, "global_step": 0, "train_dataloader": batches, **start}
    callback = VarianceInit.from_settings(settings, seed=9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(INITS._entries, settings.method, own)
        before = torch.random.get_rng_state()
        callback.on_train_start(SimpleNamespace(**state), module)  # type: ignore[arg-type]
    assert torch.equal(before, torch.random.get_rng_state())
    assert callback.report == ("what was done" if calls else None)
    return calls


def test_settings_reach_the_initialisation() -> None:
    network = small_classifier()
    batches = [prepared([one_cloud(0, number)], network) for number in range(4)]
    batches[1] = replace(batches[1], features=batches[1].features * 3)
    settings = InitConfig("transfer", batches=2, table="a file", target=4.0)
    (call,) = called(settings, batches, network)
    assert call["model"] is network
    for batch, other in zip(call["batches"], batches[:2], strict=True):
        assert torch.equal(batch.levels.input.points, other.levels.input.points)
    assert (call["target"], call["table"], call["layers"]) == (4.0, "a file", PointConvolution)
    assert call["input_moment"] == (1 + 9) / 2
    torch.manual_seed(9)
    assert (call["first"], call["drawn"]) == (9, float(torch.rand(())))
    scores = call["forward"](network.eval(), batches[0])
    assert torch.equal(scores, network(batches[0].features, batches[0].levels))
    (call,) = called(InitConfig(layers="all"), batches, network)
    assert (call["layers"], len(call["batches"])) == (None, 4)
    (call,) = called(settings, [replace(batches[0], features=torch.full((64, 1), 1e20))], network)
    assert call["input_moment"] == pytest.approx(1e40)  # more than float32 holds
    (call,) = called(settings, [[torch.ones(2, 64)], batches[0]], network)
    assert call["input_moment"] is None  # only of batches whose features are known


@pytest.mark.parametrize("start", [{"ckpt_path": "last.ckpt"}, {"global_step": 1}])
def test_nothing_is_drawn_in_a_run_that_goes_on(start: dict[str, Any]) -> None:
    assert called(InitConfig(), [[torch.ones(2, 64)]], small_classifier(), **start) == []


def test_the_defaults_are_those_of_the_settings() -> None:
    own, run = VarianceInit(), VarianceInit.from_settings(InitConfig(), seed=0)
    assert (own.batches, own.seed, own.method) == (run.batches, run.seed, run.method)
    assert [own.options[name] for name in ("target", "table")] == [1.0, "modelnet40"]
    assert (own.options["forward"], own.options["layers"], own.part) == (None, None, "")


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="at least one batch"):
        VarianceInit(0)
    with pytest.raises(ValueError, match=r"no initialisation 'xaver' .did you mean 'xavier'"):
        VarianceInit(method="xaver")


def test_the_setting_center() -> None:
    result = fit(tiny({"init": {"center": 0.5}, "epochs": 1}))
    assert result.init is not None
    assert {layer["center"] for layer in result.init["layers"]} == {0.5}
    callback = VarianceInit.from_settings(InitConfig(center="auto"), 0)
    assert callback.options["center"] == "auto"


class Normed(Plain):
    def __init__(self) -> None:
        super().__init__()
        parts = (nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU())
        self.net = nn.Sequential(*parts, nn.Linear(64, 5))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore:.*does not have many workers.*")
def test_norm_free_in_a_training(tmp_path: Path, loader: DataLoader[Any]) -> None:
    """The optimiser knows what has taken the place of the norms, and a checkpoint of it can be resumed."""
    module, callback = Normed(), VarianceInit(2, norm_free=True)  # labels in the batches are left out
    run = trainer(tmp_path, callback)
    run.fit(module, loader)
    report = callback.report
    assert report is not None
    assert report.norms == {"net.1": "BatchNorm1d"}
    assert (report.share, report.head) == (1.0, "net.3")
    assert [layer.name for layer in report.init.layers] == ["net.0", "net.3"]
    assert {id(p) for p in module.parameters()} == {
        id(p) for group in run.optimizers[0].param_groups for p in group["params"]
    }
    assert bool((module.net[1].gain != 1).any())  # type: ignore[union-attr]
    run.save_checkpoint(tmp_path / "x.ckpt")
    again, skipped = Normed(), VarianceInit(2, norm_free=True)
    trainer(tmp_path, skipped, epochs=1).fit(again, loader, ckpt_path=tmp_path / "x.ckpt", weights_only=True)
    assert skipped.report is None
    assert torch.equal(again.net[1].gain, module.net[1].gain)  # type: ignore[union-attr, arg-type]
    for wrong in ({"method": "xavier"}, {"layers": nn.Linear}):
        with pytest.raises(ValueError, match="norm_free sets all layers by its own method"):
            VarianceInit(2, norm_free=True, **wrong)  # type: ignore[arg-type]


class Unpacking(Normed):
    def forward(self, batch: Any) -> torch.Tensor:
        x, _ = batch
        return super().forward(x)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore:.*does not have many workers.*")
def test_a_module_that_is_called_otherwise_hears_of_forward(tmp_path: Path, loader: DataLoader[Any]) -> None:
    with pytest.raises(ValueError, match=r"too many values(.|\n)*forward=lambda model, batch"):
        trainer(tmp_path, VarianceInit(2, norm_free=True)).fit(Unpacking(), loader)
