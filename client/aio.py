"""The asyncio clients: text to speech, and speech to text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from client.connection import Connection
from client.errors import ServerError
from client.request import SpeechRequest, TranscriptionRequest, make_request, make_transcription
from client.response import read_chunk, read_transcript
from client.speech import Speech, SpeechStream, gather
from client.tensors import Audio
from client.transcript import Transcript, TranscriptStream, join, murmur

CANARY = "Hi."


class AsyncSpeechClient(Connection):
    """Streams speech from a Voxstage server. See Connection for the parameters.

    async with AsyncSpeechClient() as client:
        async for chunk in client.stream("Hello.", seed=7):
            play(chunk.audio)
    """

    task = "speak"

    def __init__(
        self,
        url: str = "localhost:8001",
        *,
        model: str = "tts",
        chunk_timeout: float = 10.0,
        first_chunk_timeout: float = 60.0,
        outputs: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            url, model=model, chunk_timeout=chunk_timeout, first_chunk_timeout=first_chunk_timeout, outputs=outputs
        )

    def stream(self, text: str | bytes | SpeechRequest, **params: Any) -> SpeechStream:
        """Speak ``text``; the parameters are the fields of SpeechRequest. The request goes out at the first ``anext``.

        Raises InvalidArgument at once for a value that cannot be sent. Iterating raises InvalidArgument, Unavailable,
        Cancelled or ServerError (the server's answer), ConnectionFailed, StreamTimeout, or StreamBroken.
        """
        self._check_open()
        stream = SpeechStream(self._source(make_request(text, params).inputs(), read_chunk, "audio"))
        self._streams.add(stream)
        return stream

    async def synthesize(self, text: str | bytes | SpeechRequest, **params: Any) -> Speech:
        """Speak ``text`` and wait for all of it. Errors as in ``stream``."""
        async with self.stream(text, **params) as stream:
            return gather([chunk async for chunk in stream], stream.started_at)

    async def canary(self) -> float:
        """One frame of speech."""
        speech = await self.synthesize(CANARY, max_frames=1)
        if len(speech.audio) == 0:
            raise ServerError("The canary came back without audio")
        return speech.timings.first_chunk_s


class AsyncTranscriber(Connection):
    """Streams the text of recordings from a Voxstage server. See Connection for the parameters.

        async with AsyncTranscriber() as client:
            async for chunk in client.stream("meeting.mp3"):
                print(chunk.text, end="", flush=True)

    ``chunk_timeout`` is longer than that of speech: a window of a long recording may wait in the server's queue.
    """

    task = "transcribe"

    def __init__(
        self,
        url: str = "localhost:8001",
        *,
        model: str = "asr",
        chunk_timeout: float = 60.0,
        first_chunk_timeout: float = 60.0,
        outputs: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            url, model=model, chunk_timeout=chunk_timeout, first_chunk_timeout=first_chunk_timeout, outputs=outputs
        )

    def stream(self, audio: Audio | TranscriptionRequest, **params: Any) -> TranscriptStream:
        """Write down ``audio``; the parameters are the fields of TranscriptionRequest. A file is read at once, the
        request goes out at the first ``anext``. Errors as in AsyncSpeechClient.stream."""
        self._check_open()
        stream = TranscriptStream(self._source(make_transcription(audio, params).inputs(), read_transcript, "text"))
        self._streams.add(stream)
        return stream

    async def transcribe(self, audio: Audio | TranscriptionRequest, **params: Any) -> Transcript:
        """Write down ``audio`` and wait for all of it. Errors as in ``stream``."""
        async with self.stream(audio, **params) as stream:
            return join([chunk async for chunk in stream], stream.started_at)

    async def canary(self) -> float:
        """A second of a murmur, and one token: what it is heard as does not matter."""
        samples, rate = murmur()
        began = time.monotonic()
        async with self.stream(samples, sample_rate=rate, max_tokens=1) as stream:
            arrivals = [chunk.received_at async for chunk in stream]
        return arrivals[0] - began
