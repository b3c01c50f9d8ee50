"""Agreement: all processes begin with the same state, and end as soon as one has other bits.

Each process updates its own copy of the state, and no gradient is ever compared. So the processes
compare what decides the bits: before the first step, and the states before each save. All functions
here are called by all processes together.
"""

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from lockstep.core.group import Group
from lockstep.core.state import State
from lockstep.data.dataset import first_other_class
from lockstep.errors import DATA, ENVIRONMENT, USAGE, LockstepError, option
from lockstep.files import Record
from lockstep.jobs.probe import probe
from lockstep.jobs.replica import Replica
from lockstep.runs.provenance import compare, releases
from lockstep.runs.statefile import StateFile
from lockstep.schema import dotted


def require_agreement(replica: Replica) -> Record:
    """Return the identity of this session: what decides its bits besides the recipe.

    Raises: LockstepError, in every process, unless all have the same versions, recipe, data,
        names of classes, model source, weights, and, if the recipe is exact, the same arithmetic.
    """
    placement, train_set = replica.placement, replica.splits["train"]
    require_equal(
        replica,
        {
            **replica.recipe.model_dump(mode="json"),
            "image decoder": replica.decoder,
            # The model's code is imported by now, and with it timm or torchvision.
            "versions": releases(),
            # The sha256 of a split covers labels, not their names.
            "number of classes": len(train_set.classes),
            "class": dict(enumerate(train_set.classes)),
            "image shape": [*train_set.images.shape[1:]],
            **{f"{name} images": sha256 for name, sha256 in replica.data_sha256.items()},
            "source of the model or dataset": replica.model_source,
            "weights": replica.state.weights_sha256(),
            option("eval_every"): placement.eval_every,
            option("save_every"): placement.save_every,
        },
    )
    arithmetic = probe(
        replica.recipe,
        replica.network,
        replica.seeded_state or replica.state,
        replica.train_set,
    )
    replica.seeded_state = None  # frees the memory
    replica.choose_decay()
    if replica.recipe.exact:
        decay = replica.bound.recipe.weight_decay
        require_equal(replica, {"arithmetic": arithmetic, "weight decay": decay})
    return {
        "probe": arithmetic,
        "data_sha256": replica.data_sha256,
        "model_source": replica.model_source,
        "decoder": replica.decoder,
        **replica.fingerprint,
    }


def require_equal(replica: Replica, identity: Record) -> None:
    """Raise a LockstepError, in every process, unless `identity` is the same in all.

    The message names two processes that differ, their hosts, the first entry that differs with both
    values, and how their fingerprints differ.
    """
    this = {
        "identity": dotted(identity),
        "host": socket.gethostname(),
        "fingerprint": replica.fingerprint,
    }
    first, *others = exchange(this, replica.group)
    for process, other in enumerate(others, 1):
        for name in first["identity"] | other["identity"]:
            both = [one["identity"].get(name) for one in (first, other)]
            if both[0] == both[1]:
                continue
            if (split := name.removesuffix(" images")) in replica.splits:
                both = _images(replica, split, process)
            changes = "; ".join(map(str, compare(first["fingerprint"], other["fingerprint"])))
            raise LockstepError(
                f"process 0 (host {first['host']}) and process {process} (host {other['host']}) "
                f"do not have the same {name} ({both[0]} and {both[1]}), so they would compute "
                f"different "
                f"results.{f' Their environments differ: {changes}.' if changes else ''} Give "
                f"every host the same files, options, libraries, variables and model of CPU or "
                f"GPU, and let a model draw random numbers only from torch's generator",
                ENVIRONMENT,
            )


def _images(replica: Replica, split: str, process: int) -> list[str]:
    """Return how many different images of a split process 0 and `process` have, and of each the
    first that the other one lacks. All processes call this together.
    """
    images = replica.splits[split]
    examples = zip(images.ids(), images.labels.tolist(), images.names(), strict=True)
    own = {f"{one.hex()} {label}": str(name) for one, label, name in examples}
    every = exchange(own, replica.group)
    pair = every[0], every[process]
    return [
        f"{len(one)}, first {next((one[key] for key in one if key not in other), 'none')}"
        for one, other in (pair, pair[::-1])
    ]


def require_same_data(replica: Replica, run: Path, recorded: Record) -> None:
    """Raise a LockstepError unless splits and classes are those `recorded` by the `run`."""
    where = f" in {replica.placement.data}" if replica.placement.data else ""
    for name, sha256 in replica.data_sha256.items():
        if (recorded.get("data_sha256") or {}).get(name, sha256) != sha256:
            raise LockstepError(
                f"the {'training' if name == 'train' else name} data{where} is not what {run} "
                f"was trained on (its sha256 differs): images were added, removed or changed "
                f"since. Give the original data as {option('data')}, or start a new run",
                DATA,
            )
    require_same_classes(replica, run, recorded.get("classes"))


def require_same_classes(replica: Replica, run: Path, recorded: Sequence[str] | None) -> None:
    """Raise a LockstepError unless the names of the classes are the `recorded` ones, if any."""
    classes = replica.splits["train"].classes
    if other := first_other_class(recorded or classes, classes):
        label, before, now = other
        raise LockstepError(
            f"the classes are not those that {run} was trained on: label {label} was {before} "
            f"and is {now}. Give images of the same classes as {option('data')}, or start a "
            f"new run",
            DATA,
        )


def restore(replica: Replica, checkpoint: StateFile | None) -> Record:
    """Load the checkpoint that process 0 read, in every process, and return its metadata.

    None is the initial state: no file is read.
    Raises: LockstepError if the checkpoint does not fit, or the weights that the recipe starts from
        are not given.
    """
    recipe, group = replica.recipe, replica.group
    if checkpoint is not None:
        stated, steps = checkpoint.metadata, replica.bound.steps
        if stated.get("recipe_digest") != recipe.digest():
            raise LockstepError(
                f"{checkpoint.path} was trained by another recipe than recipe.json states: restore "
                f"the run's own recipe.json",
                USAGE,
            )
        same = (stated.get("data_sha256") or {}).get("train") == replica.data_sha256["train"]
        if same and checkpoint.step > steps:
            raise LockstepError(
                f"{checkpoint.path} is beyond the end of its run, which has {steps} steps: remove "
                f"the file",
                DATA,
            )
    tensors = group.broadcast(save(checkpoint.tensors) if checkpoint else b"")
    if tensors:
        replica.state.load_state_dict(load(tensors))
        require_equal_states(replica.state, group)
    elif recipe.init_sha256 is not None and replica.initial_weights is None:
        raise LockstepError(
            f"the recipe starts from weights (init_sha256 {recipe.init_sha256[:12]}...): give "
            f"their file or run as {option('init')}"
        )
    text = json.dumps(checkpoint.metadata if checkpoint else {})
    metadata: Record = json.loads(group.broadcast(text.encode()))
    return metadata


def require_equal_states(state: State, group: Group) -> None:
    """Raise a LockstepError, in every process, unless the states of all have the same bits."""
    digests = exchange(state.digest(), group) if group.processes > 1 else []
    if len(set(digests)) > 1:
        # The most frequent one is taken as right; of equally frequent ones, that of process 0.
        right = max(digests, key=lambda digest: (digests.count(digest), digest == digests[0]))
        wrong = [str(process) for process, digest in enumerate(digests) if digest != right]
        raise LockstepError(
            f"process {', '.join(wrong)} of {len(digests)} no longer computes the same bits as the "
            f"others: after {state.step} steps the state differs. Nothing was saved since it was "
            f"last equal. Usual causes: faulty memory, or a model whose output depends on more "
            f"than its weights and input. Continue with {option('resume', True)}",
            ENVIRONMENT,
        )


def exchange(value: Any, group: Group) -> list[Any]:
    """Return every process's `value`, which has a JSON form, in order of process."""
    data = json.dumps(value).encode()
    longest = int(group.gather(torch.tensor([len(data)])).max())
    padded = torch.tensor(list(data.ljust(longest)), dtype=torch.uint8)
    return [json.loads(bytes(row.tolist())) for row in group.gather(padded)]
