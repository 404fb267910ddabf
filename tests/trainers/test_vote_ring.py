"""The majority vote between real processes, over MLX's ring on loopback."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import tiny

ROOT = Path(__file__).parents[2]


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def run_workers(folder: Path, count: int) -> list[dict[str, Any]]:
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(count)]))
    command = [sys.executable, "-m", "tests.trainers.vote_worker", str(folder)]
    shared = os.environ | {"MLX_HOSTFILE": str(hosts)}
    workers = [
        subprocess.Popen(
            command, cwd=ROOT, env=shared | {"MLX_RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(count)
    ]
    try:
        said = [worker.communicate(timeout=120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return [json.loads(text) for text in said]


@pytest.mark.parametrize("count", [2, 3])
def test_processes_with_different_data_end_with_identical_weights(count: int, tmp_path: Path):
    results = run_workers(tiny.build(tmp_path / "llama", "llama"), count)
    assert len({r["digest"] for r in results}) == 1
    assert len({r["loss"] for r in results}) == count
    for result in results:
        lower, upper = result["coordinates"]
        assert result["sent"] == [upper, lower, upper, lower]  # a byte per coordinate, in one sum
