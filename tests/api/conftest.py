"""The tests of functions for Python programs read messages as these programs do."""

from unittest import mock

import pytest

from lockstep import errors


@pytest.fixture(autouse=True)
def _reader():
    with mock.patch.object(errors, "in_python", True):
        yield
