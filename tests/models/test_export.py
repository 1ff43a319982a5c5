"""Clouds, neighbourhoods and hierarchies as trees of tensors; networks as compiled and as exported graphs."""

import json
from functools import partial

import pytest
import torch
from network_cases import METHODS, clouds, features_of, seeded
from torch.testing import assert_close
from torch.utils import _pytree

import pointvar as pv
from pointvar.cli import main


def classifier(method="MCConv", **options):
    sizes = {"channels": (4, 6), "head": 5, "radii": (0.2, 0.5), **options}
    return pv.models.Classifier(2, 3, method, **sizes, generator=seeded()).eval()


def unet(method="MCConv", **options):
    sizes = {"channels": (4, 6), "radii": (0.2, 0.5), **options}
    return pv.models.SegmentationUNet(2, 3, method, **sizes, generator=seeded()).eval()


def inputs(model, *lengths, seed=0):
    cloud = clouds(*lengths, seed=seed)
    return features_of(cloud, 2), model.hierarchy(cloud, generator=seeded(seed))


OTHERS = [(40, 0, 25), (1,)]
"""Clouds, also empty and of one point, on which no graph was made."""


def assert_serves_others(graph, model):
    for lengths in OTHERS:
        given = inputs(model, *lengths, seed=len(lengths))
        with torch.no_grad():
            assert_close(graph(*given), model(*given))


# Trees


def test_trees_give_the_same_again():
    support, queries = clouds(30, 10), clouds(4, 6, seed=1)
    for hood in (pv.ball_query(support, queries, 0.3), pv.knn(support, queries, 3)):
        leaves, spec = _pytree.tree_flatten(hood)
        again = _pytree.tree_unflatten(leaves, _pytree.treespec_loads(_pytree.treespec_dumps(spec)))
        assert_close(again.relative_positions(), hood.relative_positions(), rtol=0, atol=0)
        assert again.common_radius == hood.common_radius
    alone = pv.ball_query(support, support, 0.3)
    again = _pytree.tree_map(torch.clone, alone)
    assert again.queries is again.support
    assert again.support.points is not support.points


@pytest.mark.parametrize("queries", [None, clouds(5, 6, seed=3)])
def test_a_hierarchy_goes_on_as_it_would_have(queries):
    """What is made on first use, by chance too, is the same in a copy by parts."""
    levels = pv.Hierarchy(clouds(60, 40), [0.1, 0.3], max_neighbors=4, queries=queries, hoods=[(0, 0, None)])
    again = _pytree.tree_map(torch.clone, levels)
    assert [cloud.num_points for cloud in again.clouds] == [cloud.num_points for cloud in levels.clouds]
    for hood in ("within", "up", "down"):
        assert torch.equal(getattr(again, hood)(0).indices, getattr(levels, hood)(0).indices)
    assert torch.equal(again.out(nearest=2).indices, levels.out(nearest=2).indices)
    assert torch.equal(again.within(1).support.names, levels.within(1).support.names)


def test_hierarchies_of_one_network_differ_in_tensors_alone():
    model = unet()
    first, other = inputs(model, 30, 20)[1], inputs(model, 3, seed=1)[1]
    assert _pytree.tree_structure(first) == _pytree.tree_structure(other)
    model(features_of(other.input, 2), other)  # what is computed and kept does not matter
    assert _pytree.tree_structure(first) == _pytree.tree_structure(other)
    alike = pv.Hierarchy(clouds(7), **json.loads(json.dumps(first.settings)))
    assert _pytree.tree_structure(first) == _pytree.tree_structure(alike)


# Graphs


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [classifier, unet])
def test_exported_networks_serve_other_clouds(make, method):
    model = make(method)
    program = pv.export(model, *inputs(model, 35, 25))
    assert_serves_others(program.module(), model)


def test_the_networks_of_pointconv_are_exported_too():
    """With levels of farthest points, nearest neighbours, and so a density of each cloud's own bandwidth."""
    model = pv.models.PointConvNet(
        2,
        3,
        counts=(12, 4),
        encoder=((4, 4), (6, 6)),
        decoder=((6, 6), (4, 4)),
        radii=(0.2, 0.5),
        neighbors=4,
    ).eval()
    given = inputs(model, 35, 25)
    graph = pv.export(model, *given).module()
    cloud = clouds(50, 40, seed=2)
    other = features_of(cloud, 2), pv.Hierarchy(cloud, **given[1].settings)
    with torch.no_grad():
        assert_close(graph(*other), model(*other))


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_export_is_of_evaluation_and_leaves_the_mode(norm):
    model = classifier(norm=norm, dropout=0.5).train()
    model.blocks[0].eval()
    graph = pv.export(model, *inputs(model, 35, 25)).module()
    assert model.training
    assert not model.blocks[0].training
    assert_serves_others(graph, model.eval())


@pytest.mark.parametrize(("make", "mode"), [(classifier, torch.inference_mode), (unet, torch.enable_grad)])
def test_whole_networks_compile_into_one_graph(make, mode):
    torch._dynamo.reset()
    model = make()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    for lengths in ((35, 25), (60, 20)):
        given = inputs(model, *lengths)
        with mode():
            assert_close(compiled(*given), model(*given))


@pytest.mark.parametrize("make", [classifier, unet])
def test_command(make, tmp_path, capsys):
    model, file = make(), tmp_path / "graph.pt2"
    pv.save(model, tmp_path / "model.safetensors", classes=["a", "b", "c"], task=model.task, data={})
    assert main(["export", str(tmp_path / "model.safetensors"), f"--output={file}"]) == 0
    assert "features [N, 2]" in capsys.readouterr().out
    extra = {"pointvar.json": ""}
    graph = torch.export.load(file, extra_files=extra).module()
    notes = json.loads(extra["pointvar.json"])
    assert notes["classes"] == ["a", "b", "c"]
    cloud = clouds(40, 30, seed=4)
    given = features_of(cloud, 2), pv.Hierarchy(cloud, **notes["hierarchy"])
    with torch.no_grad():
        assert_close(graph(*given), model(*given))


def test_command_compares_by_the_scale_of_the_logits(tmp_path, monkeypatch):
    """Sums in another order differ by a share of the largest logit; another network is refused."""
    model, file = unet(), tmp_path / "graph.pt2"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 10
    pv.save(model, tmp_path / "model.safetensors", classes=["a", "b", "c"], task=model.task, data={})
    export = pv.models.export

    def slightly_other(model, *given, off=3e-5):
        class Other(torch.nn.Module):
            def forward(self, features, levels):
                logits = model(features, levels)
                return logits + off * logits.abs().max()

        return export(Other(), *given)

    monkeypatch.setattr(pv.models, "export", slightly_other)
    assert main(["export", str(tmp_path / "model.safetensors"), f"--output={file}"]) == 0
    file.unlink()
    monkeypatch.setattr(pv.models, "export", partial(slightly_other, off=1e-2))
    with pytest.raises(AssertionError):
        main(["export", str(tmp_path / "model.safetensors"), f"--output={file}"])
    assert not file.exists()


def test_command_with_a_wrong_name(tmp_path, capsys):
    assert main(["export", str(tmp_path), f"--output={tmp_path / 'graph.onnx'}"]) == 2
    assert ".pt2" in capsys.readouterr().err
