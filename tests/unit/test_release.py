"""`make release` runs what README says, and ends where that does not hold."""

import pytest
from benchmarks import release
from tests import documents

LOCKSTEP = """#!/bin/sh
case "$*" in {broken}) exit 3;; esac
echo "  sha256    {sha256} (bit-exact)"
"""


@pytest.fixture
def rehearse(tmp_path, monkeypatch):
    """Run README's commands with a program that only prints a hash, or fails."""
    monkeypatch.setattr(release.synthetic, "cifar10", lambda folder: None)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").symlink_to("/bin/true")

    def run(sha256=release.PUBLISHED, broken="none"):
        program = programs / "lockstep"
        program.write_text(LOCKSTEP.format(sha256=sha256, broken=broken))
        program.chmod(0o755)
        (place := tmp_path / "place").mkdir()
        return release.run_readme(programs, place)

    return run


def test_every_command_of_readme_that_needs_no_network_is_run(rehearse, capsys):
    blocks = documents.blocks((documents.ROOT / "README.md").read_text())
    count = rehearse()
    assert count > 10
    assert count == sum(len(documents.runnable(block)) for block in blocks) + sum(
        block.language == "python" for block in blocks
    )
    said = capsys.readouterr().out
    assert "lockstep train photos/" in said
    assert "import lockstep" in said


def test_another_hash_ends_it(rehearse):
    with pytest.raises(SystemExit, match=rf"print \['{'0' * 64}'\], and not {release.PUBLISHED}"):
        rehearse(sha256="0" * 64)


def test_a_command_that_fails_ends_it(rehearse):
    with pytest.raises(SystemExit, match="README: lockstep train photos/"):
        rehearse(broken="train*photos/*")
