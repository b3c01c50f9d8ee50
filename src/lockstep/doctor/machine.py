"""Checks of torch, devices, threads, CPU quota, shared memory, network and clock. The values to judge are arguments."""

import math
import re
import shutil
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep import numerics
from lockstep.doctor.finding import Finding, passed
from lockstep.runs.provenance import deciding
from lockstep.words import plural

_RESOLVE_S = 2.0  # how long the host's name may take to resolve
_MIN_SHM_BYTES = 2**30  # NCCL's buffers for the GPUs of one host
_MAX_LAG_S = 2.0  # between the clock of the host and that of its file system
_EARLIEST = 1_735_689_600  # 2025-01-01, before this release


def torch_build(version: str, required: str) -> Finding:
    """Judge torch's `version` by the package's requirement, as in torch>=2.13."""
    own, least = _numbers(version), _numbers(required)
    if own < least:
        return Finding("torch", "FAIL", f"torch {version}, and Lockstep needs {required}", f"pip install '{required}'")
    if own != least:
        return Finding(
            "torch", "WARN", f"torch {version}, and Lockstep is tested with {'.'.join(map(str, least))}",
            "nothing, if tests pass; another version of torch may compute other bits",
        )  # fmt: skip
    return passed("torch", f"torch {version}")


def _numbers(version: str) -> tuple[int, ...]:
    """Return major and minor version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def devices(processor: str, cores: int, gpus: Sequence[str], problem: str | None) -> Finding:
    """Judge the devices. `gpus` are the names of those that torch sees; `problem` is why it sees none, if it should."""
    if gpus:
        return passed("devices", f"{plural(len(gpus), 'GPU')}: {', '.join(gpus)}")
    if problem:
        return Finding(
            "devices", "WARN", f"a GPU driver is here, but torch sees no GPU: {problem}",
            "install a CUDA build of torch that suits the driver; or ignore this to train on the CPU",
        )  # fmt: skip
    return passed("devices", f"{processor}, {plural(cores, 'core')}, no GPU")


def threads(variables: Mapping[str, str], used: int) -> Finding:
    """Judge the `variables` of the shell, and how many threads torch uses where Lockstep has asked for one."""
    if used != 1:
        return Finding(
            "threads", "FAIL", f"torch computes with {used} threads where one is set, so it has other bits",
            "start lockstep as a program of its own, and remove what preloads libraries (LD_PRELOAD)",
        )  # fmt: skip
    set_by_us = numerics.environment(1)
    if own := [f"{name}={variables[name]}" for name in sorted(deciding(variables)) if name not in set_by_us]:
        return Finding(
            "threads", "WARN", f"{', '.join(own)} may change bits or speed",
            "unset what you do not need; all machines of a run need the same",
        )  # fmt: skip
    replaced = [
        f"{name}={variables[name]}" for name in set_by_us if variables.get(name, set_by_us[name]) != set_by_us[name]
    ]
    text = "one thread a tower, as recipes set it (threads_per_tower)"
    return passed("threads", f"{text}; {', '.join(replaced)} of this shell is replaced" if replaced else text)


def cpu_quota(cores: int, on_host: int, quota: float) -> Finding:
    """Judge how many of the host's cores this process may use; `quota` is in CPU seconds a second, or infinity."""
    text = f"{cores} of {on_host} cores"
    if math.isinf(quota):
        return passed("cpu quota", f"{text}, no quota")
    if quota < 1:
        return Finding(
            "cpu quota", "WARN", f"the control group allows {quota:g} of a core, so every process is paused often",
            "raise the container's CPU limit to 1 or more",
        )  # fmt: skip
    return passed("cpu quota", f"{text}, by a quota of {quota:g}")


def shared_memory(folder: Path, gpus: int) -> Finding:
    """Judge the shared memory in `folder`, which only the GPUs of one host exchange data through."""
    size = shutil.disk_usage(folder).total if folder.is_dir() else 0
    text = f"{folder} has {size / 2**30:.1f} GiB"
    if gpus > 1 and size < _MIN_SHM_BYTES:
        return Finding("shared memory", "WARN", f"{text}; NCCL may need more", "start the container with --shm-size=8g")
    return passed("shared memory", text if gpus > 1 else f"{text}; not needed without several GPUs")


def network(
    variables: Mapping[str, str], addresses: Mapping[str, Sequence[str]], host: str, resolved: str | None
) -> Finding:
    """Judge the interface through which processes of several hosts would connect.

    `addresses` are those of each interface; `resolved` is the address of the name `host`, None if it has none.
    """
    others = [name for name, own in addresses.items() if not all(_is_loopback(address) for address in own)]
    choose = f"set GLOO_SOCKET_IFNAME to the interface between the hosts{f', as in {others[0]}' if others else ''}"
    if chosen := variables.get("GLOO_SOCKET_IFNAME"):
        if missing := [name for name in chosen.split(",") if name not in addresses]:
            text = f"GLOO_SOCKET_IFNAME={chosen}: there is no interface {missing[0]}, only {', '.join(addresses)}"
            return Finding("network", "FAIL", text, f"{choose}, or unset it")
        return passed("network", f"{chosen}, by GLOO_SOCKET_IFNAME")
    if resolved is None:
        text = f"the host's name {host} does not resolve, so other hosts cannot connect; one host needs nothing"
        return Finding("network", "WARN", text, f"{choose}, or add {host} to /etc/hosts")
    interface = next((name for name, own in addresses.items() if resolved in own), None)
    if _is_loopback(resolved):
        return passed("network", f"{host} is {resolved}: right for one host. For several hosts, {choose}")
    if interface is None:
        text = f"the host's name {host} resolves to {resolved}, which no interface here has"
        return Finding("network", "WARN", text, f"{choose}, or correct /etc/hosts; one host needs nothing")
    return passed("network", f"{interface} ({resolved}), by the host's name {host}")


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def resolve(host: str) -> str | None:
    """Return the IPv4 address of `host`; None if it has none, or if the answer takes longer than two seconds."""
    found: list[str] = []

    def ask() -> None:
        try:
            found.append(socket.gethostbyname(host))
        except OSError:
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_RESOLVE_S)
    return found[0] if found else None


def clock(wall_s: float, lag_s: float) -> Finding:
    """Judge the clock: `wall_s` since 1970, and by how much the time of a new file lags behind it."""
    if wall_s < _EARLIEST:
        return Finding("clock", "WARN", "the clock is before 2025: downloads over https fail", "set the clock (NTP)")
    if abs(lag_s) > _MAX_LAG_S:
        text = f"the file system's clock and the host's differ by {abs(lag_s):.1f} s, so times of files mislead"
        return Finding("clock", "WARN", text, "synchronise the host and the file server by NTP")
    return passed("clock", f"the file system's clock differs by {abs(lag_s):.2f} s")
