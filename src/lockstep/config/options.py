"""Options of the commands and of lockstep.train that change the recipe: the type of each, and its help.

All other settings of the recipe are given as --set NAME=VALUE, in Python as `settings`. This module imports nothing, so
that a command's help appears at once.
"""

RECIPE_OPTIONS: dict[str, tuple[type, str]] = {
    "towers": (int, "Towers (logical replicas). Keeps the tower batch."),
    "batch": (int, "Images per step, over all towers."),
    "tower_batch": (int, "Images per step for each tower; or give --batch."),
    "epochs": (float, "Length of the run; or give --steps."),
    "steps": (int, "Length of the run; or give --epochs."),
    "lr": (float, "Base learning rate."),
    "seed": (int, "Seed of initial weights, order, augmentation and dropout."),
    "model": (str, "A built-in model, or your own as package.module:function."),
    "dataset": (str, "A built-in dataset, or your own as package.module:function."),
    "precision": (str, "float32, bfloat16, float16 (fp32, bf16, fp16), or auto: chosen by the hardware."),
    "portable": (
        bool,
        "Compute the same bits on every kind of CPU tried, in float32, at about twice the time; or --no-portable.",
    ),
}
