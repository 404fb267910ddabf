"""`mlx_lm.server` on our BLAS, allocator and settings, with all cores for its one stream.

python -m benchmarks.mlx_server --model FOLDER --port PORT
"""

import runpy
import sys

from app.engine import platform

if __name__ == "__main__":
    platform.set_blas_threads(platform.STATUS.cores)
    sys.argv[0] = "mlx_lm.server"
    runpy.run_module("mlx_lm.server", run_name="__main__", alter_sys=False)
