"""Re-grading: in steps, once per grader, whenever it is stopped."""

import threading

import pytest

import verifiers
from app.night import grading
from app.night.context import Stopped
from app.night.run import run_job
from storage import episodes, grades, tasks
from storage.errors import NotFound
from storage.grades import Counts
from storage.tables import GradeStatus
from tests.app.night import nights
from tests.app.night.nights import TASK

CHANGED = {"type": "string_check", "reference": "door"}
COUNT = 150  # episodes, more than two steps


@pytest.fixture
def full(house):
    """A house whose task got another grader after all its episodes were stored."""
    nights.add_task(house)
    for start in (0, 75):
        nights.add_episodes(house, range(75), completion=f"door{start or ''}")
    nights.change_grader(house, CHANGED)
    return house


def task_of(house):
    with house.database.reading() as session:
        return tasks.get(session, TASK)


def counts(house, grader):
    with house.database.reading() as session:
        return grades.counts(session, TASK, verifiers.grader_hash(grader))


def in_process(pairs, config=CHANGED):
    grader = verifiers.build(config)
    return [grader.grade(sample, item) for sample, item in pairs]


def test_every_episode_is_graded_once_in_bounded_steps(full):
    asked = []

    def counted(pairs):
        asked.append(len(pairs))
        return in_process(pairs)

    steps = list(grading.regrade(full.database, task_of(full), counted))
    assert asked == [step.graded for step in steps] == [64, 64, 22]
    assert counts(full, CHANGED) == Counts(passed=75, failed=75)
    assert list(grading.regrade(full.database, task_of(full), counted)) == []
    assert len(asked) == 3


def test_the_old_graders_grades_are_kept_and_count_again_when_it_comes_back(full):
    before = counts(full, nights.GRADER)
    list(grading.regrade(full.database, task_of(full), in_process))
    assert counts(full, nights.GRADER) == before == Counts(failed=COUNT)
    back = nights.change_grader(full, nights.GRADER)
    assert list(grading.regrade(full.database, back, in_process)) == []


def test_what_was_stopped_in_the_middle_goes_on_where_it_was(full):
    first = next(grading.regrade(full.database, task_of(full), in_process))
    assert counts(full, CHANGED).graded == first.graded == 64
    rest = list(grading.regrade(full.database, task_of(full), in_process))
    assert sum(step.graded for step in rest) == COUNT - 64
    assert counts(full, CHANGED).ungraded == 0


def test_a_step_that_breaks_loses_only_itself(full):
    def broken(pairs):
        if len(pairs) < grading.STEP:
            raise RuntimeError("the disk is on fire")
        return in_process(pairs)

    with pytest.raises(RuntimeError):
        list(grading.regrade(full.database, task_of(full), broken))
    assert counts(full, CHANGED).graded == 128


def test_errored_grades_are_graded_again_only_if_asked_for(full):
    def errored(pairs):
        return [verifiers.base.errored_grade("timeout", "too slow", 2.0) for _ in pairs]

    task = task_of(full)
    list(grading.regrade(full.database, task, errored))
    assert counts(full, CHANGED) == Counts(errored={"timeout": COUNT})
    assert list(grading.regrade(full.database, task, in_process)) == []
    first = next(grading.regrade(full.database, task, errored, errored=True))
    rest = grading.regrade(full.database, task, in_process, after=first.seq, errored=True)
    assert sum(step.graded for step in rest) == COUNT - first.graded
    assert counts(full, CHANGED).errored == {"timeout": first.graded}


def test_grading_that_never_helps_comes_to_an_end(full):
    def errored(pairs):
        return [verifiers.base.errored_grade("timeout", "too slow", 2.0) for _ in pairs]

    steps = list(grading.regrade(full.database, task_of(full), errored, errored=True))
    assert sum(step.graded for step in steps) == COUNT


def test_an_episode_deleted_while_its_step_is_graded_has_no_grade(full):
    with full.database.reading() as session:
        victim = episodes.page(session, TASK, None, 1)[0][0]

    def meddling(pairs):
        with full.database.session() as session:
            episodes.delete(session, victim.id)
        return in_process(pairs)

    step = next(grading.regrade(full.database, task_of(full), meddling))
    assert step.graded == 63
    with full.database.reading() as session:
        assert episodes.grades_of(session, [victim.id]) == {}


def test_nobody_waits_while_a_step_is_graded(full):
    def writing(pairs):
        """Another writer is through before this step's grades are."""
        done = threading.Event()

        def write():
            nights.change_grader(full, nights.GRADER)
            done.set()

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        assert done.is_set()
        return in_process(pairs)

    next(grading.regrade(full.database, task_of(full), writing))
    assert counts(full, CHANGED).graded == 64


def test_a_task_that_is_deleted_meanwhile_is_not_found(full):
    steps = grading.regrade(full.database, task_of(full), in_process)
    next(steps)
    with full.database.session() as session:
        tasks.delete(session, TASK)
    with pytest.raises(NotFound):
        next(steps)


def test_a_night_grades_what_the_new_grader_has_not_seen_and_can_be_stopped_at_it(full):
    def stop():
        return "interrupted" if counts(full, CHANGED).graded else None

    with pytest.raises(Stopped):
        run_job(full, nights.add_job(full), stop)
    assert counts(full, CHANGED).graded == 64
    job_id = nights.add_job(full)
    run_job(full, job_id, nights.never)
    assert counts(full, CHANGED).ungraded == 0
    assert nights.events_of(full, job_id)[1][1]["episodes"] == COUNT


def test_grades_are_stored_with_all_they_say(full):
    config = {"type": "multi", "graders": {"a": CHANGED}}
    task = nights.change_grader(full, config)
    list(grading.regrade(full.database, task, lambda pairs: in_process(pairs, config)))
    with full.database.reading() as session:
        _, grade = episodes.graded(session, TASK, task.grader_hash)[0]
    assert (grade.status, grade.subscores) == (GradeStatus.PASSED, {"a": 1.0})
