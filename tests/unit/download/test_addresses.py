"""The URLs of the datasets: https where possible, and always checked against the catalog's SHA-256."""

import pytest
from tests.unit.test_parity import rows

from lockstep.data.catalog import SOURCES

ARCHIVES = [(source, archive) for source in SOURCES.values() for archive in source.archives]
# MNIST's official URL offers no https.
PLAIN = {"http://yann.lecun.com/exdb/mnist/"}


def test_every_dataset_and_each_exception_is_needed():
    assert {source.name for source, _ in ARCHIVES} == {"cifar10", "mnist"}
    assert {base for _, archive in ARCHIVES for base in archive.bases} >= PLAIN


@pytest.mark.parametrize(("source", "archive"), ARCHIVES, ids=lambda value: value.name)
def test_https_comes_first_and_plain_http_only_where_the_page_says_so(source, archive):
    plain = [base for base in archive.bases if not base.startswith("https://")]
    encrypted = [base for base in archive.bases if base.startswith("https://")]
    assert encrypted
    assert list(archive.bases) == encrypted + plain
    assert set(plain) <= PLAIN
    row = " ".join(rows("O-")[18])
    assert all(f"`{base.split('/')[2]}`" in row for base in plain)
    assert all(base.endswith("/") for base in archive.bases)
    assert len(bytes.fromhex(archive.sha256)) == 32
    assert archive.size_bytes > 4000
