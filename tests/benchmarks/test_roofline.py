"""The benchmark of the roofline on a tiny model: its counts, and that nothing is left out."""

import json
from pathlib import Path

import pytest

from app.engine import models
from benchmarks import roofline

SIZE = roofline.Size(
    prompts=2,
    length=8,
    population=2,
    rows=2,
    new_tokens=3,
    single_tokens=3,
    big=64,
    vector_mib=1,
    rounds=1,
)


def test_operations_are_counted_from_the_shapes(model: Path) -> None:
    counts = roofline.count(models.load(model, dense_fp32=True))
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 64 * 128 * 3
    assert sum(i * o for i, o in counts.shapes) == layer
    assert counts.flops(tokens=1, seen=0, chosen=0) == 2 * 2 * layer
    assert counts.flops(tokens=0, seen=0, chosen=1) == 2 * 64 * 320
    assert counts.flops(tokens=0, seen=1, chosen=0) == 4 * 2 * 64
    # Blocks of 8 for an input of 64, of 16 (not above the other factor) for one of 128.
    edits = 4 * 2 * (6 * 64 * 8 + 128 * 16)
    assert counts.flops(1, 0, 0, edited=True) - counts.flops(1, 0, 0) == edits
    assert counts.decode_bytes(10) == 4 * (2 * layer + 64 * 320 + 2 * 2 * 32 * 10)


def test_shares_and_components_are_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roofline.main(str(model), SIZE, tmp_path / "result.json")
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["prefill_share_of_gemm_peak"] >= 0
    assert result["decode_share_of_bandwidth"] >= 0
    expected = {"GEMM q, k, v", "GEMM o", "GEMM gate, up", "GEMM down", "edits", "norms", "head"}
    expected |= {"attention, key-value store", "activation", "rope", "embedding", "residuals"}
    for times in result["components_ms"].values():
        assert expected <= set(times)
    assert "share of peak" in capsys.readouterr().out
