"""Early launch: a kernel of a step starts while the one before it still runs (programmatic dependent launch).

Between two kernels of a stream the device idles: the last programs of one end, then the next is set up, then its first
reads take their time. From Hopper on, a kernel may be set up earlier. Four rules keep the results the same, and every
kernel of this package follows them:

1. ``gdc_wait`` stands before the first access whose result counts to anything that another kernel writes, and before
   every write. It returns when the kernel before has ended and what it wrote can be seen; that one waited too, so all
   kernels before it have ended as well.
2. Every program of every kernel waits, whatever its arguments, or the chain of rule 1 breaks. Kernels of torch in
   between are launched the usual way: they begin when everything before has ended.
3. Ahead of the wait a program may read constants of the model, and fetch into the L2 cache what it will read after it.
   What steers such a fetch may be read there too, past the L1 cache and if every value leads to a valid address; it
   is read again after the wait.
4. ``gdc_launch_dependents``, which allows the next kernel to be set up, stands behind the wait: sooner, kernels that
   can do nothing yet would hold room, and what they fetch would be gone from the cache when it is wanted. In a
   product it stands behind the loop over the weights.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_enabled = [True]


@triton.jit
def fetch(addresses, mask):
    """Bring the 128-byte lines of ``addresses`` (pointers or int64) into the L2 cache where ``mask`` is true."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [addresses.to(tl.int64), mask.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def allow_early_launch(allowed: bool) -> None:
    """Switch early launch for kernels launched from now on: for comparisons. Captured graphs stay as they are."""
    _enabled[0] = allowed


def early_launch(x: Tensor) -> dict[str, Any]:
    """Keyword arguments of a launch on the device of ``x``: ``EARLY``, and the launch attribute where it is true."""
    if x.is_cuda and _enabled[0] and _hopper(x.device):
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


@cache
def _hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
