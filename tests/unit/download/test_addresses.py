"""The URLs of the datasets: https where possible, and always checked against the catalog's SHA-256."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.serving import refused
from tests.unit.test_parity import rows

from lockstep.data.catalog import SOURCES
from lockstep.errors import DATA

ARCHIVES = [(source, archive) for source in SOURCES.values() for archive in source.archives]
NAMES = [f"{source.name}-{archive.name}" for source, archive in ARCHIVES]
# MNIST's official URL and Fashion-MNIST's bucket offer no https.
PLAIN = {"http://yann.lecun.com/exdb/mnist/", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"}


def test_every_downloadable_dataset_is_tested():
    assert {source.name for source, _ in ARCHIVES} == {"cifar10", "cifar100", "mnist", "fashion-mnist"}


@pytest.mark.parametrize(("source", "archive"), ARCHIVES, ids=NAMES)
def test_https_comes_first_and_plain_http_only_where_the_page_says_so(source, archive):
    plain = [base for base in archive.bases if not base.startswith("https://")]
    encrypted = [base for base in archive.bases if base.startswith("https://")]
    assert encrypted
    assert list(archive.bases) == encrypted + plain
    assert set(plain) <= PLAIN
    row = " ".join(rows("O-")[18])
    for base in plain:
        assert f"`{base.split('/')[2]}`" in row


def test_each_exception_is_still_needed():
    used = {base for _, archive in ARCHIVES for base in archive.bases}
    assert used >= PLAIN


@pytest.mark.parametrize("through", ["address", "mirror"])
@pytest.mark.parametrize(("source", "archive"), ARCHIVES, ids=NAMES)
def test_a_file_of_another_sha256_is_refused(source, archive, through, server, destination, monkeypatch):
    """A server has another file under the name of the archive."""
    server.files[archive.name] = b"something else" * 100
    base = server.url if through == "address" else "http://127.0.0.1:9/"  # no server listens here
    if through == "mirror":
        sub = "fashion-mnist/" if source.shares_file_names else ""
        server.files[f"{sub}{archive.name}"] = server.files[archive.name]
        monkeypatch.setenv("LOCKSTEP_MIRROR", server.url)
    changed = replace(source, archives=(replace(archive, bases=(base,)),))
    refused(changed, destination, DATA, f"{archive.name}: wrong checksum")
    assert Path(server.requests[0]).name == archive.name
