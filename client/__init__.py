"""Client of a Voxstage server: text to speech and back, in chunks. Needs numpy and tritonclient[grpc] alone."""

from client.aio import AsyncSpeechClient, AsyncTranscriber
from client.chunk import AudioChunk
from client.errors import (
    Cancelled,
    ClientClosed,
    ConnectionFailed,
    InvalidArgument,
    ServerError,
    SpeechError,
    StreamBroken,
    StreamTimeout,
    Unavailable,
)
from client.health import Health
from client.playback import Playback
from client.request import SpeechRequest, TranscriptionRequest
from client.speech import Speech, SpeechStream
from client.sync import SpeechClient, SyncSpeechStream, SyncTranscriptStream, Transcriber
from client.transcript import Segment, Transcript, TranscriptChunk, TranscriptStream
from client.wav import WavWriter

__all__ = [
    "AsyncSpeechClient",
    "AsyncTranscriber",
    "AudioChunk",
    "Cancelled",
    "ClientClosed",
    "ConnectionFailed",
    "Health",
    "InvalidArgument",
    "Playback",
    "Segment",
    "ServerError",
    "Speech",
    "SpeechClient",
    "SpeechError",
    "SpeechRequest",
    "SpeechStream",
    "StreamBroken",
    "StreamTimeout",
    "SyncSpeechStream",
    "SyncTranscriptStream",
    "Transcriber",
    "Transcript",
    "TranscriptChunk",
    "TranscriptStream",
    "TranscriptionRequest",
    "Unavailable",
    "WavWriter",
]
