"""Triton's entry into the stage tts_prompt. The code is in backends/prompt/."""

import os
import sys

# The repository root: three folders up, unless the model repository was copied elsewhere.
sys.path.insert(
    0, os.environ.get("VOXSTAGE_HOME") or os.path.abspath(os.path.join(os.path.dirname(__file__), *3 * [".."]))
)

from backends.prompt.service import PromptStage
from backends.stage import triton_model

TritonPythonModel = triton_model(PromptStage)
