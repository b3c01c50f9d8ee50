"""The command line: text -> (Recipe, Placement) -> a command. The only place that prints errors and exits."""

import signal
import sys
from typing import Annotated

import typer

from lockstep.cli.bench import bench
from lockstep.cli.data import app as data
from lockstep.cli.evaluate import evaluate
from lockstep.cli.hints import HintingCommand, HintingGroup
from lockstep.cli.recipes import recipes, show
from lockstep.cli.train import train
from lockstep.errors import CRASH, DATA, SIGNAL_BASE, USAGE, LockstepError, printable
from lockstep.files import reserve_standard_streams

app = typer.Typer(
    name="lockstep",
    cls=HintingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="""Train image classifiers synchronously on one or many devices, with one result.

The recipe decides the bits of the weights; the placement (devices, processes, intervals) decides only the speed.

\b
Examples:
  lockstep train                                   handwritten digits, no download
  lockstep train cifar10-tutorial --towers 2       TensorFlow's CIFAR-10 tutorial on two towers
  lockstep eval runs/digits-1
  lockstep recipes
  lockstep data list
  lockstep --install-completion                    names and options by the Tab key, in new shells

\b
Exit codes: 0 done, 1 crash or a loss that is not finite, 2 usage or recipe, 3 data, 4 environment or processes,
129 SIGHUP, 130 Ctrl-C, 143 SIGTERM (saved).""",
)

app.command(cls=HintingCommand, short_help="Train a classifier: a recipe, your own recipe file, or a run to continue.")(
    train
)
app.command("eval", cls=HintingCommand, short_help="Evaluate a checkpoint of a run, or each new one.")(evaluate)
app.command(cls=HintingCommand, short_help="Measure training speed, by number of processes, and take a step apart.")(
    bench
)
app.command(cls=HintingCommand, short_help="List the recipes with their measured results.")(recipes)
app.command(cls=HintingCommand, short_help="Print a recipe, as a file that train takes.")(show)
app.add_typer(data, name="data", short_help="Download, list and check data sets.")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"lockstep {installed('lockstep')}")
        raise typer.Exit


def main() -> None:
    """The `lockstep` program: a user's mistake is one message and its exit code; a bug keeps its traceback (1)."""
    reserve_standard_streams()
    try:
        app(prog_name="lockstep")
    except LockstepError as error:
        sys.stdout.flush()
        if _tells(error.code):
            print(printable(f"lockstep: {error}", keep="\n"), file=sys.stderr)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(SIGNAL_BASE + signal.SIGINT)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; nothing is left to say
        sys.exit(CRASH)


def _tells(code: int) -> bool:
    """Whether this process prints an error: in an outer launch all processes have the same one, or all of a host."""
    from lockstep.processes.world import World

    try:
        world = World.from_environment()
    except LockstepError:  # it is this error
        return True
    return world.process == 0 or (code != USAGE and (code != DATA or world.local == 0))
