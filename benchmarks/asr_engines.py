"""Three that write down what they hear: our models in process, our server, and transformers. Whisper, greedy."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from backends.asr.log_mel import RATE, log_mel
from backends.decoder.chunks import ChunkSchedule
from backends.decoder.config import EngineConfig
from backends.decoder.engine import DecoderEngine
from backends.decoder.prompt_audio import PromptAudio
from backends.decoder.request import Chunk, DecodeRequest
from backends.decoder.sampler import SamplingParams
from backends.errors import VoxstageError
from backends.models.whisper import Whisper
from backends.models.whisper_encoder import WhisperEncoder
from backends.models.whisper_prompt import WhisperPrompt

Samples = NDArray[np.float32]
_CPU, _SECONDS = torch.device("cpu"), 30
_GREEDY = SamplingParams(0, 0.0, 1.0, 0, 1.0)


class InProcess:
    """Log-mel, encoder and decoder engine of ``backends`` without Triton, float32 on the CPU."""

    def __init__(self, folder: Path, running: int) -> None:
        self._encoder = WhisperEncoder.load(folder, _CPU, torch.float32)
        model = Whisper.load(folder, _CPU, torch.float32)
        self._prompts, self._running, self._made = WhisperPrompt(folder), running, 0
        self._engine = DecoderEngine(
            model, EngineConfig(max_running=running, max_positions=448, num_threads=torch.get_num_threads())
        )

    def write(self, clips: Sequence[Samples], at_once: int) -> list[str]:
        """The text of each clip, of 30 s at most. ``at_once`` of them are inside the engine together."""
        if at_once > self._running:
            raise ValueError(f"{at_once} at once; this engine runs {self._running}")
        texts: list[str] = []
        for first in range(0, len(clips), at_once):
            with torch.inference_mode():
                requests = [self._request(clip) for clip in clips[first : first + at_once]]
            for request in requests:
                self._engine.submit(request)
            texts += [request.sink.text() for request in requests if isinstance(request.sink, _Text)]
        self._engine.check_idle()
        return texts

    def close(self) -> None:
        """End the engine's thread."""
        self._engine.close()

    def _request(self, clip: Samples) -> DecodeRequest:
        mels = torch.from_numpy(log_mel(clip, self._encoder.config.mels, _SECONDS * RATE))
        rows = torch.from_numpy(self._prompts.build()).long()
        audio = PromptAudio(self._encoder(mels[None])[0], clip.tobytes())
        self._made += 1
        room = 448 - len(rows)
        return DecodeRequest(self._made, rows, _GREEDY, room, ChunkSchedule(8, 8), _Text(self._prompts), audio)


class _Text:
    """Joins the pieces of one text, as the stage does."""

    def __init__(self, prompts: WhisperPrompt) -> None:
        self._stream, self._parts = prompts.stream(), queue.Queue[str | VoxstageError | None]()

    def chunk(self, chunk: Chunk) -> None:
        self._parts.put(self._stream.feed(chunk.codes[:, 0].tolist()))
        if chunk.final:
            self._parts.put(self._stream.end())
            self._parts.put(None)

    def fail(self, error: VoxstageError) -> None:
        self._parts.put(error)

    def end(self) -> None:
        """The stream is over; its last chunk said so."""

    def text(self) -> str:
        """All of it, once it is finished. Raises what the request failed with."""
        text = ""
        while (part := self._parts.get(timeout=300)) is not None:
            if isinstance(part, VoxstageError):
                raise part
            text += part
        return text


class Server:
    """The ensemble ``asr`` of a running server, over gRPC."""

    def __init__(self, url: str) -> None:
        self._url = url

    def write(self, clips: Sequence[Samples], at_once: int) -> list[str]:
        """The text of each clip. ``at_once`` requests are under way together."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(self._one, clips))

    def _one(self, clip: Samples) -> str:
        from tritonclient.grpc import InferenceServerClient, InferInput

        inputs = [InferInput("audio", [len(clip)], "FP32"), InferInput("sample_rate", [1], "INT32")]
        inputs[0].set_data_from_numpy(clip)
        inputs[1].set_data_from_numpy(np.array([RATE], dtype=np.int32))
        answers: queue.Queue[tuple[object, Exception | None]] = queue.Queue()
        text = b""
        with InferenceServerClient(self._url) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            client.async_stream_infer("asr", inputs)
            while True:
                result, error = answers.get(timeout=300)
                if error is not None:
                    raise error
                value = partial(_value, result)
                text += value("text")
                if value("finish_reason") == b"error":
                    raise RuntimeError(value("error").decode())
                if value("final"):
                    return text.decode()


def _value(result: object, name: str) -> bytes:
    return result.as_numpy(name)[0]  # type: ignore[attr-defined]


class Reference:
    """``generate()`` of transformers on its own features, one clip at a time, float32 on the CPU."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

        self._extractor = WhisperFeatureExtractor.from_pretrained(folder)
        self._model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(folder)

    def write(self, clips: Sequence[Samples]) -> list[str]:
        """The text of each clip, of 30 s at most."""
        texts = []
        for clip in clips:
            features = self._extractor(clip, sampling_rate=RATE, return_tensors="pt").input_features
            with torch.inference_mode():
                tokens = self._model.generate(features, num_beams=1, do_sample=False)[0]
            texts.append(self._tokenizer.decode(tokens, skip_special_tokens=True).strip())
        return texts
