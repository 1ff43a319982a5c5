"""Networks on so few points lose more to threads than they gain."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread(threads: None) -> None:
    torch.set_num_threads(1)
