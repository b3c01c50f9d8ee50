"""`lockstep export`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lockstep.cli.options import Code, Json, options_from, require_new_file
from lockstep.errors import printable
from lockstep.words import size


@options_from(placement=("data",), defaults={"data": "that of training"})
def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|MODEL", help="A run's folder, or a model file such as model.safetensors.")
    ],
    format: Annotated[
        Literal["onnx", "pt2"], typer.Option(help="onnx, for onnxruntime and others, or pt2, for torch.export.load.")
    ] = "onnx",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="A new file. Default: NAME.onnx or NAME.pt2.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="best|STEP", help="The checkpoint after STEP steps, or the best.")
    ] = None,
    model: Code = None,
    dataset: Code = None,
    json_output: Json = False,
    **options: Any,
) -> None:
    """Write a classifier to one file that needs no Lockstep, and compare it with Lockstep on all test images.

    The file maps images, uint8 [N, H, W, C] of any number and size, to probabilities. It contains the preprocessing,
    and computes in float32. If its probabilities differ by more than 0.001, it is not written.

    Where a recipe has test_views=flip-translate-unsure, all images get these views, and not a quarter of a batch.

    \b
    Examples:
      lockstep export runs/digits-1                          writes digits-1.onnx
      lockstep export model.safetensors --format pt2 -o digits.pt2 --data DIR
    """
    import lockstep
    from lockstep import numerics
    from lockstep.inference.origin import recipe_of

    if output is None:
        name = source.resolve()
        output = Path(f"{name.stem if name.is_file() else name.name}.{format}")
    require_new_file("--output", output)
    recipe = recipe_of(source)
    numerics.prepare(recipe.threads_per_tower)  # before torch is imported
    numerics.configure(recipe.threads_per_tower, recipe.exact)
    if not json_output:
        print(
            printable(f"exporting {source}: torch traces the network, and then its file is compared with Lockstep"),
            flush=True,
        )
    record = lockstep.export(source, output, format, checkpoint, data=options["data"], model=model, dataset=dataset)
    if json_output:
        print(json.dumps(asdict(record)))
        return
    print(
        f"  file        {record.file}, {size(record.bytes)}, weights {record.weights_sha256[:16]}\n"
        f"  accuracy    {record.accuracy:.2%} of {record.examples:,} {record.split} images; lockstep eval: "
        f"{record.accuracy_lockstep:.2%}\n"
        f"  difference  {record.otherwise:,} images classified otherwise; probabilities differ by up to "
        f"{record.difference:.1e} in float32 (allowed: {record.tolerance:g})\n"
        f"  speed       {record.images_per_s:,.0f} images/s; lockstep predict: {record.images_per_s_lockstep:,.0f}"
    )
