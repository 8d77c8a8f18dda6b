"""Packed linears: right, and free of any dependence on the number of rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backends.models.linear import PackedLinear, onednn_available, pack_linears

pytestmark = pytest.mark.skipif(not onednn_available(), reason="this torch build has no oneDNN")

# Every (in, out) of the default voice's decoder and vocoder.
SHAPES = [
    *[(384, 1152), (384, 384), (384, 2048), (1024, 384), (384, 1536), (1536, 384), (384, 1024), (384, 2)],
    *[(192, 576), (192, 192), (192, 768), (768, 192), (96, 192), (192, 256), (128, 256), (256, 768), (256, 240)],
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_does_not_depend_on_its_neighbours(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    packed = PackedLinear(nn.Linear(*shape, bias=False))
    rows = torch.randn(96, shape[0])
    whole = packed(rows)
    for count in (2, 3, 5, 7, 8, 12, 16, 31, 64):
        for start in (0, 1, 17):
            assert torch.equal(packed(rows[start : start + count]), whole[start : start + count])


def test_it_computes_a_linear_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Sequential(nn.Linear(128, 32, bias=False)))
    rows = torch.randn(3, 5, 64)
    expected = model.double()(rows.double())
    got = pack_linears(model.float())(rows)
    assert [type(m).__name__ for m in model.modules()].count("PackedLinear") == 2
    assert torch.allclose(got.double(), expected, atol=1e-5)
