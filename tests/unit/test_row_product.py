"""Rows of a product that do not know how many they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from backends.models import row_product
from backends.models.linear import onednn_available
from backends.models.row_product import RowProduct

#: Those of the demo voice's codec, of Mimi, and those that MKL was seen to split by the number of rows.
SHAPES = [(192, 576), (192, 768), (768, 192), (1024, 256), (512, 2048), (2048, 512), (1280, 320)]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    row_product._takes_packed.cache_clear()


def made(inputs: int, outputs: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(inputs, outputs, generator=generator),
        torch.randn(400, inputs, generator=generator),
        torch.randn(400, outputs, generator=generator),
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_is_the_same_among_few_and_many(shape: tuple[int, int]) -> None:
    matrix, rows, total = made(*shape)
    product = RowProduct(matrix)
    with torch.inference_mode():
        whole, added = product.mm(rows), product.add_to(total.clone(), rows)
        for count in range(8, 400, 8):
            part = rows[:count].contiguous()
            assert torch.equal(product.mm(part), whole[:count]), count
            assert torch.equal(product.add_to(total[:count].clone(), part), added[:count]), count


@pytest.mark.skipif(not onednn_available(), reason="this torch has no packed products")
@pytest.mark.parametrize("mkl", [True, False], ids=["mkl", "onednn"])
def test_both_libraries_compute_the_product(monkeypatch: pytest.MonkeyPatch, mkl: bool) -> None:
    answers = iter([mkl, True])
    monkeypatch.setattr(row_product, "_agrees", lambda *_: next(answers))
    row_product._takes_packed.cache_clear()
    matrix, rows, total = made(96, 40)
    product, bias = RowProduct(matrix), torch.randn(40)
    assert (product._packed is None) == mkl
    expected = rows.double() @ matrix.double()
    with torch.inference_mode():
        for found, wanted in (
            (product.mm(rows), expected),
            (product.mm(rows, bias), expected + bias),
            (product.add_to(total.clone(), rows), expected + total),
        ):
            assert torch.allclose(found.double(), wanted, atol=1e-4)


def test_where_no_library_agrees_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    never: Callable[..., bool] = lambda *_: False  # noqa: E731
    monkeypatch.setattr(row_product, "_agrees", never)
    row_product._takes_packed.cache_clear()
    matrix, rows, _ = made(96, 40)
    assert torch.equal(RowProduct(matrix).mm(rows), rows.mm(matrix))
    assert "[96, 40] depend on their number" in caplog.text
