"""Fixtures: an HTTP server and an empty folder. No test uses a network."""

import pytest
from tests.conftest import OFFLINE
from tests.serving import TOY, Server


@pytest.fixture(autouse=True)
def _outside(monkeypatch, tmp_path):
    """Give each test its own cache, and no network, no mirror and no data folder."""
    for name, value in {**OFFLINE, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    for name in ("LOCKSTEP_DATA", "LOCKSTEP_MIRROR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    server = Server()
    server.files["toy.tar.gz"] = TOY
    yield server
    server.stop()


@pytest.fixture
def destination(tmp_path):
    """The folder of the dataset, which does not exist yet, in an empty folder."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data/toy"
