"""lockstep.push, `lockstep push`, and the models that commands read from the Hugging Face Hub.

Examples:
  lockstep push runs/photos me/ants-and-bees
  lockstep predict hf://me/ants-and-bees new.jpg
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from lockstep import numerics
from lockstep.commands.shell import in_shell, require_extra
from lockstep.errors import DATA, LockstepError, option
from lockstep.huggingface import reaching
from lockstep.messages import logger
from lockstep.runs.run import Run

# A Path has lost one slash.
_ADDRESS = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", re.ASCII)
_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_MODEL = "model.safetensors"


@dataclass(frozen=True)
class PushRecord:
    """A classifier on the Hub. `lockstep push --json` prints the same.

    Attributes:
        url: Its page.
        address: What `lockstep.load` and `lockstep predict` take: hf://OWNER/NAME@COMMIT.
        commit: The commit that has the files.
        before: The newest commit before; None in a new repository. If nothing has changed, it is
            `commit`.
        weights_sha256: The SHA-256 of the weights, as in result.json.
    """

    url: str
    address: str
    commit: str
    before: str | None
    weights_sha256: str

    def __str__(self) -> str:
        what = f"after {self.before}, which stays in the history"
        if self.before in (None, self.commit):
            what = "nothing has changed" if self.before else "the first of a new repository"
        return "\n".join(
            [
                f"  model   {self.url}",
                f"  commit  {self.commit} ({what})",
                f"  use     lockstep predict {self.address} IMAGE.jpg",
                f"  sha256  {self.weights_sha256} (of the run, as train prints it)",
            ]
        )


def push(run: str | Path | Run, repository: str, private: bool = False) -> PushRecord:
    """Upload a classifier to the Hugging Face Hub.

    The repository gets model.safetensors, the recipe, the result and a model card, which states the
    accuracy with its interval, how many answers are confident, the SHA-256 of the weights and of
    the run's last link, and the limits. A repository that exists gets a new commit, and earlier
    ones stay in its history. Images and checkpoints are not uploaded.

    Log in first with `hf auth login`, or set HF_TOKEN to a token that may write.

    Args:
        run: Folder of a complete run.
        repository: OWNER/NAME on the Hub.
        private: Make a new repository private. One that exists stays as it is.

    Returns:
        The commit, and the address that `lockstep.load` takes.

    Raises:
        LockstepError: A run that is damaged or not complete, a name that is not allowed, a Hub that
            cannot be reached or does not let you write, or a package of the extra "hf" that is not
            installed.

    Examples:
        >>> record = lockstep.push("runs/photos", "me/ants-and-bees")
        >>> classifier = lockstep.load(record.address)
    """
    if not _NAME.fullmatch(repository):
        raise LockstepError(f"repository {repository!r}: give OWNER/NAME, as in me/ants-and-bees")
    run = run if isinstance(run, Run) else Run.open(run)
    result = run.result()
    if result is None or not run.model.is_file():
        raise LockstepError(
            f"{run.path} has no result or no {_MODEL}: complete it with {option('resume', True)}"
        )
    require_extra("hf", ("huggingface_hub",))
    if in_shell():
        numerics.prepare(1)  # before torch is imported
    from lockstep.classify.classifier import weights_of
    from lockstep.pages.card import card

    recipe, file = weights_of(run)
    if file.metadata.get("weights_sha256") != result.get("weights_sha256"):
        raise LockstepError(
            f"{run.path} has a result.json of other weights than {_MODEL}: restore its own files",
            DATA,
        )
    result.pop("run", None)  # A path on this machine, which tells nobody else anything.
    contents = {
        "README.md": card(repository, recipe, result, file.metadata["classes"]),
        "recipe.toml": recipe.toml(),
        "result.json": json.dumps(result, indent=1),
    }
    with reaching(f"hf://{repository}", "log in with a token that may write (hf auth login)", ""):
        from huggingface_hub import CommitOperationAdd, HfApi

        api, before = HfApi(), None
        if api.repo_exists(repository):
            before = api.repo_info(repository).sha
        url = api.create_repo(repository, private=private, exist_ok=True)
        files = [CommitOperationAdd(name, text.encode()) for name, text in contents.items()]
        files.append(CommitOperationAdd(_MODEL, run.model))
        message = f"Upload weights {result['weights_sha256'][:8]} of recipe {recipe.name}"
        commit = api.create_commit(repository, files, commit_message=message).oid
    address = f"hf://{repository}@{commit}"
    return PushRecord(str(url), address, commit, before, result["weights_sha256"])


def is_address(source: object) -> bool:
    """Return whether `source` is meant as an address on the Hub."""
    return isinstance(source, str | Path) and str(source).startswith("hf:/")


def model_at(address: str) -> Path:
    """Return the model file at hf://OWNER/NAME or hf://OWNER/NAME@REVISION, in the library's cache.

    It is downloaded once for each commit. Without a network, the newest commit that was downloaded
    counts, and the library says so. Raises: LockstepError.
    """
    require_extra("hf", ("huggingface_hub",))
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise LockstepError(f"{address}: give hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
    name, revision = found.groups()
    exact = f"hf://{name}{(revision and f'@{revision}') or ''}"
    content = f"{_MODEL}: give a model that `lockstep push` has uploaded"
    with reaching(exact, "log in (hf auth login)", content):
        from huggingface_hub import hf_hub_download, resolve_revision, try_to_load_from_cache

        commit = resolve_revision(name, revision=revision).resolved
        known = try_to_load_from_cache(name, _MODEL, revision=commit)
        # A path if the file is in the cache; else None, or a mark that the commit lacks the file.
        path = known if isinstance(known, str) else hf_hub_download(name, _MODEL, revision=commit)
    if path is not known:
        logger.warning(f"downloaded {_MODEL} of hf://{name}@{commit}", extra={"progress": True})
    return Path(path)
