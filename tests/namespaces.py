"""Hosts for tests: network namespaces that a switch joins, each with an address and a host name of
its own.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import _outside

INTERFACE = "eth0"  # of every host
_PREFIX = "lockstep"
_NAMES = Path("/run/netns")
_FILES = Path("/etc/netns")  # what a namespace has in place of files of /etc
# a shell's commands: in a host with its own name, run the rest
_SET_NAME = 'hostname "$1" && shift && exec "$@"'


def reason() -> str | None:
    """Return why this machine cannot have such hosts; None if it can."""
    try:
        with Hosts(1):
            subprocess.run(
                ["unshare", "--uts", "hostname", "try"], check=True, capture_output=True, text=True
            )
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{error} {getattr(error, 'stderr', '')}".strip()
    return None


class Hosts:
    """Several hosts on one network that no other program sees. Host n, from 0, has the name h<n>
    and an address.

    All namespaces have this process's number in their names, so that tests can run in parallel.
    They share the file system, but for /etc/hosts, which has the hosts' names: a test gives every
    host a folder of its own.

    Attributes:
        addresses: of the hosts.
        names: of their network namespaces.
    """

    def __init__(self, count: int) -> None:
        self.addresses = [f"10.77.0.{host + 1}" for host in range(count)]
        self._switch = f"{_PREFIX}-{os.getpid()}-switch"
        self.names = [f"{_PREFIX}-{os.getpid()}-h{host}" for host in range(count)]
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Hosts":
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        known = ["127.0.0.1 localhost", *(f"{at} h{n}" for n, at in enumerate(self.addresses))]
        for host, name in enumerate(self.names):
            _ip("netns", "add", name)
            (_FILES / name).mkdir(parents=True, exist_ok=True)
            (_FILES / name / "hosts").write_text("\n".join([*known, ""]))
            port = self._port(host)
            _ip(
                "-n",
                name,
                "link",
                "add",
                INTERFACE,
                "type",
                "veth",
                "peer",
                "name",
                port,
                "netns",
                self._switch,
            )
            _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
            _ip("-n", name, "address", "add", f"{self.addresses[host]}/24", "dev", INTERFACE)
            _ip("-n", name, "link", "set", INTERFACE, "up")
            # torchrun's agent and its processes talk there
            _ip("-n", name, "link", "set", "lo", "up")

    def start(
        self, host: int, *command: object, cwd: Path, **environment: str
    ) -> "subprocess.Popen[str]":
        """Start a program on a host, in its folder `cwd`. Its output is read as text."""
        cwd.mkdir(exist_ok=True)
        words = ["ip", "netns", "exec", self.names[host], "unshare", "--uts"]
        words += ["sh", "-c", _SET_NAME, "sh", f"h{host}", *map(str, command)]
        variables = {
            "XDG_CACHE_HOME": str(cwd / "cache"),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            **environment,
        }
        self._processes.append(
            subprocess.Popen(
                words,
                cwd=cwd,
                env={**_outside(), **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self._processes[-1]

    def lockstep(
        self, host: int, *arguments: object, cwd: Path, **environment: str
    ) -> "subprocess.Popen[str]":
        """Start the program lockstep on a host."""
        return self.start(
            host, sys.executable, "-m", "lockstep", *arguments, cwd=cwd, **environment
        )

    def interfaces(self) -> list[tuple[str, str]]:
        """Return the ends of all links: (namespace, interface)."""
        ends = [(name, INTERFACE) for name in self.names]
        return ends + [(self._switch, self._port(host)) for host in range(len(self.names))]

    def cut_off(self, host: int) -> None:
        """Take a host's link down: it neither sends nor receives, and no connection is closed."""
        _ip("-n", self._switch, "link", "set", self._port(host), "down")

    def connect(self, host: int) -> None:
        """Take a host's link up again, and return when it can reach another host.

        Packets of killed programs may still look for the other host's hardware address; until that
        fails, so does every new connection, with "No route to host".
        """
        _ip("-n", self._switch, "link", "set", self._port(host), "up")
        other = self.addresses[host - 1]
        words = ["ip", "netns", "exec", self.names[host], "bash", "-c", f"</dev/tcp/{other}/9"]
        until = time.monotonic() + 30
        while True:
            answer = subprocess.run(
                words, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True
            ).stderr
            if "Connection refused" in answer:  # No program listens there, but the host answers.
                return
            assert time.monotonic() < until, answer
            time.sleep(0.1)

    def kill(self, host: int) -> None:
        """Kill all processes of a host at once, and take its link down, as when its power fails."""
        self.cut_off(host)
        for process in self.processes(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def processes(self, host: int) -> list[int]:
        """Return the process ids of a host's programs."""
        return _processes(self.names[host])

    def _port(self, host: int) -> str:
        return f"port{host}"

    def __exit__(self, *_: object) -> None:
        for name in (*self.names, self._switch):
            _remove(name)
        for process in self._processes:
            process.communicate()


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def _processes(name: str) -> list[int]:
    return [int(word) for word in _ip("netns", "pids", name).split()]


def _remove(name: str) -> None:
    """Kill the processes in a namespace, and delete it. Nothing happens if there is none."""
    shutil.rmtree(_FILES / name, ignore_errors=True)
    if not (_NAMES / name).exists():
        return
    until = time.monotonic() + 10
    while (processes := _processes(name)) and time.monotonic() < until:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    _ip("netns", "del", name)
