"""What all tests of networks share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_and_seed(threads: None) -> None:
    """Networks on so few points lose more to threads than they gain; dropout knows no generator."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
