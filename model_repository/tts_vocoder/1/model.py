"""Triton's entry into the stage tts_vocoder. The code is in backends/vocoder/."""

import os
import sys

# The repository root: three folders up, unless the model repository was copied elsewhere.
sys.path.insert(
    0, os.environ.get("VOXSTAGE_HOME") or os.path.abspath(os.path.join(os.path.dirname(__file__), *3 * [".."]))
)

from backends.stage import triton_model
from backends.vocoder.service import VocoderStage

TritonPythonModel = triton_model(VocoderStage)
