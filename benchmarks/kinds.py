"""The kind of a CPU: its generation and its fastest units. Measurements of different kinds
are kept apart.
"""

import re
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
UNITS = {  # The first of these flags that a CPU has names its units.
    "amx_bf16": "AMX",
    "avx512_bf16": "AVX-512 with bfloat16",
    "avx512_vnni": "AVX-512 with VNNI, no bfloat16",
    "avx512f": "AVX-512, no VNNI",
    "avx2": "AVX2",
    "bf16": "bfloat16",  # on ARM
    "asimd": "no bfloat16",
}
# Linux names no maker of an ARM CPU.
MAKERS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel", "": "ARM"}
ZEN = (  # generation, family, models: as Linux has them in arch/x86/kernel/cpu/amd.c
    ("Zen 2", 23, (range(0x30, 0x50), range(0x60, 0x80), range(0x90, 0x92), range(0xA0, 0xB0))),
    ("Zen", 23, (range(0x30), range(0x50, 0x60))),
    ("Zen 4", 25, (range(0x10, 0x20), range(0x60, 0xB0))),
    ("Zen 3", 25, (range(0x10), range(0x20, 0x60))),
    ("Zen 5", 26, (range(0x30), range(0x40, 0x50), range(0x60, 0x80))),
)


def kind(cpuinfo: str | None = None) -> str:
    """Return the kind of the CPU that `cpuinfo` describes, or of this one: "AMD Zen 4 (AVX-512 with
    bfloat16)".

    cpuinfo: the text of /proc/cpuinfo. An AMD CPU has its generation, or its family if the
    generation is unknown.
    """
    text = CPUINFO.read_text() if cpuinfo is None else cpuinfo
    found = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in text.splitlines())
    }
    vendor, flags = (
        found.get("vendor_id", ""),
        (found.get("flags") or found.get("Features", "")).split(),
    )
    name = MAKERS.get(vendor, vendor)
    if name == "AMD":
        family, model = int(found["cpu family"]), int(found["model"])
        zen = (
            title
            for title, number, models in ZEN
            if number == family and any(model in some for some in models)
        )
        name = f"AMD {next(zen, f'family {family}')}"
    units = next((units for flag, units in UNITS.items() if flag in flags), "no vector units")
    return f"{name} ({units})"


def slug(kind: str) -> str:
    """Return `kind` as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")
