"""Features from columns, scaled by what was measured."""

import json

import numpy as np
import pytest

from pointvar.data import scaled_features
from pointvar.data.features import LIMIT, height, measure_scale


def arrays(count: int = 1000) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    intensity = random.lognormal(6, 0.3, count)
    intensity[:5] = 60_000  # retro-reflectors
    return {
        "points": random.uniform(0, 10, (count, 3)),
        "colors": random.random((count, 3)),
        "intensity": intensity.astype(np.uint16),
        "return_number": np.where(random.random(count) < 0.97, 1, 3).astype(np.uint8),
        "flat": np.full(count, 7),
    }


def test_columns_without_a_scale_are_as_in_the_file() -> None:
    given = arrays()
    found = scaled_features(given, {"names": ["intensity", "colors"]})
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:, 0], given["intensity"])
    np.testing.assert_array_equal(found[:, 1:], given["colors"].astype(np.float32))
    np.testing.assert_array_equal(scaled_features(given, {"names": []}), np.ones((1000, 1)))
    np.testing.assert_array_equal(scaled_features(given, {"names": ["one"]}), np.ones((1000, 1)))


def test_scales_by_hand() -> None:
    given = arrays()
    names = ["one", "intensity", "colors", "return_number", "flat"]
    raw = scaled_features(given, {"names": names})
    features = json.loads(json.dumps(measure_scale(names, [raw[:400], raw[400:]])))  # as in a saved network
    assert features["names"] == names
    np.testing.assert_allclose(features["shift"][1], np.median(given["intensity"]))
    low, high = np.quantile(given["intensity"], [0.05, 0.95])
    np.testing.assert_allclose(features["scale"][1], (high - low) / 3.2897, rtol=1e-4)
    np.testing.assert_allclose(features["scale"][5], given["return_number"].std())  # 97 of 100 are 1
    assert [features[key][i] for i in (0, 6) for key in ("shift", "scale")] == [0, 1, 7, 1]
    found = scaled_features(given, features)
    assert (found[:, 0] == 1).all()
    assert (found[:5, 1] == LIMIT).all()  # which would be hundreds
    np.testing.assert_allclose(found[5:, 1].std(), 1, atol=0.15)
    np.testing.assert_allclose(
        found[9, 2], (given["colors"][9, 0] - features["shift"][2]) / features["scale"][2], 1e-5
    )
    assert (found[:, 6] == 0).all()


def test_normals_keep_their_length() -> None:
    normals = np.tile([[0.6, 0.0, 0.8]], (10, 1))
    given = {"points": np.zeros((10, 3)), "normals": normals, "a": np.arange(10.0)}
    names = ["a", "normals"]
    features = measure_scale(names, [scaled_features(given, {"names": names})])
    np.testing.assert_array_equal(scaled_features(given, features)[:, 1:], normals.astype(np.float32))


@pytest.mark.parametrize(
    ("change", "names", "message"),
    [
        ({}, ["colour"], "no column colour; there are points, colors"),
        ({"intensity": np.array(["a"] * 1000)}, ["intensity"], "intensity must be numbers for 1000 points"),
        ({"intensity": np.ones(999)}, ["intensity"], "intensity must be numbers for 1000 points"),
        ({"intensity": np.full(1000, np.nan)}, ["intensity"], "intensity holds NaN"),
        ({"intensity": np.full(1000, 1e300)}, ["intensity"], "that float32 does not have"),
    ],
)
def test_columns_that_make_no_sense(change: dict, names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scaled_features(arrays() | change, {"names": names})


def test_scales_of_other_columns() -> None:
    features = measure_scale(["colors"], [arrays()["colors"]])
    with pytest.raises(ValueError, match="have 1 channels here, their scales are for 3"):
        scaled_features(arrays() | {"colors": np.ones((1000, 1))}, features)
    with pytest.raises(ValueError, match="must have 1 channels, three for colors"):
        measure_scale(["wide"], [np.ones((5, 2))])


def test_height_above_a_slope_with_a_house() -> None:
    random = np.random.default_rng(0)
    flat = random.uniform(0, 200, (40_000, 2)) + np.array([85_000, 447_000])
    slope = 0.05 * (flat[:, 0] - 85_000)
    house = (np.abs(flat - [85_100, 447_100]) < 10).all(1)
    points = np.column_stack([flat, slope + 8 * house])
    points[0] = [85_050, 447_050, -30]  # noise below the ground
    found = height(points, 40)
    # Cells of 2.5 m on a slope of 5 %; near the upper end, half of the window cannot be seen.
    wrong = np.abs(found - 8 * house)[1:]
    assert wrong[flat[1:, 0] < 85_180].max() < 0.3
    assert wrong.max() < 0.05 * 20 + 0.3
    # The cells are those of the world: what a part sees, it sees as the whole does.
    part = (flat[:, 0] < 85_150).nonzero()[0]
    inner = flat[part, 0] < 85_100
    np.testing.assert_allclose(height(points[part], 40)[inner], found[part][inner])


def test_height_of_a_file_comes_first() -> None:
    given = {"points": np.zeros((4, 3)), "height": np.arange(4)}
    np.testing.assert_array_equal(scaled_features(given, {"names": ["height"]})[:, 0], np.arange(4))
    del given["height"]
    np.testing.assert_array_equal(scaled_features(given, {"names": ["height"]}), np.zeros((4, 1)))


def test_a_point_far_away_needs_no_map_of_the_world() -> None:
    with pytest.raises(ValueError, match=r"too wide for a map of the ground .* larger data.ground than 40"):
        height(np.array([[0.0, 0, 0], [1e7, 1e7, 0]]), 40)
