"""How fast answers are graded, what a bomb costs, and what others wait for it.

    python -m benchmarks.grading [--quick] [--json RESULT.json]

Every grader type grades its example (`verifiers.examples`), each time with another item, so that
nothing is remembered: in a pool of two workers, and in this process alone. Both take turns; shown
are the medians of the rounds, and the median of their ratio. A bomb is a `python` grader without
end. Its cost is the time until it is answered, beyond the time that it has; of twelve at once, most
wait for others. What others wait is the time of single grades while bombs burn, all asked for by
threads of their own.
"""

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.measure import options, seconds, table, write
from verifiers import GraderPool, Sample, build
from verifiers.examples import EXAMPLES, Example

BOMB_S = 1.0
BOMB = {
    "type": "python",
    "source": "def grade(sample, item):\n    while True: pass",
    "timeout_s": BOMB_S,
}
SIMPLE = {"type": "string_check"}

Pairs = list[tuple[Sample, dict[str, Any]]]
_numbers = count()


def main(quick: bool, result: Path) -> None:
    """Measures, prints, writes."""
    with GraderPool(deadline_s=60.0, remembered=0) as pool:
        rates = [rate(pool, example, quick) for example in EXAMPLES]
    table(
        ("grader", "pool, grades/s", "in process", "ratio"),
        [(row["grader"], row["pool_per_s"], row["process_per_s"], row["ratio"]) for row in rates],
    )
    times = start() | singles(quick) | bombs(quick)
    print()
    table(("", ""), list(times.items()))
    write(result, {"rates": rates, "times": times})


def rate(pool: GraderPool, example: Example, quick: bool) -> dict[str, Any]:
    """Grades per second of one type, in the pool and in this process."""
    grader = build(example.config)
    rounds, size = (3, 400) if quick else (7, 2000)
    pool.grade_many(example.config, pairs(example, 100))
    rows = []
    for _ in range(rounds):
        asked = pairs(example, size)
        in_pool = seconds(partial(pool.grade_many, example.config, asked))
        alone = seconds(lambda: [grader.grade(*pair) for pair in asked])  # noqa: B023
        rows.append((size / in_pool, size / alone, alone / in_pool))
    in_pool, alone, ratio = (statistics.median(column) for column in zip(*rows, strict=True))
    return {
        "grader": example.type,
        "pool_per_s": round(in_pool),
        "process_per_s": round(alone),
        "ratio": round(ratio, 2),
    }


def start() -> dict[str, Any]:
    """Seconds from nothing to the first grade."""
    begun = time.perf_counter()
    with GraderPool() as pool:
        simple(pool)
        return {"start to first grade, ms": _ms(time.perf_counter() - begun)}


def singles(quick: bool) -> dict[str, Any]:
    """Time of single grades, one after the other."""
    with GraderPool(remembered=0) as pool:
        simple(pool)
        taken = [seconds(lambda: simple(pool)) for _ in range(100 if quick else 1000)]
    return {
        "single grade, median ms": _ms(statistics.median(taken)),
        "single grade, worst ms": _ms(max(taken)),
    }


def bombs(quick: bool) -> dict[str, Any]:
    """What bombs cost beyond their time, alone and together, and what others wait meanwhile."""
    times: dict[str, Any] = {}
    with GraderPool(remembered=0) as pool, ThreadPoolExecutor(12) as threads:
        simple(pool)
        bomb(pool)  # starts what is started when it is first needed
        for together in (1, 2, 4, 12):
            costs: list[float] = []
            waits: list[float] = []
            for _ in range(1 if quick else 5):
                burning = [threads.submit(bomb, pool) for _ in range(together)]
                while not all(one.done() for one in burning):
                    waits.append(seconds(lambda: simple(pool)))
                costs += [one.result() for one in burning]
            name = f"{together} at once"
            times[f"bomb beyond its time, {name}, worst ms"] = _ms(max(costs))
            times[f"others while it burns, {name}, median ms"] = _ms(statistics.median(waits))
            times[f"others while it burns, {name}, worst ms"] = _ms(max(waits))
    return times


def bomb(pool: GraderPool) -> float:
    """Seconds that a bomb took beyond its time."""
    asked = (Sample(output_text=""), {"number": next(_numbers)})
    begun = time.perf_counter()
    if pool.grade(BOMB, *asked).error_kind != "timeout":
        raise AssertionError("the bomb did not burn")
    return time.perf_counter() - begun - BOMB_S


def simple(pool: GraderPool) -> None:
    """One grade that nobody remembers."""
    number = next(_numbers)
    if not pool.grade(SIMPLE, Sample(output_text=str(number)), {"answer": number}).passed:
        raise AssertionError("a simple grade went wrong")


def pairs(example: Example, size: int) -> Pairs:
    """So many right and wrong answers in turn, each with an item of its own."""
    texts = (example.passes, example.fails)
    return [
        (Sample(output_text=texts[number % 2]), {**example.item, "number": number})
        for number in _next(size)
    ]


def _next(size: int) -> Iterator[int]:
    return (next(_numbers) for _ in range(size))


def _ms(duration: float) -> float:
    return round(1000 * duration, 2)


if __name__ == "__main__":
    arguments = options("Grading: speed, bombs, waiting.", "grading").parse_args()
    main(arguments.quick, arguments.json)
