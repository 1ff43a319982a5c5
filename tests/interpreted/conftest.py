"""The Triton kernels on CPU tensors. It is decided when triton is imported: a process of their own."""

import pytest

from pointvar.ops import backends

HERE = "tests/interpreted/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if backends.of("cpu").name == "triton":
        return
    reason = "for a process with TRITON_INTERPRET=1 POINTVAR_BACKEND=triton: make test-triton"
    for item in items:
        if HERE in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=reason))
