"""Hostile inputs for graders: completions, items, configurations, code; with the right statuses."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.verifiers.test_registry import CONFIGS, ITEM
from tests.verifiers.test_sandbox import DEEP, HEAPS, LOOPS, OUTSIDE

FAILED = frozenset({"failed"})
ITEM_WRONG = frozenset({"failed", "item"})
WANT_NOTHING = ("function_call", "state", "multi", "instruction")
"""Graders that take an item without anything wanted as one of which nothing must be done."""


@dataclass(frozen=True)
class Case:
    """A question and what may come of it: `passed`, `failed`, or the kind of its error."""

    name: str
    config: Any
    text: str
    item: Any
    right: frozenset[str]


# None of the texts below is a right answer under the configurations of the registry's tests.
TEXTS = [
    # nested and broken JSON
    *("[" * depth for depth in (65, 1000, 65_536)),
    *("[" * depth + "]" * depth for depth in (65, 1000, 30_000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (65, 1000, 10_000)),
    *('{"name":' * depth for depth in (65, 8_000)),
    *("f(" * 20_000, "f(a=" * 15_000, "f(a=[" * 10_000, "f(" + "a=[[[]]]," * 7_000),
    *('{"a": NaN}', '{"a": Infinity}', '{"a": -Infinity}', '{"a": 1e999}', "NaN", "-Infinity"),
    *('{"a": 1, "a": 2}', '{"name": "f", "name": "g", "arguments": {}}', '{"a": 01}', '{"a": +1}'),
    *('{"a": 1,}', "{'a': 1}", '{"a": 1} {"a": 1}', "{" * 5 + "}" * 5, '{"\\ud800": 1}', '"', "{"),
    *('"' * 65_536, '{"' + '\\"' * 32_000, "f(a='" + "\\'" * 32_000, "\\" * 65_536),
    # for regular expressions
    *("a" * 60_000 + "!", "a" * 30 + "b", "ab" * 30_000, " " * 60_000 + "x", "\n" * 60_000),
    *("x@" * 30_000, "1" * 60_000 + "x", "a b " * 15_000, "-" * 60_000, "," * 60_000),
    # numbers
    *("9" * digits for digits in (400, 5_000, 65_000)),
    *("-" + "9" * 5_000, "0." + "9" * 60_000, "1e" + "9" * 60_000, "1e999999999", "1e-999999999"),
    *("9**9**9**9**9", "44**19**35", "2^2^2^2^2^2^2", "9^{9^{9^{9^{9}}}}", "(9**9)**(9**9)"),
    *("10**10**10", "1<<10**10", "9!!!!!!!!!", "factorial(10**9)", "gamma(10**100)", "((9!)!)!"),
    *("\\boxed{9^{9^{9^9}}}", "\\frac{1}{" * 500 + "2" + "}" * 500, "\\sqrt{" * 900, "$" * 60_000),
    *("\\sum_{n=1}^{10^{100}} n", "\\int_0^{\\infty} e^{-x^{x^x}} dx", "\\binom{10^9}{5^9}"),
    *("1/0", "0/0", "0**0", "1/(1-1)", "inf", "nan", "1_000", "0x10", "1e5", "1,2,3", "1.2.3", "٠"),
    *("٤٢", "４２", "²", "Ⅷ", "৪২", "−1", "–1", "－１", "1٬000", "½", "万", "1\u00a0000", "+-+-1"),
    *("(" * 30_000, "(" * 500 + "7" + ")" * 500, "+" * 60_000, "1" + "+1" * 30_000),
    # text
    *("", " ", "\x00", "\x00" * 60_000, "\ud800", "\udfff\ud800", "\ufeff", "\u2028", "\u202e on"),
    *("a" + "\u0301\u0316" * 32_000, "\u0345" * 60_000, "ß" * 60_000, "ﬃ" * 30_000, "İ" * 60_000),
    *("👩\u200d👩\u200d👧" * 9_000, "\r\n" * 30_000, "\x1b[2J", "%s%n" * 10_000, "{{item.answer}}"),
    *("{{" * 30_000, "{{sample.output_text}}", "{0.__class__}", "${jndi:ldap://x}", "<!--" * 9_000),
    *("x" * 65_536, "x" * 65_537, "x" * 1_000_000, "x " * 500_000, '{"a": "' + "x" * 1_000_000),
    *("```" * 20_000, "```python\n", "`" * 65_000, "- item\n" * 9_000, "# " * 30_000, "|" * 60_000),
    *("Sentence. " * 6_000, "word " * 13_000, "x\n\n" * 20_000, "." * 60_000, "!?" * 30_000),
    # code
    *("import os; os.fork()", "__import__('os').system('true')", "os.kill(os.getpid(), 9)"),
    *("raise SystemExit", "f = lambda *a: f(*a)", "def f(x): return f(x + 1)", "eval('9**9**9')"),
    *("def f(x): return 10 ** 10 ** x ** 9", "def f(x): return [x] * 10 ** 12", "f = print"),
    *("class f:\n  def __init__(s, x): pass\n  def __eq__(s, o): return True", "assert False"),
]  # fmt: skip

WRAPS = ("{}", '{{"name": "f", "arguments": {{"a": {}}}}}', "f(a={})", "\\boxed{{{}}}")

VALUES = [
    *(None, True, -1, 0.5, 1e308, 10**999, 10**5000, float("nan"), float("inf"), "", " ", "x"),
    *("x" * 1_000_000, "\ud800", "\x00", "{{item.x}}", "{{", "(a+)+$", "(" * 1000, "9**9**9**9"),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": [1, 2, {"c": "\ud800"}]}}, ["x"] * 10_000),
    *({str(n): n for n in range(10_000)}, {1: 2}, {"a": {1}}, b"x", (1,), 1j, print, object()),
    *("while True: pass", "\\d" * 30_000, "a{1000}" * 50, "[" * 60_000, "-" * 60_000, "٤٢"),
]  # fmt: skip


def deep(levels: int) -> Any:
    """Lists in lists."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


VALUES += [deep(65), deep(1000), deep(100_000)]


def strict(config: Any) -> Any:
    """The configuration, or one under which numbers and texts are wrong, too."""
    if config["type"] == "json_schema":
        return config | {"schema": config["schema"] | {"type": "object"}}
    return config


def completions() -> Iterator[Case]:
    """Hostile texts, bare and inside of what graders look for. All fail: none is right."""
    for place, config in enumerate(map(strict, CONFIGS)):
        for number, text in enumerate(TEXTS):
            for wrap in WRAPS if len(text) < 40_000 else WRAPS[:1]:
                name = f"{place} {config['type']}: text {number} in {wrap}"
                yield Case(name, config, wrap.format(text), ITEM, FAILED)


def items() -> Iterator[Case]:
    """Items with a field missing or hostile: the item is wrong, or the completion is."""
    for place, config in enumerate(CONFIGS):
        name = f"{place} {config['type']}: item"
        # The item of `python` goes to the configuration's own code, which may raise.
        right = ITEM_WRONG | {"config"} if config["type"] == "python" else ITEM_WRONG
        for number, value in enumerate(VALUES):
            yield Case(f"{name} is {number}", config, "\x01", value, right | {"item"})
            for field in ITEM if (number + place) % 3 == 0 else ():  # all would take minutes
                allowed = right
                if value in (None, [], {}) and config["type"] in WANT_NOTHING:
                    allowed = right | {"passed"}
                yield Case(
                    f"{name}.{field} is {number}", config, "\x01", ITEM | {field: value}, allowed
                )


def configurations() -> Iterator[Case]:
    """Configurations with a field that is hostile, or that nobody knows."""
    right = frozenset({"passed", "failed", "item", "config"})
    for place, config in enumerate(CONFIGS):
        name = f"{place} {config['type']}:"
        yield Case(f"{name} surprise", config | {"surprise": 1}, "x", ITEM, frozenset({"config"}))
        for field in config:
            for number, value in enumerate(VALUES):
                changed = config | {field: value}
                yield Case(f"{name} {field} is {number}", changed, "\x01", ITEM, right)


def code() -> Iterator[Case]:
    """Code that wants out, without end, without bound, in `python` and in `unit_tests`."""
    sorts = (
        (OUTSIDE, 10, {"config"}, {"failed"}),
        (LOOPS, 0.2, {"timeout", "config"}, {"timeout", "failed"}),
        (HEAPS, 10, {"sandbox"}, {"failed"}),
        (DEEP, 10, {"config"}, {"failed"}),
    )
    tests = [{"call": "f(1)", "equals": 2}]
    for codes, timeout_s, of_source, of_completion in sorts:
        for name, text in codes.items():
            source = f"{text}\ndef grade(sample, item):\n    return 1.0\n"
            config = {"type": "python", "source": source, "timeout_s": timeout_s}
            yield Case(f"source {name}", config, "", {}, frozenset(of_source))
            config = {"type": "unit_tests", "tests": tests, "timeout_s": timeout_s}
            yield Case(f"code {name}", config, text, {}, frozenset(of_completion))
