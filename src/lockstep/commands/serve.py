"""`lockstep serve`."""

import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import typer

from lockstep import numerics
from lockstep.commands.predict import load_in_own_program
from lockstep.commands.shell import require_extra
from lockstep.errors import SIGNAL_BASE, LockstepError
from lockstep.messages import logger
from lockstep.runs.run import Run
from lockstep.text import plural

_EVERY = ("0.0.0.0", "::")  # every address of this machine
# as browsers send it, without a path
_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:\d+)?")


def serve(
    source: Path | str | Run,
    host: str = "127.0.0.1",
    port: int = 8000,
    checkpoint: str | int | None = None,
    confident: float = 0.95,
    device: str = "auto",
    trust_code: bool = False,
    allow_origin: str | None = None,
) -> Iterator[str]:
    """Classify pictures on a web page, and by POST /predict.

    Drop pictures on the page, or take one with the camera. The page shows the most probable
    classes, the picture as the network sees it, and whether the answer is confident. By default,
    only programs on this machine can reach the server, and pages of other sites cannot use it.
    Ctrl-C ends it.

    Examples:
      lockstep serve runs/photos
      lockstep serve model.safetensors --port 0
      curl --data-binary @cat.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8000/predict

    Args:
        source: Folder of a run, or a model.safetensors.
        host: Name or address to listen on. Addresses other than localhost are reachable from the
            network.
        port: Port to listen on; 0 takes any free one.
        checkpoint: The checkpoint after this many steps, or best: the one with the best accuracy of
            those that training evaluated. Default: the newest.
        confident: How often answers that are called confident should be right, for pictures like
            the training images: 0.95 means 95 times in 100.
        device: cpu, cuda, GPUs by number as in cuda:0,2, or auto: GPUs if there are any.
        trust_code: Execute code that a recipe file or a run names: a model or a dataset that is not
            built in.
        allow_origin: A site whose pages may use the server too, such as https://app.example.
    """
    if allow_origin is not None and not _ORIGIN.fullmatch(allow_origin):
        raise LockstepError(
            f"--allow-origin {allow_origin} is no origin: give the scheme and the host of "
            f"one site in lower case, without a path, such as https://app.example"
        )
    require_extra("serve", ("starlette", "uvicorn", "python_multipart"))
    numerics.prepare(1)  # before torch is imported
    from lockstep.classify import serve as web

    with web.listen(
        host, port
    ) as listening:  # A busy port is an error before the classifier is loaded.
        classifier = load_in_own_program(source, checkpoint, trust_code, device, confident)
        app = web.application(classifier, Path(str(source)).resolve().name, host, allow_origin)
        if not ip_address(listening.getsockname()[0]).is_loopback:
            logger.warning(f"--host {host}: everyone on the network can use this server")
        yield f"serving {classifier.origin}, {plural(len(classifier.classes), 'class')}"
        if host in _EVERY:
            yield (
                f"{web.url(web.network_address(), listening)}  for others on the network, such "
                f"as a phone"
            )
            host = "127.0.0.1"
        yield f"{web.url(host, listening)}  (Ctrl-C ends it)"
        number = web.serve_until_signal(web.server_of(app), listening)
    yield "ended"
    if number:
        raise typer.Exit(SIGNAL_BASE + number)
