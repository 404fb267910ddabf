"""The model of the benchmarks."""

import json
from pathlib import Path

from app.engine.models import load
from app.engine.sampling import Sampling
from app.engine.scheduler import Engine
from benchmarks.base import endless
from tests import tiny


def test_no_answer_ends_early(engine: Engine) -> None:
    prompts = [engine.encode_text(text) for text in ("turn on", "the light", "open")]
    done = engine.generate(None, prompts, Sampling(max_tokens=40))
    assert [len(row.tokens) for row in done[0]] == [40, 40, 40]


def test_the_models_own_end_token_ends_nothing(model: Path) -> None:
    tokenizer = load(model).tokenizer
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") not in tokenizer.eos_token_ids


def test_the_tokenizers_end_is_a_special_token_without_a_use(tmp_path: Path) -> None:
    source = tiny.build(tmp_path / "source")
    settings = json.loads((source / "tokenizer_config.json").read_text())
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    spare = {"id": 300, "content": "<spare>", "special": True}
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | spare)
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    made = endless(source, tmp_path / "endless")
    assert json.loads((made / "tokenizer_config.json").read_text())["eos_token"] == "<spare>"
    assert settings["eos_token"] != "<spare>"
