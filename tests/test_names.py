"""Names: lazy at the top of the package, listed once per kind, and still found where they have moved from."""

import subprocess
import sys

import pytest

import pointvar as pv
from pointvar.atomic import write_atomically
from pointvar.registry import Registry


def test_importing_the_package_imports_neither_torch_nor_lightning():
    code = "import sys, pointvar; print([n for n in ('torch', 'lightning', 'numpy') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_is_there():
    assert {"knn", "KPConvN", "variance_init", "PointCloud", "train", "data"} <= set(dir(pv))
    for name in pv.__all__:
        assert getattr(pv, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_thing"):
        pv.no_such_thing  # noqa: B018


def test_a_name_that_has_moved_is_found_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"pointvar\.layers\.find_layers"):
        found = pv.init.find_layers
    assert found is __import__("pointvar.layers", fromlist=["find_layers"]).find_layers


def test_registry_imports_an_entry_when_it_is_asked_for():
    registry = Registry("thing", {"far": "no.such.module:Thing", "path": "pathlib:Path"})
    from pathlib import Path

    assert list(registry) == ["far", "path"]
    assert registry.resolve("path") is Path
    with pytest.raises(ModuleNotFoundError):
        registry.resolve("far")


def test_registry_takes_entries_from_outside_and_names_what_it_knows():
    registry = Registry("data set", {"shapes": 1})
    registry.add("mine", 2)
    assert (registry.resolve("mine"), len(registry), "mine" in registry, registry.get("no")) == (
        2,
        2,
        True,
        None,
    )
    with pytest.raises(
        ValueError, match=r"no data set 'shape' \(did you mean 'shapes'\?\); known are shapes, mine"
    ):
        registry.resolve("shape")


def test_a_file_is_replaced_whole_and_nothing_is_left_behind(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "one")
    write_atomically(path, b"two")
    assert (path.read_text(), [p.name for p in tmp_path.iterdir()]) == ("two", ["a.txt"])
    plain = tmp_path / "plain"
    plain.write_text("")
    assert path.stat().st_mode == plain.stat().st_mode


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_atomically(path, "one")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "two")
    assert (path.read_text(), len(list(tmp_path.iterdir()))) == ("one", 1)
