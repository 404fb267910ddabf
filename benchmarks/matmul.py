"""How fast this machine multiplies fp32 matrices, the bulk of all work on CPU.

    python -m benchmarks.matmul [--quick] [--json RESULT.json]

Prints GFLOP/s by size on one MLX stream and on all, and writes them as JSON.
"""

from pathlib import Path

from app.doctor import matmul_speed
from benchmarks.measure import options, table, write

SIZES = (256, 576, 1024, 2048)


def main(quick: bool, target: Path) -> None:
    """Measures, prints, writes."""
    rows = [matmul_speed(size, 0.1 if quick else 0.5) for size in SIZES]
    table(
        ("size", "one stream", "all streams"),
        [(row["size"], row["gflops_one_stream"], row["gflops_all_streams"]) for row in rows],
    )
    write(target, {"gflops": rows})


if __name__ == "__main__":
    arguments = options("fp32 matmul by size.", "matmul").parse_args()
    main(arguments.quick, arguments.json)
