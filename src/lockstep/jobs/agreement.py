"""Agreement: all processes of a run must have the same recipe, data, weights and arithmetic."""

import json
import socket
from collections.abc import Mapping
from typing import Any

import torch

from lockstep.core.group import Group
from lockstep.errors import ENVIRONMENT, LockstepError
from lockstep.runs.provenance import compare


def exchange(text: str, group: Group) -> list[str]:
    """Return every process's `text`, in order of process."""
    data = text.encode()
    longest = int(group.gather(torch.tensor([len(data)])).max())
    padded = torch.tensor(list(data.ljust(longest)), dtype=torch.uint8)
    return [bytes(row.tolist()).decode().rstrip() for row in group.gather(padded)]


def require_equal(what: str, own: str, group: Group, fingerprint: Mapping[str, Any]) -> None:
    """Raise a LockstepError, in every process, unless all processes have the same text `own` for `what`.

    The message names two processes that differ, their hosts, and how their `fingerprint`s differ.
    """
    texts = exchange(own, group)
    other = next((process for process, text in enumerate(texts) if text != texts[0]), None)
    if other is None:
        return
    fingerprints = [json.loads(text) for text in exchange(json.dumps(fingerprint), group)]
    hosts = exchange(socket.gethostname(), group)
    differences = list(map(str, compare(fingerprints[0], fingerprints[other])))
    cause = (
        f"Their environments differ: {'; '.join(differences)}. Use hosts with the same CPU or GPU model, libraries "
        f"and variables"
        if differences
        else "Their CPUs, libraries and variables are the same. Give every host the same files and options, and let a "
        "model draw random numbers only from torch's generator"
    )
    raise LockstepError(
        f"process 0 (host {hosts[0]}) and process {other} (host {hosts[other]}) do not have the same {what}, so "
        f"they would not train one network. {cause}",
        ENVIRONMENT,
    )
