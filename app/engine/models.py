"""Base models: load one, strictly, and hand out the few parts of it that nightowl builds on.

The one module that touches mlx-lm's private names (pinned exactly; ``tests`` hold the contract for
each family). It never goes online: folders are checked before mlx-lm sees them, and the hub client
is switched off for the whole process before it is imported.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from huggingface_hub import constants as hub_constants
from mlx import nn
from mlx.utils import tree_flatten, tree_map

from app.engine.folder import (
    BUILTIN,
    PROJECTIONS,
    ModelError,
    ModelInfo,
    base_hash,
    check_files,
    installed,
    read_tensors,
    resolve,
    show,
    weight_files,
)
from app.engine.pull import pull

# The variable for child processes and a first import, the constant for one that is past.
os.environ["HF_HUB_OFFLINE"] = "1"
hub_constants.HF_HUB_OFFLINE = True


@contextmanager
def _own_file_limits() -> Iterator[None]:
    """Keeps this process's RLIMIT_NOFILE while mlx-lm is imported.

    mlx-lm sets it to (2048, 4096) on import. Without privileges a lowered hard limit cannot be
    raised again, and a hard limit below 4096 makes the import fail: so the call is kept from
    happening, not undone.
    """
    setrlimit = resource.setrlimit
    resource.setrlimit = lambda *_: None
    try:
        yield
    finally:
        resource.setrlimit = setrlimit


with _own_file_limits():
    from mlx_lm import utils as mlx_lm_utils
    from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
    from mlx_lm.models.gemma3_text import Gemma3Model
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Tokenizer = TokenizerWrapper  # what others need of mlx-lm's, so that they need not import it

__all__ = [
    "BUILTIN",
    "PROBED_FAMILIES",
    "LoadedModel",
    "ModelError",
    "ModelInfo",
    "Tokenizer",
    "attention_windows",
    "base_hash",
    "head",
    "inner",
    "installed",
    "load",
    "pull",
    "resolve",
    "show",
]

# Families whose structure the tests pin. Any other is probed when it is loaded.
PROBED_FAMILIES = frozenset({"llama", "qwen2", "qwen3", "gemma3", "gemma3_text"})


@dataclass(frozen=True)
class LoadedModel:
    """A base model in memory. ``module`` is mlx-lm's ``Model``; its weights are never written."""

    info: ModelInfo
    module: nn.Module
    tokenizer: TokenizerWrapper


def load(path: Path, dtype: mx.Dtype | None = None, dense_fp32: bool = False) -> LoadedModel:
    """Loads a model folder; all weights are evaluated in the calling thread.

    ``dtype`` casts every floating-point array (norms, scales, biases), leaving the packed codes.
    ``dense_fp32`` replaces each quantised layer by its dequantised fp32 one and casts the rest to
    fp32: numerically the same model, for CPUs whose quantised kernels are slow; it takes
    ``4 * info.parameters`` bytes. Raises ``ModelError`` naming the file and the reason.
    """
    path = path.resolve()
    check_files(path)
    info = show(path)
    module, config = _load_module(path)
    _check_finite(module, path)
    _check_structure(module, info)
    if dense_fp32:
        _make_dense(module)
        dtype = mx.float32
    if dtype is not None:
        module.set_dtype(dtype)
    module.freeze()
    mx.eval(module.parameters())
    if info.family not in PROBED_FAMILIES:
        _probe(module, info)
    return LoadedModel(info, module, _load_tokenizer(path, config, info))


def inner(module: nn.Module) -> nn.Module:
    """The decoder stack: ``(tokens, cache) -> hidden``; has ``layers``, ``embed_tokens``, ``norm``.

    Gemma 3 with its vision part keeps the text model one level deeper.
    """
    stack: nn.Module = _text_model(module).model
    return stack


def embed(module: nn.Module, tokens: mx.array) -> mx.array:
    """(B, L) token ids -> (B, L, hidden), what enters the stack's first layer."""
    stack = _text_model(module).model
    hidden: mx.array = stack.embed_tokens(tokens)
    if type(stack) is Gemma3Model:
        # As mlx-lm computes it: the factor is rounded to bfloat16.
        hidden = hidden * mx.array(stack.args.hidden_size**0.5, mx.bfloat16).astype(hidden.dtype)
    return hidden


def head(module: nn.Module, hidden: mx.array) -> mx.array:
    """Logits (..., vocab) of the stack's output (..., hidden)."""
    text_model = _text_model(module)
    tied = "lm_head" not in text_model
    project = text_model.model.embed_tokens.as_linear if tied else text_model.lm_head
    logits: mx.array = project(hidden)
    return logits


def head_rows(module: nn.Module, ids: mx.array) -> mx.array:
    """The head's weights of tokens (...,), dequantised: (..., hidden)."""
    text_model = _text_model(module)
    if "lm_head" not in text_model:
        tied: mx.array = text_model.model.embed_tokens(ids)
        return tied
    layer = text_model.lm_head
    if not isinstance(layer, nn.QuantizedLinear):
        weight: mx.array = layer.weight[ids]
        return weight
    biases = layer.get("biases")
    return mx.dequantize(
        layer.weight[ids],
        layer.scales[ids],
        None if biases is None else biases[ids],
        group_size=layer.group_size,
        bits=layer.bits,
        mode=layer.mode,
    )


def fast_tokenizer(wrapper: TokenizerWrapper) -> Any:
    """The Hugging Face tokenizer inside mlx-lm's wrapper."""
    return wrapper._tokenizer


def attention_windows(module: nn.Module) -> list[int | None]:
    """Per layer the number of tokens its attention looks back, None for all of them."""
    return [_window(cache) for cache in make_prompt_cache(module)]


def _window(cache: Any) -> int | None:
    if type(cache) is KVCache:
        return None
    if type(cache) is RotatingKVCache:
        return int(cache.max_size)
    raise ModelError(f"attention with a {type(cache).__name__} is not supported")


def _text_model(module: nn.Module) -> Any:
    return module.language_model if "language_model" in module else module


def _load_module(path: Path) -> tuple[nn.Module, dict[str, Any]]:
    try:
        module, config = mlx_lm_utils.load_model(path, lazy=False, strict=True)
    except Exception as error:  # mlx-lm raises whatever a model's own code raises
        raise ModelError(_reason(path, error)) from error
    return module, config


def _reason(path: Path, error: Exception) -> str:
    """mlx-lm's complaint with the file that holds the tensor it names."""
    text = str(error).replace(str(path), path.name)
    words = {word.strip(".,") for word in text.split()}
    files = {t.file for name, t in read_tensors(path).items() if name in words}
    if text.startswith("Missing"):
        files = {file.name for file in weight_files(path)}
    where = ", ".join(sorted(files)) or "config.json"
    return f"{path.name}: {where}: {type(error).__name__}: {text[:300]}"


def _check_finite(module: nn.Module, path: Path) -> None:
    parameters = dict(tree_flatten(module.parameters()))
    arrays = [(n, a) for n, a in parameters.items() if mx.issubdtype(a.dtype, mx.floating)]
    finite = [mx.isfinite(array).all() for _, array in arrays]
    mx.eval(finite)
    for (name, _), good in zip(arrays, finite, strict=True):
        if not good.item():
            tensors = read_tensors(path)
            where = tensors[name].file if name in tensors else "the weights"
            raise ModelError(f"{path.name}: {where}: {name} holds NaN or infinity")


def _check_structure(module: nn.Module, info: ModelInfo) -> None:
    """The attributes that expert slots and the batch engine use; raises ``ModelError``."""
    attention = (*PROJECTIONS[:4], "rope", "scale", "n_heads", "n_kv_heads")
    try:
        stack = inner(module)
        for layer in stack.layers:
            for owner, names in ((layer.self_attn, attention), (layer.mlp, PROJECTIONS[4:])):
                for name in names:
                    getattr(owner, name)
    except AttributeError as error:
        raise ModelError(
            f"{info.name}: family {info.family} is not a dense decoder of the Llama kind: {error}"
        ) from error


def _make_dense(module: nn.Module) -> None:
    leaves = tree_map(_dequantised, module.leaf_modules(), is_leaf=nn.Module.is_module)
    module.update_modules(leaves)


def _dequantised(layer: nn.Module) -> nn.Module:
    if not isinstance(layer, nn.QuantizedLinear | nn.QuantizedEmbedding):
        return layer
    scales, biases = layer.scales, layer.biases
    if biases is not None:  # affine; the other modes pack their scales into bytes
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    weight = mx.dequantize(
        layer.weight,
        scales,
        biases,
        group_size=layer.group_size,
        bits=layer.bits,
        mode=layer.mode,
        global_scale=layer.get("global_scale"),
    ).astype(mx.float32)
    mx.eval(weight)
    dense: nn.Module
    if isinstance(layer, nn.QuantizedEmbedding):
        dense = nn.Embedding(1, 1)
    else:
        dense = nn.Linear(1, 1, bias="bias" in layer)
        if "bias" in layer:
            dense.bias = layer.bias
    dense.weight = weight
    return dense


def _probe(module: nn.Module, info: ModelInfo) -> None:
    """Refuses a family that is more than embedding, layers, norm and head."""
    tokens = mx.array([[0]])
    stack: Any = inner(module)
    hidden = embed(module, tokens)
    for layer in stack.layers:
        hidden = layer(hidden, None, None)
    ours, theirs = head(module, stack.norm(hidden)), module(tokens)
    if not mx.array_equal(ours, theirs).item():
        raise ModelError(
            f"{info.name}: family {info.family} computes its logits in a way of its own"
        )


def _load_tokenizer(path: Path, config: dict[str, Any], info: ModelInfo) -> TokenizerWrapper:
    try:
        tokenizer = mlx_lm_utils.load_tokenizer(
            path, {"trust_remote_code": False}, eos_token_ids=config.get("eos_token_id")
        )
    except Exception as error:  # transformers raises whatever a tokenizer's own code raises
        text = str(error).replace(str(path), path.name)
        raise ModelError(f"{path.name}: tokenizer.json: {text}") from error
    if len(tokenizer) > info.vocab_size:
        raise ModelError(
            f"{path.name}: tokenizer.json has {len(tokenizer)} tokens, the embedding only "
            f"{info.vocab_size} rows"
        )
    return tokenizer
