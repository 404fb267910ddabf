"""How a night decodes: as chat does for the task it trains."""

import json

import jsonschema
import pytest

from app.answering import task_form
from app.engine.sampling import Sampling
from app.night.context import NightError, open_night
from app.night.data import Prompt
from app.night.evaluate import Evaluator
from tests.app.night import nights

SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "room": {"enum": ["hall", "attic"]}},
    "required": ["on", "room"],
    "additionalProperties": False,
}


def opened(house, **fields):
    nights.add_task(house, **fields)
    return open_night(house, nights.add_job(house, max_tokens=40), nights.never)


def test_answers_are_decoded_in_the_form_of_the_task_as_chat_decodes_them(house):
    night = opened(house, response_schema=SCHEMA)
    engine = house.engine
    assert night.sampling.grammar is task_form(None, SCHEMA).grammar(engine)

    tokens = engine.encode([{"role": "user", "content": nights.text_of(3)}])
    seen = []

    def grade_many(pairs):
        seen.extend(sample.output_text for sample, _ in pairs)
        return night.grade_many(pairs)

    prompt = Prompt("ep_0", tokens, {"answer": ""}, None, None)
    Evaluator(engine, grade_many, [prompt], night.sampling).scores(None, [0])
    chat = Sampling(max_tokens=40, grammar=task_form(None, SCHEMA).grammar(engine))
    assert seen == [engine.submit(tokens, chat).result().text]
    jsonschema.validate(json.loads(seen[0]), SCHEMA)


def test_answers_without_a_form_are_decoded_freely(house):
    assert opened(house).sampling == Sampling(max_tokens=40)


def test_a_form_that_cannot_be_kept_to_ends_the_night_with_its_reason(house):
    with pytest.raises(NightError, match="maxLenght"):
        opened(house, response_schema=SCHEMA | {"maxLenght": 3})
