"""Finding: what one check of this machine has found."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["PASS", "WARN", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """What one check has found.

    Attributes:
        check: name of the check.
        status: PASS; WARN for what costs speed, bits or convenience; FAIL for what makes training fail or go wrong.
        text: what was found.
        remedy: what to do; "" for PASS.
    """

    check: str
    status: Status
    text: str
    remedy: str = ""


def passed(check: str, text: str) -> Finding:
    """Return a finding that needs no remedy."""
    return Finding(check, "PASS", text)
