"""The command line: text -> arguments -> one call. The only place that prints errors and exits."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from socket import gethostname
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

import lockstep
from lockstep import errors
from lockstep.commands.parameters import command_of
from lockstep.config.options import FolderOptions, PlacementOptions, RecipeOptions
from lockstep.errors import (
    CRASH,
    DATA,
    ENVIRONMENT,
    USAGE,
    LockstepError,
    called,
    option,
    printable,
)
from lockstep.files import (
    given,
    note_once,
    refused,
    require_permission,
    reserve_standard_streams,
)
from lockstep.launch.world import World
from lockstep.messages import DISTRIBUTION, command, handled, on_stderr

_HELP = ("-h", "--help", "--help-all")


class _Commands(TyperGroup):
    """The commands. The word of another program gets the name of ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print a help text that is asked for, or read the options before a command. To read any
        option, typer imports pydantic.
        """
        command: Any = self
        of_command = ctx
        for word in args:
            if word in _HELP:
                print(command.get_help(of_command))
                ctx.exit()
            below = getattr(command, "commands", {})
            if below and word not in below:
                break
            if below:
                command, settings = below[word], {**below[word].context_settings, "obj": args}
                of_command = typer.Context(command, of_command, word, **settings)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that `args` begins with. Raises: LockstepError for another's word."""
        if args[0] not in self.commands and (other := called(args[0])) in self.commands:
            raise LockstepError(f"no command {args[0]!r}: did you mean {command(other)}?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="lockstep",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="""Train image classifiers on 1 to N processes, with bit-identical weights for every N.

The recipe decides the weights, to the last bit. The placement (number of processes, intervals)
decides only the speed. In native arithmetic, the low-order bits differ between kinds of CPU or GPU.

\b
Examples:
  lockstep train                        train on handwritten digits, in 10 to 40 s
  lockstep eval runs/digits-1           evaluate that run
  lockstep predict runs/digits-1 a.png  classify images
  lockstep serve runs/digits-1          classify pictures on a web page
  lockstep train cifar10 --name mine    train on CIFAR-10, downloaded once
  lockstep train runs/mine --resume     continue after Ctrl-C
  lockstep verify runs/mine             compute its last steps again, and compare every bit
  lockstep doctor                       check that this machine computes the right bits
  lockstep recipes                      list recipes with measured results
  lockstep --install-completion         complete commands with the Tab key

\b
Exit codes:
  0  done                               4    environment or processes
  1  crash, or non-finite loss; or      129  stopped by SIGHUP, state saved
     verify found different bits        130  stopped by Ctrl-C, state saved
  2  wrong usage or recipe              143  stopped by SIGTERM, state saved
  3  missing or damaged data""",
)

COMMANDS = {
    "eval": command_of("evaluate", "evaluate", within="evaluate_or_watch"),
    "predict": command_of("predict", "predict"),
    "serve": command_of("serve", "serve", json=False),
    "report": command_of("report", "report", json=False),
    "export": command_of("export", "export"),
    "push": command_of("hub", "push"),
    "verify": command_of("verify", "verify"),
    "doctor": command_of("doctor", "doctor"),
    "recipes": command_of("recipes", "recipes"),
    "show": command_of("recipes", "show"),
}
# The argument of `train`, and the options that most people use.
_USUAL = (
    "what",
    "model",
    "epochs",
    "lr",
    "seed",
    "towers",
    "portable",
    "settings",
    "init",
    "name",
    "resume",
    "data",
    "processes",
)


class _Command(TyperCommand):
    """A command. The option of another program gets the name of ours."""

    settings: ClassVar[dict[str, list[str]]] = {}  # of its context

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments of the command."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # Of an unknown option it has these attributes.
            from lockstep.config.recipe import Recipe  # --help does not wait for it
            from lockstep.schema import problem_of

            if cause := getattr(error.__cause__, "errors", None):  # pydantic's, of a value
                item = cause()[0]
                vars(error)["message"] = f"got {item['input']!r}: {problem_of(item)}"
            other, own = called(getattr(error, "option_name", "")), {p.name for p in self.params}
            if other in own:
                vars(error)["possibilities"] = [option(other)]
            elif "settings" in own and other in Recipe.model_fields:
                vars(error)["possibilities"] = [option("settings", f"{other}=...")]
            elif " " in other:
                vars(error)["possibilities"] = [other]
            raise


class _Train(_Command):
    """The command `train`: --help shows the options that most people use, --help-all shows all."""

    settings: ClassVar = {"help_option_names": [*_HELP]}

    def get_help(self, ctx: Any) -> str:
        """Return the help that is asked for."""
        parameters: list[Any] = self.params
        for parameter in parameters:
            parameter.hidden = parameter.name not in _USUAL and "--help-all" not in ctx.obj
        return super().get_help(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments of the command."""
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if rest:
            raise LockstepError(_too_many([ctx.params["what"], *rest]))
        return rest


def _too_many(arguments: Sequence[str]) -> str:
    """Return the message for several arguments where `train` takes one: to give the folder that
    holds them.
    """
    parents = {given(argument).parent for argument in arguments if given(argument).is_dir()}
    remedy = "one, or a folder that holds a folder of photos for each class"
    if len(parents) == 1 and Path() not in parents:
        remedy = f"the folder that holds them, {parents.pop()}: each folder in it is a class"
    return (
        f"train takes one recipe, run or folder of photos, and got {len(arguments)}: "
        f"{', '.join(arguments)}: give {remedy}"
    )


DATA_COMMANDS = {
    "fetch": command_of("data", "fetch"),
    "check": command_of("data", "check", FolderOptions.__annotations__),
}
data = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Download and check datasets.

`train` and `eval` download their dataset on first use, unless --data names its folder. Two
environment variables apply: LOCKSTEP_DATA is the folder for all datasets (default: the user's
cache). LOCKSTEP_MIRROR is an address that is tried before the official ones, as
LOCKSTEP_MIRROR/FILE. Its files must have the official checksums.

\b
Examples:
  lockstep data fetch cifar10
  lockstep data check photos""",
)
_OF_TRAIN = (
    RecipeOptions.__annotations__
    | FolderOptions.__annotations__
    | {"data": Path}
    | PlacementOptions.__annotations__
)
for group, kind, commands in (
    (app, _Train, {"train": command_of("train", "train", _OF_TRAIN)}),
    (app, _Command, COMMANDS),
    (data, _Command, DATA_COMMANDS),
):
    for name, function in commands.items():
        summary = (function.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        group.command(name, cls=kind, short_help=summary, context_settings=kind.settings)(function)
app.add_typer(data, name="data", short_help="Download and check datasets.")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"lockstep {lockstep.__version__}")
        raise typer.Exit


def _require_own_package() -> None:
    """Raise a LockstepError if another distribution has written its `lockstep/__init__.py` over
    this one, or taken it away.

    On the package index, `lockstep` and `lockstep-ml` have a module of this name.
    """
    if "__getattr__" in vars(lockstep):
        return
    from importlib.metadata import packages_distributions

    owners = {*packages_distributions().get("lockstep", ())} - {DISTRIBUTION}
    others = " ".join(sorted(owners)) or "lockstep"
    raise LockstepError(
        f"another package has replaced a file of {DISTRIBUTION}, as it has a module lockstep too: "
        f"pip uninstall {others}, then pip install --force-reinstall --no-deps {DISTRIBUTION}",
        ENVIRONMENT,
    )


def main() -> None:
    """Run the `lockstep` program.

    A LockstepError ends it with one message and the error's exit code. Any other exception keeps
    its traceback.
    """
    errors.in_python = False
    reserve_standard_streams()
    # Where it is ignored, the exit codes of workers would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        world = World.from_environment()
    except LockstepError:  # The environment itself is the error, which the command reports.
        world = World()
    try:
        with handled(on_stderr if world.process == 0 else lambda text: None):
            _require_own_package()
            if sys.flags.optimize > 1:
                note_once("docstrings", "python -OO removes the help texts of options and commands")
            try:
                app(prog_name="lockstep")
            except BrokenPipeError:
                raise
            except OSError as error:
                require_permission(Path(str(error.filename)), error)
                raise refused(error) from None
    except LockstepError as error:
        sys.stdout.flush()
        name = "lockstep"
        if world.processes > 1:
            name += f" (process {world.process} on host {gethostname()})"
        # All processes of a host have the same mistakes in usage and data: one prints them.
        if world.local == 0 or error.code not in (USAGE, DATA):
            on_stderr(printable(f"{name}: {error}", keep="\n"))
        sys.exit(error.code)
    except BrokenPipeError:
        # the reader of stdout is gone: suppress the error of the interpreter's last flush
        sys.stderr.close()
        sys.exit(CRASH)
