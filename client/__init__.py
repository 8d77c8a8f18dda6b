"""Client of a Voxstage server: text in, speech out, chunk by chunk. Needs numpy and tritonclient[grpc] alone."""

from client.aio import AsyncSpeechClient
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
from client.request import SpeechRequest
from client.speech import Speech
from client.stream import SpeechStream
from client.sync import SpeechClient, SyncSpeechStream
from client.wav import WavWriter

__all__ = [
    "AsyncSpeechClient",
    "AudioChunk",
    "Cancelled",
    "ClientClosed",
    "ConnectionFailed",
    "Health",
    "InvalidArgument",
    "Playback",
    "ServerError",
    "Speech",
    "SpeechClient",
    "SpeechError",
    "SpeechRequest",
    "SpeechStream",
    "StreamBroken",
    "StreamTimeout",
    "SyncSpeechStream",
    "Unavailable",
    "WavWriter",
]
