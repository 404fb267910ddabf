"""The processes of a pool: what they share, and that they end, however."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.verifiers import misbehaving
from tests.verifiers.misbehaving import FOREVER, LONG, gone, many, processes, says
from verifiers import GraderPool, PoolClosed

CHECK: dict[str, Any] = {"type": "string_check"}


def test_whatever_a_worker_started_is_killed_with_it_and_leaves_no_zombie(
    hasty: GraderPool,
) -> None:
    assert many(hasty, ["orphan"])[0].error_kind == "timeout"
    left = processes(hasty)
    assert all(one.name() != "sleep" for one in left)
    assert all(one.status() != psutil.STATUS_ZOMBIE for one in left)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_worker_has_one_socket_only_so_it_sees_when_the_supervisor_goes(
    hasty: GraderPool,
) -> None:
    many(hasty, ["hang", "crash", "hang too", "fine"])
    _, *workers = processes(hasty)
    for one in workers:
        links = [str(link.readlink()) for link in Path(f"/proc/{one.pid}/fd").iterdir()]
        assert sum(link.startswith("socket:") for link in links) == 1


def test_workers_import_neither_mlx_nor_the_service(pool: GraderPool) -> None:
    assert pool.grade(CHECK, says("a"), {"answer": "a"}).passed
    maps = Path(f"/proc/{processes(pool)[0].pid}/maps")
    if maps.exists():
        assert "mlx" not in maps.read_text()
    code = "import verifiers.supervisor, sys; print({'mlx', 'app'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_a_supervisor_that_dies_is_replaced_and_the_call_is_served() -> None:
    with misbehaving.pool(deadline_s=FOREVER) as pool:
        assert many(pool, ["fine"])[0].passed
        dead = processes(pool)
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(many, pool, ["sleep 1", "echo 0.5"])
            os.kill(dead[0].pid, signal.SIGKILL)
            assert [grade.score for grade in call.result()] == [1.0, 0.5]
        assert gone(dead)


def test_a_supervisor_that_dies_of_every_attempt_makes_errored_grades(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("verifiers.pool._BOOT", "pass")
    with GraderPool() as pool:
        grades = pool.grade_many(CHECK, [(says("a"), {"answer": "a"}), (says("b"), {})])
        assert [grade.error_kind for grade in grades] == ["sandbox", "sandbox"]
        assert pool.references(CHECK, [{"answer": "a"}]) == [None]


def test_closing_ends_all_processes_also_those_that_hang() -> None:
    with (
        misbehaving.pool(deadline_s=FOREVER) as pool,
        ThreadPoolExecutor(1) as threads,
    ):
        assert many(pool, ["fine"])[0].passed
        call = threads.submit(many, pool, ["hang"])
        running = processes(pool)
        pool.close()
        with pytest.raises(PoolClosed):
            call.result()
        assert gone(running)
        pool.close()  # a second time does nothing
        with pytest.raises(PoolClosed):
            many(pool, ["fine"])
        with pytest.raises(PoolClosed):
            pool.references(CHECK, [{}])


OWNER = """
import sys
sys.path[:0] = sys.argv[1:]
from tests.verifiers import misbehaving
from verifiers import Sample
with misbehaving.pool(deadline_s=1000.0) as pool:
    pool.grade(misbehaving.MISBEHAVE, Sample(output_text="fine"), {})
    print(pool._supervisor._process.pid, flush=True)
    pool.grade(misbehaving.MISBEHAVE, Sample(output_text="hang"), {})
"""


def test_the_processes_end_when_the_service_is_killed() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, *sys.path], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        supervisor = psutil.Process(int(owner.stdout.readline()))
    running = [supervisor, *supervisor.children(recursive=True)]
    assert len(running) >= 3
    owner.kill()
    owner.wait()
    assert gone(running)


@pytest.mark.parametrize("act", ["orphan", "compute"])
def test_what_workers_started_ends_when_the_supervisor_is_killed(act: str) -> None:
    with misbehaving.pool(deadline_s=FOREVER) as pool, ThreadPoolExecutor(1) as threads:
        call = threads.submit(many, pool, [act])
        started = {"orphan": "sleep", "compute": "monty"}[act]
        supervisor = processes(pool)[0]
        while not any(one.name() == started for one in supervisor.children(recursive=True)):
            assert not call.done()
        before = processes(pool)
        supervisor.kill()
        try:
            assert gone(before)
        finally:
            pool.close()


def test_a_guard_that_is_killed_is_replaced_with_its_supervisor() -> None:
    with misbehaving.pool(workers=1, deadline_s=LONG) as pool:
        assert many(pool, ["fine"])[0].passed
        first, *below = processes(pool)
        guard = min(below, key=lambda one: (one.create_time(), one.pid))
        guard.kill()
        assert gone([guard])
        assert many(pool, ["exit", "echo 0.5"])[1].score == 0.5  # needs another worker
        assert gone([first])
        assert many(pool, ["echo 0.25"])[0].score == 0.25
