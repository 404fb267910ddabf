"""Many grades over HTTP: counts, dry runs, re-grading, trust checks."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from app.api import grading
from app.client import Client, ServiceError
from storage import episodes, tasks
from tests.app.serving import GRADER, JOB, Service, episode, fresh, serving, settings_of

ANY_CASE = GRADER | {"operation": "ilike"}


def graded_hashes(service: Service, episode_id: str) -> set[str]:
    """Hashes of the graders that have graded an episode."""
    with service.parts.database.reading() as session:
        [found] = episodes.grades_of(session, [episode_id]).values()
    return {grade.grader_hash for grade in found}


@pytest.fixture
def mixed(client: Client, task: str) -> str:
    """A task with two passed, one failed and one errored episode."""
    client.add_episodes(
        [
            episode(task, 1),
            episode(task, 2),
            episode(task, 3, completion="OFF", item={"answer": "off"}),
            episode(task, 4, item={}),
        ]
    )
    return task


# counts


def test_a_task_shows_what_its_current_grader_said(client: Client, mixed: str) -> None:
    counts = client.task(mixed).grades
    assert (counts.passed, counts.failed, counts.errored) == (2, 1, {"item": 1})
    assert (counts.ungraded, counts.error_share) == (0, 0.25)
    listed = next(task for task in client.tasks() if task.name == mixed)
    assert listed.grades == counts


def test_after_a_change_of_grader_nothing_is_graded_until_it_is_asked_for(
    client: Client, mixed: str
) -> None:
    counts = client.update_task(mixed, grader=ANY_CASE).grades
    assert (counts.passed, counts.failed, counts.errored, counts.ungraded) == (0, 0, {}, 4)
    assert counts.error_share is None
    assert client.update_task(mixed, grader=GRADER).grades.ungraded == 0


# re-grading


def test_regrading_grades_all_under_the_new_grader_and_keeps_the_old_grades(
    service: Service, client: Client, mixed: str
) -> None:
    before = client.task(mixed)
    changed = client.update_task(mixed, grader=ANY_CASE)
    answer = client.regrade(mixed)
    assert (answer.task, answer.graded, answer.next_cursor) == (mixed, 4, None)
    assert answer.grader_hash == changed.grader_hash
    assert (answer.grades.passed, answer.grades.errored) == (3, {"item": 1})
    assert client.task(mixed).grades == answer.grades
    first = next(client.episodes(mixed))
    assert graded_hashes(service, first.id) == {before.grader_hash, changed.grader_hash}


def test_regrading_again_does_nothing(client: Client, mixed: str) -> None:
    assert client.regrade(mixed).graded == 0
    client.update_task(mixed, grader=ANY_CASE)
    assert [client.regrade(mixed).graded for _ in range(2)] == [4, 0]


def test_a_request_without_a_body_regrades(http: httpx.Client, client: Client, mixed: str) -> None:
    client.update_task(mixed, grader=ANY_CASE)
    assert http.post(f"/v1/tasks/{mixed}/regrade").json()["graded"] == 4


def test_a_request_that_has_graded_long_enough_answers_and_its_cursor_goes_on(
    client: Client, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.add_episodes([episode(task, n) for n in range(150)])
    client.update_task(task, grader=ANY_CASE)
    monkeypatch.setattr(grading, "REGRADE_S", 0.0)
    first = client.regrade(task)
    assert (first.graded, first.grades.ungraded) == (64, 86)
    second = client.regrade(task, cursor=first.next_cursor)
    third = client.regrade(task)  # what has been graded is not graded again without a cursor either
    assert (second.graded, third.graded, third.next_cursor) == (64, 22, None)


def test_what_errored_is_graded_again_if_asked_for_and_once_only(client: Client, task: str) -> None:
    client.add_episodes([episode(task, n, item={}) for n in range(70)])
    assert client.regrade(task).graded == 0
    answer = client.regrade(task, errored=True)
    assert (answer.graded, answer.next_cursor) == (70, None)
    assert answer.grades.errored == {"item": 70}


@pytest.mark.parametrize("cursor", ["x", "1", "1-0123456789ab", "", "-"])
def test_a_cursor_that_this_grader_did_not_give_out_is_refused(
    client: Client, mixed: str, cursor: str
) -> None:
    with pytest.raises(ServiceError) as raised:
        client.regrade(mixed, cursor=cursor)
    assert raised.value.status == 409
    assert raised.value.param == "cursor"


def test_a_malformed_number_in_a_cursor_is_400(client: Client, mixed: str) -> None:
    with pytest.raises(ServiceError) as raised:
        client.regrade(mixed, cursor=f"-{client.task(mixed).grader_hash[:12]}")
    assert raised.value.status == 400


def test_users_are_answered_while_a_task_is_regraded(client: Client, task: str) -> None:
    client.add_episodes([episode(task, n) for n in range(400)])
    client.update_task(task, grader=ANY_CASE)
    done = threading.Event()

    def regrade() -> None:
        client.regrade(task)
        done.set()

    thread = threading.Thread(target=regrade)
    thread.start()
    other = client.create_task(fresh(), GRADER).name
    answers = 0
    while not done.is_set():
        assert client.add_episode(episode(other, answers)).grade is not None
        assert client.health().status == "ok"
        answers += 1
    thread.join()
    assert client.task(task).grades.passed == 400


def test_a_regrade_goes_on_after_a_restart(
    tiny_model: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path, tiny_model)
    with serving(settings) as first:
        task = first.client.create_task(fresh(), GRADER).name
        first.client.add_episodes([episode(task, n) for n in range(70)])
        first.client.update_task(task, grader=ANY_CASE)
        monkeypatch.setattr(grading, "REGRADE_S", 0.0)
        assert first.client.regrade(task).next_cursor is not None
    with serving(settings) as second:
        assert second.client.task(task).grades.ungraded == 6
        assert second.client.regrade(task).graded == 6


# dry runs


def test_a_dry_run_says_what_would_change_and_stores_nothing(
    service: Service, client: Client, mixed: str
) -> None:
    before = client.task(mixed)
    valid = client.validate_grader(ANY_CASE, mixed)
    run = valid.dry_run
    assert run is not None
    assert (run.task, run.graded, run.passed, run.failed, run.errored) == (
        mixed,
        4,
        3,
        0,
        {"item": 1},
    )
    assert (run.compared, run.changed, run.rescored, run.stopped_early) == (4, 1, 0, False)
    ids = [e.id for e in client.episodes(mixed)]
    [change] = run.changes
    assert (change.episode_id, change.before, change.after) == (ids[2], "failed", "passed")
    [error] = run.errors
    assert (error.episode_id, error.error_kind) == (ids[3], "item")
    assert error.error == "the item has no field 'answer'"
    assert client.task(mixed) == before
    assert graded_hashes(service, ids[0]) == {before.grader_hash}


def test_a_dry_run_tells_another_score_from_another_status(client: Client) -> None:
    call = {"name": "on", "arguments": {"area": ["attic"]}}
    config = {"type": "function_call", "syntax": "call"}
    task = client.create_task(fresh(), config).name
    client.add_episode(episode(task, completion="on(area=hall)", item={"call": call}))
    run = client.validate_grader(config | {"weights": {"name": 0.9}}, task).dry_run
    assert run is not None
    assert (run.compared, run.changed, run.rescored) == (1, 0, 1)


def test_a_dry_run_is_over_the_last_episodes(client: Client, mixed: str) -> None:
    run = client.validate_grader(GRADER, mixed, episodes=2).dry_run
    assert run is not None
    assert (run.graded, run.failed, run.errored) == (2, 1, {"item": 1})


def test_a_dry_run_shows_the_newest_errors_and_counts_all(client: Client, task: str) -> None:
    ids = [e.id for e in client.add_episodes([episode(task, n, item={}) for n in range(30)])]
    run = client.validate_grader(ANY_CASE, task).dry_run
    assert run is not None
    assert run.errored == {"item": 30}
    assert [error.episode_id for error in run.errors] == ids[:-11:-1]


def test_episodes_without_a_stored_grade_are_not_compared(client: Client, mixed: str) -> None:
    client.update_task(mixed, grader=ANY_CASE)
    run = client.validate_grader(GRADER, mixed).dry_run
    assert run is not None
    assert (run.graded, run.compared, run.changed) == (4, 0, 0)


def test_a_dry_run_that_takes_too_long_says_that_it_stopped(
    client: Client, mixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "DRY_RUN_S", 0.0)
    run = client.validate_grader(GRADER, mixed).dry_run
    assert run is not None
    assert (run.graded, run.stopped_early) == (0, True)


def test_without_a_task_there_is_no_dry_run(client: Client) -> None:
    assert client.validate_grader(GRADER).dry_run is None


def test_a_dry_run_over_an_unknown_task_is_404_and_named(client: Client) -> None:
    with pytest.raises(ServiceError) as raised:
        client.validate_grader(GRADER, fresh())
    assert (raised.value.status, raised.value.param) == (404, "task")


@pytest.mark.parametrize("count", [0, 1001])
def test_a_dry_run_is_bounded(client: Client, mixed: str, count: int) -> None:
    with pytest.raises(ServiceError) as raised:
        client.validate_grader(GRADER, mixed, episodes=count)
    assert (raised.value.status, raised.value.param) == (400, "episodes")


# trust


def test_a_task_whose_answer_is_always_the_same_is_hackable(client: Client, task: str) -> None:
    client.add_episodes([episode(task, n, item={"answer": "on"}) for n in range(40)])
    report = client.trust(task)
    assert (report.task, report.hackable) == (task, True)
    assert report.grader_hash == client.task(task).grader_hash
    assert (report.baselines[0].kind, report.baselines[0].text) == ("reference", "on")
    assert report.baselines[0].share == 1.0
    assert report.example is not None
    assert report.example.prompt.startswith("turn on the light")
    assert report.example.completion == "on"
    assert report.example.episode_id in [e.id for e in client.episodes(task)]


def test_a_task_that_has_to_be_done_is_not_hackable(client: Client, task: str) -> None:
    client.add_episodes([episode(task, n) for n in range(40)])
    client.add_episodes([episode(task, n, completion="off") for n in range(40)])
    report = client.trust(task)
    assert not report.hackable
    assert 0 < report.prompts < 40
    assert report.discrimination.share == 1.0
    assert report.discrimination.prompts == 40


def test_a_task_without_episodes_has_nothing_to_be_tried_on(client: Client, task: str) -> None:
    report = client.trust(task)
    assert (report.hackable, report.prompts, report.baselines) == (False, 0, [])


def test_a_grader_that_is_too_slow_to_be_examined_at_once_is_said_so(
    client: Client, mixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.add_episodes([episode(mixed, n) for n in range(20)])
    monkeypatch.setattr(grading, "TRUST_S", -1.0)
    with pytest.raises(ServiceError) as raised:
        client.trust(mixed)
    assert (raised.value.status, raised.value.code) == (503, "grader_too_slow")


def test_a_stored_grader_that_this_version_does_not_take_is_said_so(
    service: Service, client: Client, mixed: str
) -> None:
    broken = {"grader": {"type": "string_check", "colour": "red"}, "grader_hash": "0" * 64}
    with service.parts.database.session() as session:
        tasks.update(session, mixed, broken)
    with pytest.raises(ServiceError, match="not valid: colour") as raised:
        client.trust(mixed)
    assert (raised.value.status, raised.value.code) == (409, "invalid_grader")
    assert client.regrade(mixed).grades.errored == {"config": 4}


def test_a_night_tells_what_its_trust_checks_found(client: Client) -> None:
    task = client.create_task(fresh(), GRADER, training=JOB).name
    client.add_episodes([episode(task, n, item={"answer": "on"}) for n in range(60)])
    job = client.create_job(task)
    events = {event.type: event.data for event in client.job_events(job.id)}
    outcome = client.job(job.id).outcome
    assert outcome is not None
    assert outcome["reason"] == "hackable"
    assert events["trust"] == outcome["trust"]
    report = client.trust(task).model_dump(mode="json")
    assert outcome["trust"] == {key: report[key] for key in outcome["trust"]}


def test_an_unknown_task_is_404_whatever_is_asked_of_it(client: Client) -> None:
    name = fresh()
    for ask in (client.regrade, client.trust):
        with pytest.raises(ServiceError) as raised:
            ask(name)
        assert raised.value.status == 404
        assert name in raised.value.message
