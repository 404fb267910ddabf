"""Code is found in answers as models write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.blocks import blocks, code_of

LINES = st.sampled_from(
    ["```", "~~~", "````", "```python", "```x```", "    ```", "  ~~~ py", "x", ""]
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("x = 1", "x = 1"),
        ("", ""),
        ("```\nx\n```", "x\n"),
        ("~~~\nx\n~~~", "x\n"),
        ("```python\nx\n", "x\n"),  # cut off
        ("```python\r\nx\n```\r\n", "x\n"),
        ("````\n```\n````", "```\n"),
        ("```\n~~~\n```", "~~~\n"),
        ("```\n``` no end\n```", "``` no end\n"),
        # not at the start of a line, or no fences
        ("Use ```x``` here\n```\ny\n```", "y\n"),
        ("```x``` is it", "```x``` is it"),
        ('def f():\n    """\n    ```\n    f()\n    ```\n    """', None),
        (
            '```python\ndef f():\n    """\n    ```\n    """\n```',
            'def f():\n    """\n    ```\n    """\n',
        ),
        # inside of a list
        ("1. Do\n   ```python\n   if x:\n     y\n\n   ```", "if x:\n  y\n\n"),
        # blocks of Python first, then those without a name
        ("```bash\npip install x\n```\n```python\ny\n```\n```\nz\n```", "y\n"),
        ("```text\nno\n```\n```\ny\n```", "y\n"),
        ("```js\na\n```\n```c\nb\n```", "a\n"),
        *((f"```{name}\nx\n```\n```\ny\n```", "x\n") for name in ("Python", "py", " python3")),
        ("```{.python .numbered}\nx\n```\n```\ny\n```", "x\n"),
        ("~~~python title=a.py\nx\n~~~\n```\ny\n```", "x\n"),
        # several are joined, but for what is no Python
        ("```py\nx = 1\n```\nThen\n```py\ny = x\n```", "x = 1\ny = x\n"),
        ("```py\nx = 1\n```\n```py\n>>> x\n1\n```", "x = 1\n"),
        ("```py\nx =\n```\n```py\ny =\n```", "x =\n"),
        ("```\nx = 1\n```\n```\nThe output is 1\n```", "x = 1\n"),
    ],
)
def test_the_code_of_an_answer(text: str, code: str | None) -> None:
    assert code_of(text) == (text if code is None else code)


@given(st.lists(LINES, max_size=12).map("\n".join))
def test_every_line_of_code_is_a_line_of_the_text_and_no_block_holds_its_own_fence(
    text: str,
) -> None:
    lines = [line.strip() for line in text.split("\n")]
    for block in blocks(text):
        assert all(line.strip() in lines for line in block.code.splitlines())
    if not any(line.startswith(("```", "~~~")) for line in lines):
        assert code_of(text) == text


@given(st.text(alphabet="ab`~\n ", max_size=40), st.sampled_from(["`", "~"]))
def test_what_is_fenced_by_more_than_it_holds_comes_out_as_it_is(code: str, mark: str) -> None:
    fence = mark * 41
    assert code_of(f"Here:\n\n{fence}python\n{code}\n{fence}\n") == f"{code}\n"
