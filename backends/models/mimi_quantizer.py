"""Mimi's split residual quantizer, decode side: the first codebooks are semantic, the others acoustic.

Public formula: a codebook's entry is ``embed_sum / max(cluster_usage, 1e-5)``; each of the two halves adds up its
entries and passes them through its own 1x1 projection without bias (none where the widths are equal); the results are
added. All linear, so each codebook becomes a table of final vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from backends.models.codebook_table import CodebookTable
from backends.models.named_tensors import NamedTensors

_LEAST_USAGE = 1e-5


@dataclass(frozen=True, slots=True)
class SplitQuantizerSpec:
    """Sizes. ``used`` of the ``codebooks`` stored ones take part; the first ``semantic`` ones are the semantic half."""

    codebooks: int
    semantic: int
    used: int
    entries: int
    entry_dim: int
    output_dim: int


def read_split_quantizer(spec: SplitQuantizerSpec, tensors: NamedTensors, prefix: str) -> CodebookTable:
    """Take every decode-side tensor of both halves, and keep the codebooks that are used."""
    books: list[Tensor] = []
    for half, count in (("semantic", spec.semantic), ("acoustic", spec.codebooks - spec.semantic)):
        name = f"{prefix}.{half}_residual_vector_quantizer"
        projection = None
        if spec.entry_dim != spec.output_dim:
            projection = tensors.take(f"{name}.output_proj.weight", spec.output_dim, spec.entry_dim, 1)[:, :, 0]
        for i in range(count):
            total = tensors.take(f"{name}.layers.{i}.codebook.embed_sum", spec.entries, spec.entry_dim)
            usage = tensors.take(f"{name}.layers.{i}.codebook.cluster_usage", spec.entries)
            if len(books) < spec.used:
                entries = total / usage.clamp(min=_LEAST_USAGE)[:, None]
                books.append(entries if projection is None else F.linear(entries, projection))
        # The encoder's projection, and a flag of training.
        tensors.ignore(f"{name}.input_proj.", *(f"{name}.layers.{i}.codebook.initialized" for i in range(count)))
    return CodebookTable(books)
