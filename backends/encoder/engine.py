"""Running an engine of TensorRT or TensorRT-RTX in this process, to compare it with torch. Needs a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backends.errors import Internal


class EngineEncoder:
    """``plan`` on the current CUDA device, through ``trt`` (see builder.load_runtime)."""

    def __init__(self, trt: Any, plan: bytes, codebooks: int, frame_samples: int) -> None:
        self.name = str(trt.__name__)
        self._codebooks, self._frame_samples = codebooks, frame_samples
        self._log = trt.Logger(trt.Logger.ERROR)
        self._runtime = trt.Runtime(self._log)
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise Internal(f"{self.name} {trt.__version__} cannot load the engine on this GPU")
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise Internal(f"{self.name} {trt.__version__} cannot make a context for the engine on this GPU")

    def run(self, audio: torch.Tensor) -> torch.Tensor:
        """Float32 [batch, samples] on the GPU -> int32 [batch, frames, codebooks] there, on the current stream."""
        frames = audio.shape[1] // self._frame_samples
        codes = torch.empty(audio.shape[0], frames, self._codebooks, dtype=torch.int32, device=audio.device)
        if not self._context.set_input_shape("audio", tuple(audio.shape)):
            raise Internal(f"{list(audio.shape)} is outside the engine's profile")
        self._context.set_tensor_address("audio", audio.data_ptr())
        self._context.set_tensor_address("codes", codes.data_ptr())
        if not self._context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise Internal(f"{self.name} failed to run the engine")
        return codes

    def encode_batch(self, audio: NDArray[np.float32]) -> NDArray[np.int32]:
        """[batch, samples] -> [batch, frames, codebooks], on the host."""
        codes: NDArray[np.int32] = self.run(torch.from_numpy(audio).cuda().contiguous()).cpu().numpy()
        return codes

    def encode(self, audio: NDArray[np.float32]) -> NDArray[np.int32]:
        """The codes of one clip."""
        return self.encode_batch(audio[None])[0]
