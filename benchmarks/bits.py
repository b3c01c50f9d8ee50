"""The hash of whole `digits` on this kind of CPU: `python -m benchmarks.bits`."""

from benchmarks.common import lockstep, save, train, warn
from benchmarks.kinds import kind, slug


def main() -> None:
    warn()
    found = train("digits", data=None)["weights_sha256"]
    units = lockstep("doctor", data=None)["units"]
    by = {product: unit for unit, products in units.items() for product in products}
    backend = ", ".join(f"{by[name]} for {name}" for name in ("matrix products", "convolutions"))
    head = ["kind of CPU", "weights of whole `digits`", "backend"]
    row = [kind(), f"`{found[:8]}`", backend]
    table = {"head": head, "rows": [row]}
    save(f"portable-digits-{slug(kind())}", {"weights_sha256": found, "table": table})
    print(*row, sep="  ")


if __name__ == "__main__":
    main()
