"""How fast this machine multiplies fp32 matrices, the bulk of all work on CPU.

    python benchmarks/matmul.py [RESULT.json]

Prints GFLOP/s by size on one MLX stream and on all, and writes them as JSON.
"""

import json
import sys
from pathlib import Path

from app.doctor import matmul_speed

SIZES = (256, 576, 1024, 2048)


def main(result: Path) -> None:
    """Measures, prints, writes."""
    rows = [matmul_speed(size) for size in SIZES]
    print(f"{'size':>6} {'one stream':>11} {'all streams':>12}")
    for row in rows:
        print(f"{row['size']:>6} {row['gflops_one_stream']:>11} {row['gflops_all_streams']:>12}")
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("build/bench/matmul.json"))
