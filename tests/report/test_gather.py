"""From files to a page: runs, results, clouds, and what is none of them."""

import json

import numpy as np
import pytest
import torch
from report_demo import write_run
from test_page import Page

import pointvar as pv
from pointvar.cli import main
from pointvar.data import write_ply
from pointvar.report import gather


def read(*paths):
    return Page(gather(paths).html())


def words(page):
    return " ".join(page.words)


def test_all_kinds_together(page):
    parsed = Page(page.read_text(encoding="utf8"))
    text = words(parsed)
    sections = ["Comparison", "direct", "standard", "cells", "fig-variance", "variance", "room"]
    assert all(name in parsed.words for name in sections)
    assert parsed.count("h2") == len(sections)
    assert "Shapes <& more>" in text
    assert "not finished" in text  # the second run
    assert "Of ten methods." in text  # what the figure is
    assert parsed.count("figure", "image") == 1  # the SVG
    assert "Variance by layer: vanishing: the output of" in text
    assert "1,234,567" in text  # parameters
    assert "a linear layer keeps what it has" in text
    assert "ellipsoid" in text
    assert parsed.count("svg", "spark") == 12  # accuracies of the cells
    assert parsed.count("figure", "cloud") == 1
    layers = parsed.data[-1]["layers"]
    assert [layer["name"] for layer in layers] == ["labels", "predictions", "errors", "colour"]
    assert "ceiling" in layers[0]["names"]
    assert "Not shown" not in text


def test_curves_of_a_run_are_its_record(tmp_path):
    run = write_run(tmp_path / "run", "none", "direct")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curves = {curve["name"]: curve["values"] for chart in read(run).data for curve in chart["curves"]}
    assert curves["training"] == pytest.approx([row["train_loss"] for row in rows], rel=1e-4)
    assert curves["accuracy"][:2] == [None, pytest.approx(rows[1]["accuracy"], rel=1e-4)]


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [
        write_run(tmp_path / seed / "run", "none", "direct", i) for i, seed in enumerate(("first", "second"))
    ]
    page = read(tmp_path)
    assert {"first/run", "second/run"} <= set(page.words)
    comparison = page.data[0]["curves"]
    assert [curve["name"] for curve in comparison] == ["first/run", "second/run"]
    assert read(runs[0]).words.count("run") >= 1


def test_a_run_that_diverged_says_why(tmp_path):
    run = write_run(tmp_path / "run", "none", "direct")
    summary = json.loads((run / "summary.json").read_text())
    summary |= {"diverged": "it began in convolutions.3", "metrics": {}, "init": None}
    (run / "summary.json").write_text(json.dumps(summary))
    page = read(run)
    assert "The run diverged: it began in convolutions.3" in words(page)
    assert page.count("p", "bad") == 1


def test_an_evaluation_goes_over_the_summary(tmp_path):
    run = write_run(tmp_path / "run", "none", "direct")
    result = {"votes": 10, "accuracy": 0.9876, "mean_accuracy": 0.5, "mean_iou": 0.25, "iou": {"cone": 0.25}}
    (run / "evaluation.json").write_text(json.dumps(result))
    assert "0.9876" in words(read(run))
    assert "10 votes" in words(read(run))


def test_an_evaluation_shows_what_is_taken_for_what_and_where(tmp_path):
    run = write_run(tmp_path / "run", "none", "direct")
    result = {"votes": 1, "accuracy": 0.75, "mean_accuracy": 0.5, "mean_iou": 0.25}
    result |= {"iou": {"cone": 0.25, "torus": None}, "precision": {"cone": 0.125, "torus": None}}
    result |= {"recall": {"cone": 0.375, "torus": None}, "labels": {"cone": 1234, "torus": 0}}
    result |= {"confusion": {"cone": {"cone": 463, "torus": 771}, "torus": {}}}
    result |= {"files": [{"file": f"tile {n:02}", "accuracy": n / 100} for n in range(30)]}
    result |= {"maps": {"tile 00": "evaluation/worst-1.npz", "tile 01": "evaluation/gone.npz"}}
    (run / "evaluation.json").write_text(json.dumps(result))
    (run / "evaluation").mkdir()
    points = np.random.default_rng(0).random((50, 3))
    arrays = {"points": points, "label": np.arange(50) % 2, "prediction": np.zeros(50, int)}
    np.savez(run / "evaluation" / "worst-1.npz", **arrays)
    page = read(run)
    text = words(page)
    for found in ("0.1250", "0.3750", "1,234", "62.5", "tile 19", "Worst files, 20 of 30"):
        assert found in text
    assert "tile 20" not in text
    assert page.count("table", "matrix") == 1
    assert page.count("figure", "cloud") == 1  # the other was removed
    assert "Errors in tile 00, from above" in text
    (drawn,) = (data for data in page.data if "layers" in data)
    assert drawn["layers"][0]["counts"] == [25, 25]


def test_a_run_that_has_only_begun(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"epoch": 1, "train_loss": 2.0}) + "\n")
    assert "not finished" in words(read(tmp_path))


def test_an_initialisation_as_it_is(tmp_path, generator):
    network = pv.models.PlainNet(4, 8, 3, method="MCConv")
    cloud = pv.PointCloud(torch.rand(200, 3, generator=generator))
    report = pv.variance_init(network, (cloud.points, pv.ball_query(cloud, cloud, 0.3)), generator=generator)
    (tmp_path / "init.json").write_text(json.dumps(report.to_dict()))
    page = read(tmp_path / "init.json")
    curves = {curve["name"]: curve["values"] for curve in page.data[0]["curves"]}
    assert curves["variance of the weights"] == pytest.approx([x.variance for x in report.layers], rel=1e-4)
    assert all(layer.name in page.words for layer in report.layers)


def test_numbers_of_any_shape_are_all_shown(tmp_path):
    content = {
        "seed": 17,
        "nothing": None,
        "pair": [1.5, 2.5],
        "curve": [1.0, 2.0, 4.0],
        "cases": {"boxes": {"distance": [0.0, 0.5, 1.0], "layer 1": [1.0, 0.5, 0.25]}, "note": "as it was"},
        "more": {"spheres": {"depth": [1, 2, 3], "direct": [0.5, 0.75, 1.0]}},
        "panels": {"one": {"a": [7, 8, 9], "b": [1, 2, 3]}, "two": {"a": [4, 5, 6], "b": [1, 2, 3]}},
        "rows": [{"a": 1, "b": {"c": "deep"}}],
        "tree": {"x": {"y": ["some", "words", "in", "a", "list"]}},
    }
    (tmp_path / "any.json").write_text(json.dumps(content))
    page = read(tmp_path / "any.json")
    text = words(page)
    for found in ("17", "nothing", "1.5", "2.5", "as it was", "b c", "deep", "words"):
        assert found in text
    drawn = [curve["values"] for chart in page.data for curve in chart["curves"]]
    assert [1.0, 2.0, 4.0] in drawn
    assert all(values in drawn for values in ([1.0, 0.5, 0.25], [0.5, 0.75, 1.0], [7, 8, 9], [4, 5, 6]))
    assert [chart["x"] for chart in page.data if chart["xlabel"] == "depth"] == [[1, 2, 3]]
    assert next(chart for chart in page.data if chart["xlabel"] == "distance")["x"] == [0.0, 0.5, 1.0]


def test_things_with_the_same_properties_are_one_table(tmp_path):
    (tmp_path / "any.json").write_text(
        json.dumps({n: {"size": 16, "largest": 0.5} for n in ("Gaussian", "Dot")})
    )
    page = read(tmp_path / "any.json")
    assert page.count("table") == 1
    assert page.count("tr") == 3
    assert {"Gaussian", "Dot", "size", "largest"} <= set(page.words)


def test_a_grid_of_runs_is_averaged_over_its_seeds(tmp_path):
    """Records as experiments append them: one cell made twice, the last record half written."""
    records = [
        {
            "cell": {"method": method, "column": "direct", "seed": seed},
            "result": {
                "accuracy": 0.5 + 0.25 * seed,
                "iou": {"cone": 0.5},
                "history": [{"epoch": epoch, "accuracy": 0.1 * epoch} for epoch in range(1, 5)],
                "seconds": 30.0,
                "diverged": "in the first layer" if seed else None,
            },
            "versions": {"torch": "2.13"},
            "date": "2026-01-01",
        }
        for method in ("MCConv", "KPConv")
        for seed in range(2)
    ]
    old = {**records[0], "result": {**records[0]["result"], "accuracy": 0.0}}
    text = "".join(json.dumps(record) + "\n" for record in [old, *records])
    (tmp_path / "table-class.jsonl").write_text(text + '{"cell": {"meth')
    (tmp_path / "table-class.md").write_text("| method | BN |\n|---|---:|\n| MCConv | 62.5 ± 17.7 |\n")
    (tmp_path / "table-class.html").write_text("<p>the table")
    (tmp_path / "table-class.lock").touch()
    page = read(tmp_path)
    assert page.count("table") == 1 + 2
    assert page.count("tr") == 2 + 3 + 5
    assert page.words.count("0.6250") == 2  # (0.5 + 0.75) / 2
    assert page.words.count("0.1768") == 2  # |0.75 - 0.5| / sqrt(2)
    assert page.count("svg", "spark") == 4
    assert "2:00 min" in page.words
    assert page.words.index("62.5 ± 17.7") < page.words.index("Mean over the seeds")
    assert "Not shown" not in page.words


def test_what_a_folder_says_of_itself_comes_first(tmp_path):
    (tmp_path / "a.csv").write_text("name,value\nx,1\n")
    (tmp_path / "README.md").write_text("# What this is\n")
    words = read(tmp_path).words
    assert words.index("What this is") < words.index("value")


def test_a_csv_of_epochs_is_drawn(tmp_path):
    (tmp_path / "log.csv").write_text("epoch,loss,name\n1,3.5,a\n2,2.5,b\n3,,c\n")
    page = read(tmp_path / "log.csv")
    assert [(curve["name"], curve["values"]) for curve in page.data[0]["curves"]] == [
        ("loss", [3.5, 2.5, None])
    ]
    assert page.count("tr") == 4


def test_a_prediction_is_known_by_its_confidence(tmp_path):
    points = np.random.default_rng(0).random((20, 3))
    write_ply(tmp_path / "scan.ply", points, label=np.arange(20) % 2, confidence=np.linspace(0, 1, 20))
    (tmp_path / "classes.txt").write_text("0 floor\n1 coffee table\n")
    layers = read(tmp_path / "scan.ply").data[0]["layers"]
    assert [layer["name"] for layer in layers] == ["predictions", "confidence"]
    assert layers[0]["names"] == ["floor", "coffee table"]


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_clouds_of_other_formats(tmp_path, suffix):
    path = tmp_path / f"cloud{suffix}"
    points = np.random.default_rng(0).random((20, 3))
    if suffix == ".npz":
        np.savez(path, points=points, label=np.zeros(20, int), prediction=np.ones(20, int))
        layers = read(path).data[0]["layers"]
        assert [layer["name"] for layer in layers] == ["labels", "predictions", "errors"]
    else:
        np.savetxt(path, points, delimiter=",", header="x,y,z", comments="")
        assert read(path).count("figure", "cloud") == 1


def test_what_is_unknown_in_a_folder_is_listed(tmp_path):
    run = write_run(tmp_path / "run", "none", "direct")
    (run / "notes.docx").write_text("x")
    (run / ".hidden").write_text("x")
    text = words(read(run))
    assert "notes.docx" in text
    assert ".hidden" not in text
    assert "model.safetensors" not in text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, "no such file"),
        ("model.bin", "x", "nothing is known of this kind of file"),
        ("bad.json", "{", "bad.json: not JSON"),
        ("bad.jsonl", '{"a": 1}\n[1]\n', "line 2: expected names and values"),
        ("worse.jsonl", '{"a": 1}\n{"a"\n', "line 2: not JSON"),
        ("bad.ply", "x", "bad.ply: cannot be read"),
        ("bad.md", b"\xff\xfe", "bad.md: not text"),
        ("folder/x.bin", "x", "nothing to report"),
        ("run/config.yaml", "a: [", "config.yaml: not YAML"),
        ("run/config.yaml", "words", "expected names and values"),
    ],
)
def test_what_cannot_be_shown_ends_in_one_line(tmp_path, capsys, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    given = path if path.parent == tmp_path else path.parent
    assert main(["report", str(given), "--output", str(tmp_path / "out.html")]) == 2
    assert message in capsys.readouterr().err.splitlines()[0]
    assert not (tmp_path / "out.html").exists()


def test_the_command_writes_a_page(results, tmp_path, capsys):
    target = tmp_path / "new" / "page.html"
    assert main(["report", str(results[2]), "--output", str(target), "--title", "My results"]) == 0
    assert str(target) in capsys.readouterr().out
    assert "My results" in words(Page(target.read_text(encoding="utf8")))


def test_a_run_as_training_leaves_it(tmp_path):
    pytest.importorskip("lightning", reason="needs pointvar[train]")
    from pointvar.train import fit, load_config

    small = ["--data.train_size=8", "--data.test_size=6", "--data.num_points=128", "--model.channels=[4,8]"]
    small += ["--model.radii=[0.2,0.4]", "--model.head=8", "--epochs=3", f"--output={tmp_path / 'run'}"]
    result = fit(load_config("shapes", "norm-free", overrides=small), verbose=False)
    page = read(tmp_path / "run")
    curves = {curve["name"]: curve["values"] for chart in page.data for curve in chart["curves"]}
    assert curves["training"] == pytest.approx([row["train_loss"] for row in result.history], rel=1e-4)
    assert curves["accuracy"] == pytest.approx(result.accuracy, rel=1e-4)
    assert len(curves["variance of the weights"]) == len(result.init["layers"])
    assert {"finished", "3 of 3", "Configuration", "Versions"} <= set(page.words)
    assert "Not shown" not in page.words
