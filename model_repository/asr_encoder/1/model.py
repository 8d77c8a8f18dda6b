"""Triton's entry into the stage asr_encoder. The code is in backends/asr/."""

import os
import sys

# The repository root: three folders up, unless the model repository was copied elsewhere.
sys.path.insert(
    0, os.environ.get("VOXSTAGE_HOME") or os.path.abspath(os.path.join(os.path.dirname(__file__), *3 * [".."]))
)

from backends.asr.encoder_service import AsrEncoderStage
from backends.stage import triton_model

TritonPythonModel = triton_model(AsrEncoderStage)
