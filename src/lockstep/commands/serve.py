"""`lockstep serve`."""

from importlib.util import find_spec
from typing import Annotated, Any

import typer

from lockstep import numerics
from lockstep.commands.options import Checkpoint, Source, TrustCode, options_from
from lockstep.commands.predict import load_in_own_program
from lockstep.errors import ENVIRONMENT, LockstepError, printable
from lockstep.messages import logger
from lockstep.words import extra, plural

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EXTRA = ("starlette", "uvicorn", "python_multipart")


@options_from(placement=("device",))
def serve(
    source: Source,
    host: Annotated[
        str, typer.Option(help="The name or address to listen at. Others than these of this machine alone are public.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any that is free.")] = 8000,
    checkpoint: Checkpoint = None,
    trust_code: TrustCode = False,
    **options: Any,
) -> None:
    """Classify pictures on a page, and by POST /predict.

    On the page you drop pictures, or take one with the camera. It shows the most probable classes, the picture as the
    network sees it, and whether it is unlike the training images. Only this machine can use the page, and no page of
    another site, unless --host says otherwise. Ctrl-C ends it.

    \b
    Examples:
      lockstep serve runs/photos
      lockstep serve model.safetensors --port 0
      curl --data-binary @cat.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8000/predict
    """
    if missing := [name for name in _EXTRA if find_spec(name) is None]:
        raise LockstepError(f"serve needs {', '.join(missing)}: {extra('serve')}", ENVIRONMENT)
    numerics.prepare(1)  # before torch is imported
    from lockstep.classify import serve as web

    with web.listen(host, port) as listening:  # A busy port is an error before the classifier is loaded.
        classifier = load_in_own_program(source, checkpoint, trust_code, options["device"])
        app = web.application(classifier, source.resolve().name, host)
        if host not in _LOOPBACK:
            logger.warning(f"--host {host}: everyone on the network can use this server")
        print(printable(f"serving {classifier.origin}, {plural(len(classifier.classes), 'class')}"), flush=True)
        print(f"{web.url(host, listening)}  (Ctrl-C ends it)", flush=True)
        web.serve_until_signal(web.server_of(app), listening)
    print("ended", flush=True)
