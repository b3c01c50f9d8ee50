"""The Hugging Face Hub, as the library huggingface_hub reaches it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lockstep.errors import DATA, ENVIRONMENT, USAGE, LockstepError
from lockstep.files import no_room


@contextmanager
def reaching(address: str, login: str, content: str) -> Iterator[None]:
    """Turn any error of the Hub's library into one sentence about the `address`. It has no text of
    the library or of a server: only the library knows the user's token, and nothing is to show it.

    `login` says how to log in, and `content` what the user must have uploaded there.
    """
    from huggingface_hub import errors
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        yield
    except errors.HFValidationError:
        problem, code = "the Hub has no such names: give hf://OWNER/NAME, as it shows it", USAGE
    except errors.RevisionNotFoundError:
        problem, code = "there is no such revision: give a commit, a branch or a tag", DATA
    except errors.RemoteEntryNotFoundError:
        problem, code = f"it has no {content}", DATA
    except Exception as error:  # of httpx and hf_xet, too
        status = getattr(getattr(error, "response", None), "status_code", None)
        problem, code = f"the Hub cannot be reached ({type(error).__name__})", ENVIRONMENT
        if isinstance(error, OSError) and (no_room(error) or isinstance(error, PermissionError)):
            problem = f"its files cannot be written: {error.strerror}"
        elif status in (401, 403, 404):
            problem = f"it does not exist, or is not yours: correct the name, or {login}"
            code = DATA
        elif status:
            problem = f"the Hub answers with status {status}: try it again later"
    else:
        return
    raise LockstepError(f"{address}: {problem}", code) from None
