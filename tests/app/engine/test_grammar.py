"""Grammars on tiny models: what they allow, what is refused, and rows that share a batch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from app.engine.scheduler import Engine  # isort: skip  (before MLX: it sets the platform up)
import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from app.engine.grammar import Grammar, GrammarError, Grammars, Matcher
from app.engine.models import fast_tokenizer
from app.engine.sampling import Sampling
from app.engine.schema import MAX_DEPTH, MAX_NODES
from tests.app.engine import rigs

Json = dict[str, Any]
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}, "on": {"type": "boolean"}},
    "required": ["x", "on"],
    "additionalProperties": False,
}
EOS = {0, 2}


@pytest.fixture(scope="module")
def grammars(engine: Engine) -> Grammars:
    return grammars_of(engine, engine.info.vocab_size)


def grammars_of(engine: Engine, rows: int, **limits: int) -> Grammars:
    base = engine._base
    return Grammars(fast_tokenizer(base.tokenizer), rows, base.eos, **limits)


def allowed(matcher: Matcher) -> set[int]:
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    return {int(token) for token in np.flatnonzero(bits)}


def follows(grammar: Grammar, tokens: tuple[int, ...]) -> bool:
    matcher = grammar.start()
    try:
        for token in tokens:
            matcher.accept(token)
    except GrammarError:
        return False
    return matcher.finished or bool(EOS & allowed(matcher))


def leaf() -> st.SearchStrategy[Json]:
    return st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(
            lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
            st.integers(-20, 20),
            st.integers(0, 30),
        ),
        st.builds(
            lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
            st.integers(0, 2),
            st.integers(0, 3),
        ),
        st.builds(
            lambda values: {"enum": values},
            st.lists(
                st.sampled_from(["a", "b c", "ä", 1, 2.5, None, True]), min_size=1, max_size=3
            ),
        ),
        st.just({"type": "string", "pattern": "^[a-c]{1,3}$"}),
        st.just({"type": "string", "format": "date"}),
        st.just({"const": {"k": [1, "x"]}}),
    )


def within(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    names = st.sampled_from(["a", "b", "long name", 'quote"'])
    return st.one_of(
        st.builds(
            lambda items, low, more: {
                "type": "array",
                "items": items,
                "minItems": low,
                "maxItems": low + more,
            },
            inner,
            st.integers(0, 1),
            st.integers(0, 2),
        ),
        st.builds(
            lambda properties, some: {
                "type": "object",
                "properties": properties,
                "required": sorted(properties)[:some],
                "additionalProperties": False,
            },
            st.dictionaries(names, inner, max_size=3),
            st.integers(0, 3),
        ),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=2)),
    )


SCHEMAS = st.recursive(leaf(), within, max_leaves=4)


@settings(max_examples=8)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
def test_whatever_is_sampled_under_a_schema_validates(
    engine: Engine, schema: Json, seed: int
) -> None:
    sampling = Sampling(temperature=1.0, max_tokens=300, grammar=engine.json_grammar(schema))
    prompts = rigs.prompts_of([4, 6], seed=seed % 1000)
    streams = [engine.submit(p, replace(sampling, seed=seed + i)) for i, p in enumerate(prompts)]
    for completion in [stream.result() for stream in streams]:
        assert (completion.error, completion.finish_reason) == (None, "stop"), completion
        value = json.loads(completion.text)
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)


@settings(max_examples=20)
@given(
    schema=SCHEMAS,
    value=st.recursive(
        st.none() | st.booleans() | st.integers(-30, 60) | st.text("abcä ", max_size=4),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
        max_leaves=4,
    ),
)
def test_a_grammar_takes_the_values_that_validate_and_no_others(
    grammars: Grammars, engine: Engine, schema: Json, value: Any
) -> None:
    kind = jsonschema.Draft202012Validator
    valid = kind(schema, format_checker=kind.FORMAT_CHECKER).is_valid(value)
    ordered = _in_order(value, schema)
    text = engine.encode_text(json.dumps(ordered, ensure_ascii=False))
    assert follows(grammars.json(schema), text) == valid


def _in_order(value: Any, schema: Json) -> Any:
    """Properties as the schema lists them, which is the order of writing."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        names = [n for n in properties if n in value] + [n for n in value if n not in properties]
        return {name: _in_order(value[name], properties.get(name, {})) for name in names}
    if isinstance(value, list):
        return [_in_order(item, schema.get("items", {})) for item in value]
    return value


@pytest.mark.parametrize(
    ("schema", "where", "what"),
    [
        ({"type": "object", "maxLenght": 3}, "#", "maxLenght"),
        (
            {"properties": {"a/b": {"type": "array", "uniqueItems": True}}},
            "#/properties/a~1b",
            "unique",
        ),
        ({"anyOf": [{"type": "null"}, {"not": {}}]}, "#/anyOf/1", "not"),
        ({"$defs": {"d": {"if": {}}}, "$ref": "#/$defs/d"}, "#/$defs/d", "if"),
        ({"type": "object", "x-guidance": {"lenient": True}}, "#", "x-guidance"),
        ({"$ref": "https://example.com/schema.json"}, "#", "$ref"),
        ({"$ref": "#/default", "default": {"not": {}}}, "#", "$ref"),
        ({"type": "array", "items": {"type": "strin"}}, "#/items/type", "strin"),
        ({"properties": {"a": {"minLength": "2"}}}, "#/properties/a/minLength", "2"),
        ({"type": "string", "format": "colour"}, "", "colour"),
        ({"type": "string", "pattern": "(?=a)b"}, "", "look-ahead"),
        ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, "", "oneOf"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "", "minimum"),
        ({"enum": []}, "", "anyOf is empty"),
    ],
)
def test_what_a_schema_asks_in_vain_is_named_with_its_place(
    grammars: Grammars, schema: Json, where: str, what: str
) -> None:
    with pytest.raises(GrammarError) as refused:
        grammars.json(schema)
    assert str(refused.value).startswith(where)
    assert what in str(refused.value)


def test_annotations_change_nothing(grammars: Grammars, engine: Engine) -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "T",
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/n", "description": "not: {}", "examples": [{"not": 1}]}
        },
        "$defs": {"n": {"type": "null", "deprecated": True}},
        "additionalProperties": False,
    }
    grammar = grammars.json(schema)
    assert follows(grammar, engine.encode_text('{"a": null}'))
    assert not follows(grammar, engine.encode_text('{"a": 1}'))


def _nested(depth: int) -> Json:
    schema: Json = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "schema", [_nested(MAX_DEPTH), _nested(10_000), {"enum": list(range(MAX_NODES))}]
)
def test_schemas_that_are_too_large_are_refused(grammars: Grammars, schema: Json) -> None:
    with pytest.raises(GrammarError, match=r"too large|deep"):
        grammars.json(schema)


def test_intersections_of_many_patterns_are_refused(grammars: Grammars) -> None:
    many = [{"type": "string", "pattern": f"a{{{i}}}.*b"} for i in range(60)]
    chained = {f"d{i}": many[i] | {"$ref": f"#/$defs/d{i + 1}"} for i in range(59)}
    for schema in ({"allOf": many}, {"$defs": chained | {"d59": {}}, "$ref": "#/$defs/d0"}):
        with pytest.raises(GrammarError, match="12 patterns"):
            grammars.json(schema)
    grammars.json({"allOf": many[:2]})
    grammars.json({"type": "object", "properties": {str(i): part for i, part in enumerate(many)}})


def test_a_schema_that_nothing_fits_is_refused(grammars: Grammars) -> None:
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    with pytest.raises(GrammarError):
        grammars.json(endless)


def test_a_broken_grammar_is_refused_with_its_reason(grammars: Grammars) -> None:
    with pytest.raises(GrammarError, match="colour"):
        grammars.lark("start: colour")


def test_a_grammar_is_compiled_once(grammars: Grammars) -> None:
    assert grammars.json(POINT) is grammars.json(dict(POINT))
    assert grammars.json(POINT) is not grammars.json(None)
    assert hash(Sampling(grammar=grammars.json(POINT))) == hash(
        Sampling(grammar=grammars.json(POINT))
    )


def test_a_grammar_whose_states_have_run_out_is_compiled_anew(engine: Engine) -> None:
    grammars = grammars_of(engine, engine.info.vocab_size, lexer_states=200)
    schema = {"type": "string", "maxLength": 1000}
    first = grammars.json(schema)
    matcher = first.start()
    with pytest.raises(GrammarError, match="too many states"):
        for token in engine.encode_text('"' + "ab" * 200):
            matcher.mask()
            matcher.accept(token)
    second = grammars.json(schema)
    assert second is not first
    second.start().mask()


def test_without_a_schema_it_is_any_object(grammars: Grammars, engine: Engine) -> None:
    grammar = grammars.json(None)
    for text, fits in [
        ('{"a": [1, {"b": null}]}', True),
        ("{}", True),
        ("[]", False),
        ("1", False),
    ]:
        assert follows(grammar, engine.encode_text(text)) == fits


@pytest.mark.parametrize("more", [0, 1, 31, 32, 33])
def test_rows_of_the_head_beyond_the_vocabulary_are_never_allowed(
    engine: Engine, more: int
) -> None:
    known = len(engine._base.tokenizer)
    matcher = grammars_of(engine, known + more).lark("start: /(.|\\n)*/").start()
    assert EOS < allowed(matcher) <= set(range(known))


def test_tokens_have_the_bytes_of_their_text(engine: Engine) -> None:
    text = "turn on ä ✓ 灯"
    tokens = engine.encode_text(text)
    assert b"".join(engine.token_bytes(token) for token in tokens) == text.encode()
    assert engine.token_bytes(2) == b"<|im_end|>"


def test_a_row_ends_with_its_grammar_and_is_cut_by_its_limit(engine: Engine) -> None:
    prompt = rigs.prompts_of([5])[0]
    whole = engine.submit(
        prompt, Sampling(max_tokens=100, grammar=engine.json_grammar(POINT))
    ).result()
    assert (whole.finish_reason, set(json.loads(whole.text))) == ("stop", {"x", "on"})
    assert not EOS & set(whole.tokens)
    cut = Sampling(max_tokens=len(whole.tokens) - 1, grammar=engine.json_grammar(POINT))
    part = engine.submit(prompt, cut).result()
    assert (part.finish_reason, part.tokens) == ("length", whole.tokens[:-1])
    assert whole.text.startswith(part.text)


def test_truncation_cuts_what_the_grammar_allows(engine: Engine) -> None:
    grammar = engine.lark_grammar('start: "red" | "green" | "blue"')
    prompt = rigs.prompts_of([5])[0]
    greedy = engine.submit(prompt, Sampling(grammar=grammar)).result()
    assert greedy.text in {"red", "green", "blue"}
    for cut in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        sampled = Sampling(temperature=1.0, seed=4, grammar=grammar, **cut)
        assert engine.submit(prompt, sampled).result().tokens == greedy.tokens


def test_a_seed_gives_the_same_text_whatever_else_is_in_the_batch(engine: Engine) -> None:
    grammars = [engine.json_grammar(POINT), engine.lark_grammar("start: /[a-z ]{20}/"), None]
    prompts = rigs.prompts_of([7, 5, 9, 6, 8, 7], seed=3)
    rows = [
        Sampling(temperature=t, top_p=0.9, seed=11, max_tokens=24, grammar=grammars[i % 3])
        for i, t in enumerate([1.0, 0.7, 1.3, 0.0, 1.0, 1.0])
    ]
    alone = [engine.submit(p, row).result().tokens for p, row in zip(prompts, rows, strict=True)]
    streams = [engine.submit(p, row) for p, row in zip(prompts, rows, strict=True)]
    assert [stream.result().tokens for stream in streams] == alone


def test_rows_that_go_wrong_end_alone(engine: Engine, grammars: Grammars) -> None:
    point = engine.json_grammar(POINT)
    prompts = rigs.prompts_of([6, 6, 6, 6], seed=5)
    sound = [Sampling(max_tokens=12), Sampling(max_tokens=24, grammar=point)]
    before = [engine.submit(p, s) for p, s in zip(prompts, sound, strict=False)]
    expected = [stream.result().tokens for stream in before]

    gone = LLMatcher(grammars._tokenizer(), LLMatcher.grammar_from_lark('start: "a"'), log_level=0)
    gone.consume_token(engine.encode_text("b")[0])
    dead_end = Sampling(max_tokens=12, grammar=Grammar(gone))
    unkeyed = Sampling(temperature=1.0, max_tokens=12)
    object.__setattr__(unkeyed, "seed", -1)
    rows = [*sound, dead_end, unkeyed]
    streams = [engine.submit(p, s) for p, s in zip(prompts, rows, strict=True)]
    results = [stream.result() for stream in streams]
    assert [result.tokens for result in results[:2]] == expected
    assert [result.finish_reason for result in results[2:]] == ["error", "error"]
    assert "the grammar cannot be followed" in (results[2].error or "")
    assert "cannot be drawn" in (results[3].error or "")


def test_candidates_answer_under_the_grammar_as_each_does_alone(engine: Engine) -> None:
    rng = np.random.default_rng(0)
    flat = rng.normal(0, 0.3, (3, engine.coordinates.total)).astype(np.float32)
    prompts = [tuple(map(int, p)) for p in rigs.prompts_of([9, 12, 10], shared=6)]
    sampling = Sampling(max_tokens=24, grammar=engine.json_grammar(POINT))
    lines = engine.generate(flat, prompts, sampling)
    for line in lines:
        for completion in line:
            assert completion.finish_reason == "stop"
            jsonschema.validate(json.loads(completion.text), POINT)
    assert len({completion.text for line in lines for completion in line}) > 1
    for candidate, line in zip(flat, lines, strict=True):
        [alone] = engine.generate(candidate[None], prompts[1:2], sampling)
        assert alone[0].text == line[1].text


def test_a_token_without_an_embedding_is_refused(engine: Engine) -> None:
    for bad in (-1, engine.info.vocab_size):
        with pytest.raises(ValueError, match="tokens 0 to"):
            engine.submit([5, bad], Sampling())
        with pytest.raises(ValueError, match="tokens 0 to"):
            engine.generate(None, [[5, bad]], Sampling())
