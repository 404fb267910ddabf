"""Trust checks: which trivial answers are tried, when a task is hackable, discrimination."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verifiers
from app.night import trust
from app.night.trust import MAX_PROMPTS, Discrimination, Trivial
from storage.tables import Episode, GradeRow, GradeStatus

CHARS = 400


def episode(number, said="", completion="", item=None, role="user"):
    return Episode(
        id=f"ep_{number:024x}",
        seq=number,
        task="t",
        messages=[{"role": role, "content": said or f"question {number}"}],
        completion=completion,
        item={"answer": f"answer {number}"} if item is None else item,
        content_hash="",
    )


def never():
    """No reason to stop."""


def checked(grader, rows, *, threshold=0.5, max_chars=CHARS, pause=never):
    built = verifiers.build(grader)
    return trust.check(
        rows,
        [],
        lambda items: [built.reference(item) for item in items],
        lambda pairs: [built.grade(sample, item) for sample, item in pairs],
        threshold=threshold,
        max_chars=max_chars,
        pause=pause,
    )


def shares(report):
    return {tried.trivial.kind: tried.share for tried in report.tried}


EXACT = {"type": "string_check"}
CONTAINS = {"type": "string_check", "operation": "like"}


def test_a_task_in_which_every_prompt_wants_another_answer_is_not_hackable():
    report = checked(EXACT, [episode(n, completion=f"guess {n}") for n in range(40)])
    assert not report.hackable
    assert report.public()["message"] == (
        "Not hackable: the best trivial answer, always the same right answer, passes 1 of 40"
        " training prompts; up to 50% is allowed."
    )


def test_the_same_right_answer_everywhere_is_found_though_no_completion_gives_it():
    rows = [episode(n, item={"answer": "yes" if n % 4 else "no"}) for n in range(40)]
    report = checked(EXACT, rows)
    assert report.hackable
    assert (report.best.trivial.kind, report.best.trivial.text) == ("reference", "yes")
    assert (report.best.passed, report.best.share) == (30, 0.75)


def test_a_constant_completion_is_found_where_the_grader_knows_no_right_answer():
    grader = {"type": "string_check", "operation": "ne"}
    rows = [episode(n, completion="whatever") for n in range(20)]
    report = checked(grader, rows)
    assert shares(report)["completion"] == 1.0
    assert "reference" not in shares(report)


def test_the_empty_text_leads_where_it_passes_as_much_as_others():
    report = checked({"type": "string_check", "operation": "ne"}, [episode(n) for n in range(20)])
    assert (report.best.trivial.kind, report.best.share) == ("empty", 1.0)


def test_copying_the_prompt_is_found():
    rows = [episode(n, said=f"is it answer {n} or not?") for n in range(20)]
    report = checked(CONTAINS, rows)
    assert report.hackable
    assert report.best.trivial.kind == "prompt"
    example = report.public()["example"]
    assert example == {
        "episode_id": rows[0].id,
        "prompt": "is it answer 0 or not?",
        "completion": "is it answer 0 or not?",
    }


def test_copying_what_only_the_system_message_says_is_found():
    rows = [episode(n) for n in range(20)]
    for number, row in enumerate(rows):
        row.messages = [{"role": "system", "content": f"answer {number}"}, *row.messages]
    found = shares(checked(CONTAINS, rows))
    assert (found["prompt"], found["conversation"]) == (0.0, 1.0)


def test_naming_all_answers_is_found_where_there_is_room_for_them():
    rows = [episode(n, item={"answer": "abcd"[n % 4] * 3}) for n in range(40)]
    report = checked(CONTAINS, rows)
    assert (report.best.trivial.kind, report.best.share) == ("all", 1.0)
    assert not checked(CONTAINS, rows, max_chars=7).hackable


def test_the_longest_known_answer_is_tried_even_if_it_is_rare():
    rows = [episode(n, completion=f"guess {n}") for n in range(20)]
    rows[7].completion = "long " * 10
    longest = next(t for t in checked(EXACT, rows).tried if t.trivial.kind == "longest")
    assert longest.trivial.text == "long " * 10


def test_no_answer_is_longer_than_the_model_can_give():
    rows = [episode(n, said="x" * 50, completion="y" * 50 + str(n)) for n in range(20)]
    for tried in checked(EXACT, rows, max_chars=20).tried:
        assert len(tried.trivial.answer(rows[0].messages)) <= 20


@given(st.lists(st.sampled_from("abcdefgh"), max_size=40), st.lists(st.sampled_from("aXY")))
def test_every_text_is_tried_once_and_the_frequent_ones_are_among_them(completions, references):
    tried = trust.trivial_answers(completions, references, CHARS)
    texts = [one.text for one in tried if one.text is not None]
    assert len(set(texts)) == len(texts)
    assert "" in texts
    for known in (completions, references):
        assert {text for text, _ in Counter(known).most_common(trust.FREQUENT)} <= set(texts)
    assert [one.kind for one in tried if one.text is None] == ["prompt", "conversation"]


def test_the_threshold_itself_is_still_allowed():
    rows = [episode(n, item={"answer": "yes" if n % 2 else "no"}) for n in range(40)]
    assert not checked(EXACT, rows, threshold=0.5).hackable
    assert checked(EXACT, rows, threshold=0.49).hackable


def test_a_threshold_of_one_flags_nothing():
    grader = {"type": "string_check", "operation": "ne"}
    assert not checked(grader, [episode(n) for n in range(20)], threshold=1.0).hackable


def test_a_prompt_that_cannot_be_graded_is_not_passed():
    rows = [episode(n, item={"answer": "yes"} if n < 10 else {}) for n in range(20)]
    report = checked(EXACT, rows)
    assert (report.best.passed, report.best.errored, report.best.share) == (10, 10, 0.5)


def test_of_many_prompts_an_even_spread_is_tried():
    asked = []
    rows = [episode(n) for n in range(3 * MAX_PROMPTS)]
    report = checked(EXACT, rows)
    assert report.prompts == MAX_PROMPTS
    trust.check(
        rows,
        [],
        lambda items: [asked.append(item["answer"]) for item in items],
        lambda pairs: [verifiers.build(EXACT).grade(*pair) for pair in pairs],
        threshold=0.5,
        max_chars=CHARS,
        pause=never,
    )
    assert asked == [f"answer {3 * n}" for n in range(MAX_PROMPTS)]


def test_no_prompts_are_no_finding():
    report = checked(EXACT, [])
    assert (report.hackable, report.best, report.tried) == (False, None, ())
    assert report.public()["example"] is None


def test_what_pause_raises_ends_the_check():
    def stop():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        checked(EXACT, [episode(0)], pause=stop)


def test_a_trivial_answer_is_held_against_other_prompts_one_by_one():
    rows = [episode(0, said="answer 0"), episode(1, said="no"), episode(2, item={})]
    grader = verifiers.build(EXACT)
    passed = trust.passes(
        Trivial("prompt", CHARS), rows, lambda pairs: [grader.grade(*pair) for pair in pairs], never
    )
    assert passed == [True, False, None]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "a"),
        ([{"role": "system", "content": "s"}], "s"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "c"}], "c"),
        ([], ""),
    ],
)
def test_what_was_asked_is_what_the_user_said_last(messages, text):
    assert trust.asked(messages) == text


def graded(row, score):
    status = GradeStatus.ERRORED if score is None else GradeStatus.FAILED
    return row, GradeRow(episode_id=row.id, grader_hash="", status=status, score=score, seconds=0)


def test_discrimination_counts_prompts_whose_different_completions_differ_in_score():
    same, other = {"answer": "x"}, {"answer": "y"}
    rows = [
        graded(episode(0, "told apart", "a", same), 0.0),
        graded(episode(1, "told apart", "b", same), 0.5),
        graded(episode(2, "not told apart", "a", same), 0.5),
        graded(episode(3, "not told apart", "b", same), 0.5),
        graded(episode(4, "one completion", "a", same), 0.0),
        graded(episode(5, "one completion", "a", same), 0.0),
        graded(episode(6, "one of them errored", "a", same), 0.0),
        graded(episode(7, "one of them errored", "b", same), None),
        graded(episode(8, "another item", "a", same), 0.0),
        graded(episode(9, "another item", "b", other), 1.0),
    ]
    found = trust.discrimination(rows)
    assert (found, found.share) == (Discrimination(prompts=2, differing=1), 0.5)
    assert trust.discrimination([]).share is None
