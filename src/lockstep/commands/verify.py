"""`lockstep verify`."""

import secrets
from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain as joined, groupby
from pathlib import Path

import typer

from lockstep.commands.plan import existing, fields_of_run
from lockstep.commands.shell import record_of, require_writable
from lockstep.errors import CRASH, DATA, LockstepError, option
from lockstep.files import Record
from lockstep.jobs.specs import VerifySpec
from lockstep.messages import logger
from lockstep.runs.chain import chain_of, drawn
from lockstep.runs.run import Run
from lockstep.runs.statements import add, read, require_key, require_ssh
from lockstep.text import few, listed, plural

_ALIKE = (
    "this machine is like that of the run. Suspect a changed file, or the memory of one of them"
)
_WHAT = {
    "checkpoints": "the checkpoint after {step} steps",
    "result.json": "result.json, of the weights after {step} steps,",
    "model.safetensors": "model.safetensors, of the weights after {step} steps,",
}


def verify(
    run: Path | str | Run,
    start: int | None = None,
    every: bool = False,
    sample: int | None = None,
    seed: str | None = None,
    link: int | None = None,
    statement: Path | None = None,
    key: Path | None = None,
    statements: Path | None = None,
    signers: Path | None = None,
    data: Path | None = None,
    init: Path | None = None,
    processes: int | None = None,
    device: str = "auto",
    trust_code: bool = False,
) -> Iterator[str | Record]:
    """Compute steps of a run again, and compare every bit.

    By default, the steps are those between the two newest valid checkpoints, or from the newest one
    to the result. The contents of checkpoints, model.safetensors and result.json are compared, and
    the output names the fields that are not compared. Any number of processes can verify a run. The
    folder is only read, so it may be a copy, or belong to a run that is still training.

    A run of `lockstep train --keep all` is a chain of checkpoints. --all, --sample and --link
    replay its links. A link that is missing, exchanged or edited is an error.

    --statement writes down what was replayed, signed with your SSH key. --statements computes
    nothing: it says which links such statements of others cover.

    The exit code is 0 if all bits are the same, and 1 if some differ. Then the output names the
    first recorded step that differs, the tensors that differ in it, and what is different about
    this machine.

    Examples:
      lockstep verify runs/digits-1
      lockstep verify runs/big --from 400
      lockstep verify downloaded/run --from 0 --processes 4 --json
      lockstep verify downloaded/run --sample 3 --seed "a headline of today"
      lockstep verify downloaded/run --all --statement said.jsonl --key ~/.ssh/id_ed25519
      lockstep verify downloaded/run --statements said.jsonl --signers allowed_signers

    Args:
        run: Folder of a run. Nothing is written there.
        start: Start from this step, or from the last valid checkpoint before it, and end at the
            next checkpoint. 0 also computes the initial state. Default: the second newest
            checkpoint.
        every: Replay every link of the chain.
        sample: Replay this many links of the chain, drawn by SHA-256 from `seed` and the last link.
        seed: A text that the author of the run could not know in advance. Without `sample`, it
            draws one link. Default: a random text, which is printed.
        link: Replay the steps to this link of the chain from the link before it. The first is 1.
        statement: Append a line to this file that says which links of the chain were replayed, on
            which CPU, and whether all bits were the same.
        key: Sign the line with the SSH key in this file. ssh-keygen does it, and asks for a
            passphrase.
        statements: Read such lines, and say which links they cover, by whom.
        signers: Count the lines that keys in this file have signed. Its format is that of
            allowed_signers of ssh-keygen.
        data: Folder of the dataset. Default: that of training.
        init: File of the weights that the run started from, to compare its initial state too.
        processes: Number of processes. Default: as in training.
        device: cpu, cuda, GPUs by number as in cuda:0,2, or auto: GPUs if there are any.
        trust_code: Execute code that a recipe file or a run names: a model or a dataset that is not
            built in.
    """
    if bool(statements) != bool(signers):
        raise LockstepError("--statements and --signers go together: give both")
    replays = (start, every or None, sample, seed, link, statement, key)
    if statements and any(given is not None for given in replays):
        raise LockstepError(
            "--statements computes and writes nothing: leave out the other options, or --statements"
        )
    if statements and signers:
        yield from _said(existing(run), statements, signers)
        return
    fields = fields_of_run(
        run, trust_code, data=data, init=init, processes=processes, device=device
    )
    if not fields["recipe"].exact:
        raise LockstepError(
            f"{run} has exact = false in its recipe, so a second computation has other bits: only "
            "exact runs can be verified"
        )
    if seed == "":
        raise LockstepError(f"{option('seed')} is an empty text: give one to draw by")
    chosen = {"from": start, "all": every or None, "sample": sample, "link": link}
    if seed and not sample:
        sample = chosen["seed"] = 1
    given = [option(name) for name, value in chosen.items() if value is not None]
    if len(given) > 1:
        raise LockstepError(f"{listed(given)} choose what to replay: give one of them")
    if statement and (not given or start is not None):
        raise LockstepError(
            "--statement states links of the chain: choose them by --all, --sample 3 or --link 1"
        )
    if key and not statement:
        raise LockstepError("--key signs a statement: give --statement, too")
    if statement:
        require_writable(statement, True, "statement")
    if key:
        require_key(key)
    chain: Record = {}
    if given and start is None:
        chain, fields["parts"] = _chosen(existing(run), sample, seed, link)
    if data is None and fields["placement"].data:
        chain["data"] = str(fields["placement"].data)
    record = {**record_of(VerifySpec(**fields, start=start)), **chain}
    failed = None
    if statement:
        try:
            add(statement, _statement(record), key)
        except LockstepError as error:  # It must not take the result away.
            failed = error
    try:
        yield record
        yield from lines_of(record)
        if failed and record["same"]:
            raise failed
        if failed:
            logger.warning(str(failed))
        elif statement:
            yield f"  statement {'signed' if key else 'not signed'}, the last line of {statement}"
    finally:  # also if the reader of a pipe has gone
        if not record["same"]:
            raise typer.Exit(CRASH)


def _chosen(
    run: Run, sample: int | None, seed: str | None, link: int | None
) -> tuple[Record, list[tuple[int, int]]]:
    """Return the record of the run's chain with the numbers of the links to replay, by default of
    all, and the steps of each.

    Raises: LockstepError if the chain does not fit, or has fewer links.
    """
    links = chain_of(run)
    count = len(links) - 1
    if (sample or link or 1) > count:
        raise LockstepError(
            f"{run.path} has {plural(count, 'link')} after its initial state: choose of these", DATA
        )
    numbers = [link] if link else [*range(1, count + 1)]
    if sample:
        seed = seed or secrets.token_hex(8)
        numbers = drawn(links, sample, seed)
    steps = [one.step for one in links]
    # The initial state and the result cost no step, and are always compared.
    parts = [(steps[number - 1], steps[number]) for number in numbers]
    before = [(0, 0)]
    after = [(steps[-1], steps[-1])] if numbers[-1] < count else []
    chain = {"steps": steps, "sha256": links[-1].sha256, "replayed": numbers, "seed": seed}
    return {"chain": chain}, [*before, *parts, *after]


def _statement(record: Record) -> Record:
    """Return what a statement says of the `record` of a verification of links."""
    chain = record["chain"]
    return {
        "recipe_digest": record["recipe_digest"],
        "last": {"step": chain["steps"][-1], "sha256": chain["sha256"]},
        "links": chain["replayed"],
        "seed": chain["seed"],
        "steps": sum(end - begin for begin, end in record["parts"]),
        "same": record["same"],
        **record["replayed_on"],
    }


def _said(run: Run, statements: Path, signers: Path) -> Iterator[str | Record]:
    """Yield which links of the chain the statements of allowed signers cover, and which lines do
    not count.
    """
    require_ssh(statements=statements, signers=signers)
    links = chain_of(run)
    lines = [*read(statements, links, run.recipe().digest(), signers)]
    counted = [line for line in lines if not line.problem]
    others = [line for line in counted if not line.statement["same"]]
    signed = {
        number: sorted({str(line.signer) for line in counted if line.covers(number)})
        for number in range(1, len(links))
    }
    yield {
        "run": str(run.path),
        "links": signed,
        "last": links[-1]._asdict(),
        "statements": [vars(line) for line in lines],
    }
    covered = plural(sum(map(bool, signed.values())), "link")
    by = plural(len({*joined(*signed.values())}), "signer")
    bits = ": the same bits" if any(signed.values()) else ""
    yield f"{covered} of {len(signed)} replayed by {by}{bits}"
    for names, numbers in groupby(signed, key=lambda number: few(signed[number])):
        first, *more = [*numbers]
        which = f"links {first} to {more[-1]}" if more else f"link {first}"
        yield f"  {which:14} {names or 'nobody'}"
    for line in lines:
        stated = f"  {f'line {line.number}':14} "
        if line.problem:
            yield f"{stated}does not count: {line.problem}"
            continue
        bits = "the same bits" if line.statement["same"] else "other bits"
        yield f"{stated}{line.signer}: {bits} on {line.statement.get('device')}"
        if line.gap:
            yield f"{stated}was added after a line that is not before it: removed, moved or changed"
    yield f"  last link      {links[-1].sha256}, after {links[-1].step} steps"
    if others or any(line.problem or line.gap for line in lines):
        raise typer.Exit(CRASH if others else DATA)


def lines_of(record: Record) -> Iterator[str]:
    """Yield the result in words."""
    counts, same, chain = record["compared"], record["same"], record.get("chain")
    compared = [
        plural(count, "checkpoint") if name == "checkpoints" else _WHAT[name].partition(",")[0]
        for name, count in counts.items()
    ]
    verdict = "the same bits" if same else "other bits"
    begin, end = record["parts"][0]
    replayed = f"steps {begin} to {end} of {record['steps']}"
    if chain:
        numbers, count = chain["replayed"], len(chain["steps"]) - 1
        steps = sum(end - begin for begin, end in record["parts"])
        replayed = f"{plural(len(numbers), 'link')} of {count} ({few([*map(str, numbers)])}), "
        replayed += f"{steps} of {record['steps']} steps,"
    yield f"{replayed} replayed: {verdict}"
    yield f"  compared  {', '.join(compared)}" + (
        "" if same else f"; {len(record['differences'])} differ"
    )
    stated = [f"{listed(names)} of {what}" for what, names in record["stated"].items() if names]
    if not record["complete"]:
        steps = plural(record["steps"], "step")
        yield f"  missing   result.json and model.safetensors: {steps} complete this run"
    elif "result.json" not in counts:
        stated += ["result.json", "model.safetensors"]
    yield f"  stated    and not compared: {'; '.join([*stated, 'all other files'])}"
    if "data" in record:
        yield f"  data      {record['data']}, which the run names: {option('data')} was not given"
    if record["initial_weights"] != "known":
        yield "  initial   not compared: the file of weights that the run starts from is not here"
    if chain:
        yield f"  chain     {chain['sha256']} is its last link, after {chain['steps'][-1]} steps"
        if chain["seed"]:
            yield f"  drawn     by {option('seed')} {chain['seed']!r}"
    if same:
        return
    first = record["differences"][0]
    name = _WHAT[first["what"]].format(step=first["step"])
    if chain and first["what"] == "checkpoints":
        name = f"link {bisect_left(chain['steps'], first['step'])}, {name},"
    yield f"  first     {name} differs"
    yield f"            recorded {first['recorded']}, replayed {first['replayed']}"
    for difference in record["differences"]:
        for kind in ("metadata", "tensors"):
            if names := difference.get(kind):
                differ = f"{len(names)} differ after {difference['step']} steps: {few(names)}"
                yield f"  {kind:9} {differ}"
    machine = record["machine"] or {"probe_equal": None, "changes": []}
    probes = {True: "the arithmetic probe is equal", False: "the arithmetic probe differs"}
    probe = probes.get(machine["probe_equal"], "no arithmetic probe is recorded")
    yield f"  machine   {probe}: {'; '.join(machine['changes']) or _ALIKE}"
