"""Signed statements about a run: which count, and what is said of the others."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conftest import NATIVE
from tests.documents import ROOT
from tests.helpers import DATA, lockstep_error

from lockstep.errors import CRASH
from lockstep.runs.chain import chain_of
from lockstep.runs.run import Run
from lockstep.runs.statements import CHANGED, add, read

pytestmark = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs OpenSSH")
EXAMPLE = ROOT / "examples/verified-digits"


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    """Return a folder with the keys of ann, ben and eve, and `allowed`, which has ann's and ben's
    and, for another purpose, eve's.
    """
    folder = tmp_path_factory.mktemp("keys")
    lines = []
    for name, purpose in (("ann", "lockstep"), ("ben", "lockstep"), ("eve", "git")):
        path = folder / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        lines.append(
            f'{name}@example.org namespaces="{purpose}" {path.with_suffix(".pub").read_text()}'
        )
    (folder / "allowed").write_text("".join(lines))
    return folder


def said(links=(5,), same=True, **others):
    last = chain_of(Run(EXAMPLE))[-1]._asdict()
    digest = Run(EXAMPLE).recipe().digest()
    return {"recipe_digest": digest, "last": last, "links": [*links], "same": same} | others


def problems(path: Path, keys: Path) -> list[tuple[str | None, str, bool]]:
    run = Run(EXAMPLE)
    lines = read(path, chain_of(run), run.recipe().digest(), keys / "allowed")
    return [(line.signer, line.problem, line.gap) for line in lines]


@pytest.fixture
def lines(tmp_path, keys) -> Path:
    """Return a file with three statements that count."""
    path = tmp_path / "said.jsonl"
    for name, links in (("ann", [1, 2]), ("ben", [2]), ("ann", [5])):
        add(path, said(links), keys / name)
    return path


ANN, BEN = ("ann@example.org", "", False), ("ben@example.org", "", False)


def edited(lines: Path, edit) -> None:
    texts = lines.read_text().splitlines(keepends=True)
    edit(texts)
    lines.write_text("".join(texts))


def test_statements_of_allowed_signers_count(lines, keys):
    assert problems(lines, keys) == [ANN, BEN, ANN]


def test_what_was_changed_is_named(lines, keys):
    edited(lines, lambda texts: texts.__setitem__(1, texts[1].replace("[2]", "[3]")))
    # Ann's second statement was added after what Ben had said.
    assert problems(lines, keys) == [ANN, (None, CHANGED, False), (ANN[0], "", True)]


@pytest.mark.parametrize(
    ("edit", "gaps"),
    [
        (lambda texts: texts.reverse(), [True, True, False]),
        (lambda texts: texts.pop(0), [True, False]),
        (lambda texts: texts.pop(), [False, False]),  # which nothing follows
    ],
)
def test_what_was_moved_or_removed_leaves_a_gap(lines, keys, edit, gaps):
    edited(lines, edit)
    assert [gap for *_, gap in problems(lines, keys)] == gaps


def test_the_files_of_two_people_can_be_joined(lines, keys, tmp_path):
    copy = tmp_path / "copy.jsonl"
    shutil.copy(lines, copy)
    add(lines, said(), keys / "ann")
    add(copy, said(), keys / "ben")
    edited(lines, lambda texts: texts.append(copy.read_text().splitlines()[-1]))
    assert problems(lines, keys) == [ANN, BEN, ANN, ANN, BEN]


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        ({"last": {"step": 248, "sha256": "0" * 64}}, "it is of another run"),
        ({"recipe_digest": "0" * 64}, "it is of another run"),
        ({"links": [6]}, "it is of another run"),
        ({"last": chain_of(Run(EXAMPLE))[0]._asdict()}, "it is of another run"),  # all runs have it
        ({"links": "all"}, "it is no statement"),
        ({"same": "yes"}, "it is no statement"),
        ({"device": [1]}, "it is no statement"),
        ({"last": None}, "it is no statement"),
    ],
)
def test_a_foreign_statement_does_not_count(tmp_path, keys, others, problem):
    add(tmp_path / "said", said(**others), keys / "ann")
    assert [found for _, found, _ in problems(tmp_path / "said", keys)] == [problem]


def test_only_allowed_keys_count(tmp_path, keys):
    add(tmp_path / "said", said(), None)
    add(tmp_path / "said", said(), keys / "eve")
    line = json.loads((tmp_path / "said").read_text().splitlines()[0])
    odd = [line | {"signature": "\ud800"}, {"statement": line["statement"] | {"after": []}}]
    deep = '{"statement": ' + "[" * 5000 + "]" * 5000 + "}"
    (tmp_path / "said").write_text(
        "\n".join([(tmp_path / "said").read_text() + "[]", "nothing", *map(json.dumps, odd), deep])
    )
    assert [problem for _, problem, _ in problems(tmp_path / "said", keys)] == [
        "it is not signed",
        "allowed does not allow its key",
        "it is no statement",
        "it is no statement",
        CHANGED,
        "it is no statement",
        "it is no statement",
    ]


def test_a_key_may_stand_among_the_signers_for_other_purposes_too(lines, keys, tmp_path):
    key = (keys / "ann.pub").read_text()
    (tmp_path / "signers").write_text(f'old namespaces="git" {key}ann@example.org {key}')
    run = Run(EXAMPLE)
    read_lines = read(lines, chain_of(run), run.recipe().digest(), tmp_path / "signers")
    assert [line.signer for line in read_lines] == ["ann@example.org", None, "ann@example.org"]


def test_the_statements_about_the_example_count():
    run = Run(EXAMPLE)
    links = chain_of(run)
    lines = [*read(EXAMPLE / "statements.jsonl", links, run.recipe().digest(), EXAMPLE / "signers")]
    assert lines
    assert not any(line.problem or line.gap for line in lines)
    assert all(line.covers(number) for line in lines for number in range(1, len(links)))


def test_a_key_that_cannot_sign_leaves_the_file(lines, tmp_path):
    before = lines.read_bytes()
    (tmp_path / "key").write_text("no key")
    with lockstep_error("cannot sign"):
        add(lines, said(), tmp_path / "key")
    assert lines.read_bytes() == before


def test_a_run_is_verified_stated_and_read(trained_once, tmp_path, keys, here):
    shutil.copytree(trained_once(*NATIVE)[0], tmp_path / "runs/a")
    verify = "verify", "runs/a"
    reading = *verify, "--statements", "said", "--signers", keys / "allowed"
    done = here(*verify, "--link", 2, "--statement", "said", "--key", keys / "ann")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "  statement signed, the last line of said"
    statement = json.loads((tmp_path / "said").read_text())["statement"]
    assert (statement["links"], statement["same"], statement["steps"]) == ([2], True, 10)
    done = here(*reading)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:5] == [
        "1 link of 3 replayed by 1 signer: the same bits",
        "  link 1         nobody",
        "  link 2         ann@example.org",
        "  link 3         nobody",
        f"  line 1         ann@example.org: the same bits on {statement['device']}",
    ]
    here(*verify, "--link", 3, "--statement", "said")
    assert here(*reading).returncode == DATA  # a line that does not count
    add(tmp_path / "said", {**statement, "same": False}, keys / "ben")
    done = here(*reading, "--json")
    assert done.returncode == CRASH
    assert json.loads(done.stdout)["links"] == {"1": [], "2": ["ann@example.org"], "3": []}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--statements", "said"], "--statements and --signers go together: give both"),
        (["--statement", "said"], "choose them by --all, --sample 3 or --link 1"),
        (["--statement", "said", "--from", "0"], "choose them by --all"),
        (["--link", "1", "--key", "key"], "--key signs a statement: give --statement, too"),
        (["--link", "1", "--statement", "none/said"], "there is no folder"),
        (
            [
                "--all",
                "--statements",
                EXAMPLE / "statements.jsonl",
                "--signers",
                EXAMPLE / "signers",
            ],
            "--statements computes and writes nothing",
        ),
        (["--statements", EXAMPLE, "--signers", EXAMPLE / "signers"], "no file that can be read"),
        (
            ["--link", "1", "--statement", "said", "--key", EXAMPLE / "recipe.json"],
            "recipe.json: this is no SSH key",
        ),
        (
            ["--link", "1", "--statement", "said", "--key", "none"],
            "--key none: there is no file that can be read",
        ),
        (
            ["--statements", "none", "--signers", "none"],
            "--statements none: there is no file that can be read",
        ),
    ],
)
def test_mistakes_are_named_before_anything_is_computed(here, options, message):
    done = here("verify", EXAMPLE, *options)
    assert done.returncode
    assert message in done.stderr
