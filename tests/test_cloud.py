"""PointCloud: what goes in is checked, what comes out is the packed batch."""

import copy
import pickle

import numpy as np
import pytest
import torch

from pointvar import PointCloud
from pointvar.cloud import per_cloud


@pytest.fixture
def batch() -> PointCloud:
    """Three clouds of 2, 0 and 3 points, numbered along the axes."""
    return PointCloud(torch.arange(10.0).view(5, 2), [2, 0, 3])


class TestConstructor:
    def test_packs_points_and_offsets(self, dim, dtype):
        points = torch.rand(5, dim, dtype=dtype)
        cloud = PointCloud(points, [2, 0, 3])
        assert torch.equal(cloud.points, points)
        assert cloud.offsets.tolist() == [0, 2, 2, 5]
        assert cloud.offsets.dtype == torch.int64
        assert (cloud.num_points, cloud.num_clouds, cloud.dim, cloud.dtype) == (5, 3, dim, dtype)

    def test_without_lengths_it_is_one_cloud(self):
        assert PointCloud(torch.rand(7, 3)).lengths.tolist() == [7]

    @pytest.mark.parametrize("lengths", [[2, 3], (2, 3), torch.tensor([2, 3]), torch.tensor([2, 3]).int()])
    def test_lengths_may_be_any_integers(self, lengths):
        assert PointCloud(torch.rand(5, 3), lengths).offsets.tolist() == [0, 2, 5]

    def test_makes_points_contiguous(self):
        points = torch.rand(3, 5).T
        cloud = PointCloud(points)
        assert cloud.points.is_contiguous()
        assert torch.equal(cloud.points, points)

    def test_keeps_the_graph_of_the_points(self):
        points = torch.rand(4, 3, requires_grad=True)
        PointCloud(points * 2).points.sum().backward()
        assert points.grad is not None
        assert points.grad.eq(2).all()

    def test_no_points_and_no_clouds(self):
        assert PointCloud(torch.zeros(0, 3)).lengths.tolist() == [0]
        assert PointCloud(torch.zeros(0, 3), [0, 0]).lengths.tolist() == [0, 0]
        assert PointCloud(torch.zeros(0, 3), []).num_clouds == 0

    def test_large_finite_values_whose_sum_overflows_are_accepted(self):
        assert PointCloud(torch.full((4, 3), 3e38)).num_points == 4

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    def test_rejects_values_that_are_not_finite(self, value, dtype):
        points = torch.zeros(5, 3, dtype=dtype)
        points[3, 1] = value
        with pytest.raises(ValueError, match=r"finite.* 1 of 5 points"):
            PointCloud(points)

    def test_rejects_infinities_that_cancel(self):
        with pytest.raises(ValueError, match="finite"):
            PointCloud(torch.tensor([[float("inf")], [-float("inf")]]))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool])
    def test_rejects_other_dtypes(self, dtype):
        with pytest.raises(TypeError, match="float32 or float64"):
            PointCloud(torch.zeros(5, 3).to(dtype))

    @pytest.mark.parametrize("shape", [(5,), (5, 0), (5, 4), (1, 5, 3), ()])
    def test_rejects_other_shapes(self, shape):
        with pytest.raises(ValueError, match=r"shape \[N, D\]"):
            PointCloud(torch.zeros(shape))

    @pytest.mark.parametrize("points", [[[0.0, 1.0]], torch.zeros(2, 3).numpy(), None])
    def test_rejects_what_is_no_tensor(self, points):
        with pytest.raises(TypeError, match=r"torch\.Tensor"):
            PointCloud(points)

    @pytest.mark.parametrize("lengths", [[2, 2], [6], [], [5, 1]])
    def test_rejects_lengths_of_another_sum(self, lengths):
        with pytest.raises(ValueError, match="there are 5 points"):
            PointCloud(torch.zeros(5, 3), lengths)

    def test_rejects_lengths_whose_sum_wraps_around(self):
        """2^64 + 5, which is 5 in 64 bits."""
        with pytest.raises(ValueError, match=f"sum to {2**64 + 5}, but there are 5 points"):
            PointCloud(torch.zeros(5, 3), [2**62] * 4 + [5])

    def test_takes_lengths_of_numpy(self):
        assert PointCloud(torch.zeros(5, 3), np.array([2, 3])).lengths.tolist() == [2, 3]

    def test_rejects_negative_lengths(self):
        with pytest.raises(ValueError, match="negative"):
            PointCloud(torch.zeros(5, 3), [6, -1])

    @pytest.mark.parametrize(
        "lengths",
        [[2.0, 3.0], torch.tensor([5.0]), 5, torch.tensor([True] * 5), "ab", [5, None], [[5], [1, 2]]],
    )
    def test_rejects_lengths_that_are_no_integers(self, lengths):
        with pytest.raises(TypeError, match="integers"):
            PointCloud(torch.zeros(5, 3), lengths)

    @pytest.mark.parametrize("lengths", [torch.tensor(5), torch.tensor([[5]])])
    def test_rejects_lengths_of_another_shape(self, lengths):
        with pytest.raises(ValueError, match=r"\[B\]"):
            PointCloud(torch.zeros(5, 3), lengths)


class TestFromList:
    def test_packs_in_order(self):
        clouds = [torch.rand(2, 3), torch.rand(0, 3), torch.rand(3, 3)]
        cloud = PointCloud.from_list(iter(clouds))
        assert torch.equal(cloud.points, torch.cat(clouds))
        assert cloud.lengths.tolist() == [2, 0, 3]

    def test_rejects_an_empty_list(self):
        with pytest.raises(ValueError, match="at least one"):
            PointCloud.from_list([])

    @pytest.mark.parametrize("other", [torch.zeros(1, 2), torch.zeros(1, 3).double()])
    def test_rejects_clouds_of_different_kinds(self, other):
        with pytest.raises(ValueError, match="same dimension, dtype and device"):
            PointCloud.from_list([torch.zeros(1, 3), other])

    def test_rejects_what_is_no_tensor(self):
        with pytest.raises(TypeError, match=r"torch\.Tensor"):
            PointCloud.from_list([torch.zeros(1, 3), [[0.0, 0.0, 0.0]]])

    def test_rejects_nan(self):
        with pytest.raises(ValueError, match="finite"):
            PointCloud.from_list([torch.zeros(1, 3), torch.full((1, 3), float("nan"))])


class TestFromBatch:
    @pytest.mark.parametrize("integer", [torch.int64, torch.int32])
    def test_clouds_that_are_left_out_are_empty(self, integer):
        cloud = PointCloud.from_batch(torch.rand(4, 3), torch.tensor([1, 1, 3, 3], dtype=integer))
        assert cloud.lengths.tolist() == [0, 2, 0, 2]
        assert cloud.lengths.dtype == torch.int64

    def test_num_clouds_adds_empty_ones_at_the_end(self):
        cloud = PointCloud.from_batch(torch.rand(2, 3), torch.tensor([0, 1]), num_clouds=4)
        assert cloud.lengths.tolist() == [1, 1, 0, 0]

    def test_no_points(self):
        none = torch.zeros(0, dtype=torch.int64)
        assert PointCloud.from_batch(torch.zeros(0, 3), none).lengths.tolist() == [0]
        assert PointCloud.from_batch(torch.zeros(0, 3), none, num_clouds=2).lengths.tolist() == [0, 0]

    def test_round_trip(self, batch):
        again = PointCloud.from_batch(batch.points, batch.batch, num_clouds=3)
        assert torch.equal(again.offsets, batch.offsets)

    @pytest.mark.parametrize("index", [[1, 0, 1], [-1, 0, 0], [0, 2, 1]])
    def test_rejects_an_order_that_is_not_ascending_from_0(self, index):
        with pytest.raises(ValueError, match="ascending"):
            PointCloud.from_batch(torch.rand(3, 3), torch.tensor(index))

    def test_rejects_too_few_clouds(self):
        with pytest.raises(ValueError, match="num_clouds is 1"):
            PointCloud.from_batch(torch.rand(2, 3), torch.tensor([0, 1]), num_clouds=1)

    @pytest.mark.parametrize("index", [torch.zeros(3), [0, 0, 0], torch.zeros(3, dtype=torch.bool)])
    def test_rejects_what_is_no_integer_tensor(self, index):
        with pytest.raises(TypeError, match="int64 or int32"):
            PointCloud.from_batch(torch.rand(3, 3), index)

    @pytest.mark.parametrize("shape", [(2,), (3, 1), ()])
    def test_rejects_other_shapes(self, shape):
        with pytest.raises(ValueError, match="one cloud index per point"):
            PointCloud.from_batch(torch.rand(3, 3), torch.zeros(shape, dtype=torch.int64))

    def test_rejects_points_that_are_no_tensor(self):
        with pytest.raises(TypeError, match=r"points must be a torch\.Tensor"):
            PointCloud.from_batch([[0.0, 0.0]], torch.zeros(1, dtype=torch.int64))


class TestParts:
    def test_batch_names_the_cloud_of_each_point(self, batch):
        assert batch.batch.tolist() == [0, 0, 2, 2, 2]

    def test_split_gives_views_of_each_cloud(self, batch):
        parts = batch.split()
        assert [part.lengths.tolist() for part in parts] == [[2], [0], [3]]
        assert torch.equal(torch.cat([part.points for part in parts]), batch.points)
        assert parts[2].points.data_ptr() == batch.points[2:].data_ptr()

    def test_length_is_the_number_of_points(self, batch):
        assert len(batch) == 5

    def test_repr_shows_what_it_holds(self, batch):
        assert repr(batch) == "PointCloud(3 clouds, 5 points [2, 0, 3], 2D float32, cpu)"
        assert repr(PointCloud(torch.zeros(6, 1).double(), [1] * 6)) == (
            "PointCloud(6 clouds, 6 points [1, 1, 1, 1, ...], 1D float64, cpu)"
        )
        assert repr(PointCloud(torch.zeros(6, 3))).startswith("PointCloud(1 cloud, 6 points [6]")


class TestIndexing:
    @pytest.mark.parametrize(
        ("index", "chosen", "lengths"),
        [
            (torch.tensor([0, 3]), [0, 3], [1, 0, 1]),
            (torch.tensor([1, 0, 4, 4, 2]), [1, 0, 4, 4, 2], [2, 0, 3]),  # clouds in order, points in any
            (torch.tensor([2, 4], dtype=torch.int32), [2, 4], [0, 0, 2]),
            (torch.tensor([True, False, False, True, True]), [0, 3, 4], [1, 0, 2]),
            (slice(1, 4), [1, 2, 3], [1, 0, 2]),
            (slice(None, None, 2), [0, 2, 4], [1, 0, 2]),
            (slice(-2, None), [3, 4], [0, 0, 2]),
            (torch.zeros(0, dtype=torch.int64), [], [0, 0, 0]),
        ],
    )
    def test_chooses_points_and_keeps_the_clouds(self, batch, index, chosen, lengths):
        part = batch[index]
        assert torch.equal(part.points, batch.points[chosen])
        assert part.lengths.tolist() == lengths

    def test_is_differentiable(self):
        points = torch.rand(4, 2, requires_grad=True)
        PointCloud(points, [2, 2])[torch.tensor([1, 2])].points.sum().backward()
        assert points.grad is not None
        assert points.grad[:, 0].tolist() == [0, 1, 1, 0]

    def test_rejects_an_order_that_mixes_the_clouds(self, batch):
        with pytest.raises(ValueError, match="order of the clouds"):
            batch[torch.tensor([2, 0])]

    @pytest.mark.parametrize("index", [[5], [-1]])
    def test_rejects_what_is_out_of_range(self, batch, index):
        with pytest.raises(ValueError, match="out of range"):
            batch[torch.tensor(index)]

    @pytest.mark.parametrize("index", [0, [0, 1], torch.tensor([0.0]), None, "0"])
    def test_rejects_other_types(self, batch, index):
        with pytest.raises(TypeError, match="int64 tensor, a bool mask or a slice"):
            batch[index]

    def test_rejects_a_mask_of_another_length(self, batch):
        with pytest.raises(ValueError, match="mask"):
            batch[torch.tensor([True, False])]

    def test_rejects_an_index_with_two_dimensions(self, batch):
        with pytest.raises(ValueError, match="one dimension"):
            batch[torch.zeros(1, 1, dtype=torch.int64)]

    @pytest.mark.parametrize("step", [-1, 0])
    def test_rejects_a_step_backwards(self, batch, step):
        with pytest.raises(ValueError, match="positive step"):
            batch[::step]


class TestCopies:
    def test_to_another_dtype(self, batch):
        double = batch.to(torch.float64)
        assert double.dtype == torch.float64
        assert torch.equal(double.points, batch.points.double())
        assert torch.equal(double.offsets, batch.offsets)

    def test_to_another_device_takes_the_offsets_along(self, batch):
        moved = batch.to("meta")
        assert (moved.points.device.type, moved.offsets.device.type) == ("meta", "meta")

    def test_to_the_same_is_itself(self, batch):
        assert batch.to("cpu") is batch

    def test_to_rejects_other_dtypes(self, batch):
        with pytest.raises(TypeError, match="float32 or float64"):
            batch.to(torch.float16)

    def test_to_a_smaller_dtype_stays_finite(self):
        with pytest.raises(ValueError, match="finite"):
            PointCloud(torch.full((1, 3), 1e300, dtype=torch.float64)).to(torch.float32)

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
    def test_pickle_and_deepcopy(self, batch, duplicate):
        assert batch.batch.tolist() == [0, 0, 2, 2, 2]
        again = duplicate(batch)
        again.points.add_(1)
        assert torch.equal(again.points, batch.points + 1)
        assert again.batch.tolist() == [0, 0, 2, 2, 2]

    def test_pin_memory_takes_points_and_offsets(self, batch, monkeypatch):
        pinned = []
        # Pinning needs an accelerator; here only what is pinned is looked at.
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda t: pinned.append(t) or t.clone())
        again = batch.pin_memory()
        assert [t.data_ptr() for t in pinned] == [batch.points.data_ptr(), batch.offsets.data_ptr()]
        assert torch.equal(again.points, batch.points)


class TestKeptValues:
    def test_are_computed_once_per_key(self, batch):
        calls = []
        for key in ("a", "b", "a", "b"):
            assert batch.kept(key, lambda key=key: calls.append(key) or key) == key
        assert calls == ["a", "b"]

    def test_are_computed_anew_after_a_change_in_place(self, batch):
        total = [float(batch.kept("sum", batch.points.sum))]
        batch.points.add_(1)
        total.append(float(batch.kept("sum", batch.points.sum)))
        batch.split()[0].points.add_(1)  # also through a view
        total.append(float(batch.kept("sum", batch.points.sum)))
        assert total == [45, 55, 59]

    def test_made_in_inference_mode_do_not_break_training(self, batch):
        with torch.inference_mode():
            assert batch.batch.tolist() == [0, 0, 2, 2, 2]
        weights = torch.ones(3, requires_grad=True)
        weights[batch.batch].sum().backward()
        assert weights.grad is not None
        assert weights.grad.tolist() == [2, 0, 3]

    def test_work_for_points_made_in_inference_mode(self):
        with torch.inference_mode():
            cloud = PointCloud(torch.rand(3, 2), [1, 2])
            assert cloud.batch.tolist() == [0, 1, 1]


class TestPerCloud:
    @pytest.mark.parametrize(
        "value", [0.1, [0.1], (0.1, 0.1, 0.1), torch.full((3,), 0.1, dtype=torch.float64)]
    )
    def test_has_the_precision_of_the_points(self, value, dtype):
        cloud = PointCloud(torch.zeros(3, 2, dtype=dtype), [1, 1, 1])
        assert per_cloud(value, cloud, "radius").tolist() == torch.tensor([0.1] * 3, dtype=dtype).tolist()

    @pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), [1.0, 0.0, 1.0], 1e-50, 1e50])
    def test_rejects_what_is_not_positive_and_finite(self, batch, value):
        with pytest.raises(ValueError, match="radius must be positive and finite"):
            per_cloud(value, batch, "radius")

    @pytest.mark.parametrize("value", [[1.0, 1.0], torch.ones(3, 1), []])
    def test_rejects_other_shapes(self, batch, value):
        with pytest.raises(ValueError, match="each of the 3 clouds"):
            per_cloud(value, batch, "radius")

    @pytest.mark.parametrize("value", [None, True, {"a": 1}, "1.0"])
    def test_rejects_other_types(self, batch, value):
        with pytest.raises(TypeError):
            per_cloud(value, batch, "radius")
