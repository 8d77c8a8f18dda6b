"""Kernels of the decode step and of the streaming vocoder: one contract, two implementations.

Every function here takes tensors on either device. On the CPU it runs a torch version, which is also the reference of
the tests; on CUDA it launches a kernel written in the Triton language (``backends/kernels/gpu``), imported at the first
call, so that this package imports without a GPU and without triton. Kernels never synchronise with the host, their
grids depend on shapes alone, and a row of a result never depends on the other rows, so they may be captured in a CUDA
graph and may share a batch with anyone. A kernel is compiled at its first call with new shapes: warm up before capture.
"""

from backends.kernels.activation import bias_activation, silu_mul
from backends.kernels.attention import AttentionWorkspace, attention_workspace, paged_decode_attention, split_keys_for
from backends.kernels.frame import frame_attention
from backends.kernels.linear import LinearWorkspace, Plan, gate_up_silu, linear_workspace, plan_for, skinny_linear
from backends.kernels.norm import accumulate_layer_norm, add_layer_norm, add_rms_norm, layer_norm
from backends.kernels.prefill import paged_prefill_attention
from backends.kernels.ring import ring_attention, rope_ring_store
from backends.kernels.rope import qk_norm_rope_store
from backends.kernels.row_key import row_keys_kernel
from backends.kernels.sampling import Draws, sample_embed, sample_ids
from backends.kernels.step import SlotState, StepInput, begin_step, embed_rows, finish_step

__all__ = [
    "AttentionWorkspace",
    "Draws",
    "LinearWorkspace",
    "Plan",
    "SlotState",
    "StepInput",
    "accumulate_layer_norm",
    "add_layer_norm",
    "add_rms_norm",
    "attention_workspace",
    "begin_step",
    "bias_activation",
    "embed_rows",
    "finish_step",
    "frame_attention",
    "gate_up_silu",
    "layer_norm",
    "linear_workspace",
    "paged_decode_attention",
    "paged_prefill_attention",
    "plan_for",
    "qk_norm_rope_store",
    "ring_attention",
    "rope_ring_store",
    "row_keys_kernel",
    "sample_embed",
    "sample_ids",
    "silu_mul",
    "skinny_linear",
    "split_keys_for",
]
