"""The client's errors: server messages to types, and sentences."""

from __future__ import annotations

import grpc
import pytest

from client import errors
from client.errors import broken_by_server, from_message, sentence, split_message
from client.stream import from_rpc_error


@pytest.mark.parametrize(
    ("message", "kind", "code"),
    [
        ("INVALID_ARG seed: -1 is below 0", errors.InvalidArgument, "INVALID_ARG"),
        ("UNAVAILABLE 64 requests are waiting", errors.Unavailable, "UNAVAILABLE"),
        ("CANCELLED the server stops", errors.Cancelled, "CANCELLED"),
        ("INTERNAL the step failed", errors.ServerError, "INTERNAL"),
        ("INVALID_CHECKPOINT no such folder", errors.ServerError, "INTERNAL"),
        ("Stub process 'tts_decoder_0_0' is not healthy.", errors.ServerError, "INTERNAL"),
        ("UNAVAILABLE", errors.Unavailable, "UNAVAILABLE"),
        ("", errors.ServerError, "INTERNAL"),
    ],
)
def test_first_word_decides_the_type(message: str, kind: type[errors.SpeechError], code: str) -> None:
    error = from_message(message)
    assert type(error) is kind
    assert error.code == code


@pytest.mark.parametrize("stub", ["tts_decoder_0_0", "tts_decoder"])
def test_a_dead_stage_is_named_with_what_to_do(stub: str) -> None:
    error = from_message(f"in ensemble 'tts', Stub process '{stub}' is not healthy.")
    assert str(error) == (
        "The process of the server's stage tts_decoder has ended. Send the request again once the server has been "
        "started again."
    )


def test_invalid_argument_names_field_and_problem() -> None:
    error = from_message("INVALID_ARG temperature: nan is not a number from 0 to 10")
    assert isinstance(error, errors.InvalidArgument)
    assert error.field == "temperature"
    assert error.detail == "nan is not a number from 0 to 10"
    assert str(error) == "The value of temperature is not valid: nan is not a number from 0 to 10."


def test_invalid_argument_without_a_field() -> None:
    error = from_message("INVALID_ARG the request has no inputs")
    assert isinstance(error, errors.InvalidArgument)
    assert error.field is None
    assert str(error) == "The request is not valid: the request has no inputs."


def test_what_triton_puts_in_front_is_taken_off() -> None:
    error = from_message("in ensemble 'tts', INVALID_ARG text: it is blank")
    assert isinstance(error, errors.InvalidArgument)
    assert error.field == "text"
    assert split_message("[request id: <id_unknown>] in ensemble 'tts', UNAVAILABLE full") == ("UNAVAILABLE", "full")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("unexpected inference input 'bogus' for model 'tts'", "bogus"),
        ("inference input 'seed' data-type is 'FP32', but model 'tts' expects 'INT64'", "seed"),
        ("[request id: 7] unexpected shape for input 'seed' for model 'tts'. Expected [1], got [2]", "seed"),
        ("expected number of inputs between 1 and 9 but got 0 inputs for model 'tts'", None),
    ],
)
def test_inputs_that_triton_itself_refuses(message: str, field: str | None) -> None:
    error = from_message(message)
    assert isinstance(error, errors.InvalidArgument)
    assert error.field == field


def test_broken_stream_says_how_far_it_came() -> None:
    error = broken_by_server("INTERNAL vocoder: the step failed", 1)
    assert isinstance(error, errors.StreamBroken)
    assert error.code == "INTERNAL"
    assert str(error).startswith("The stream broke after 1 chunk: vocoder: the step failed.")


def test_every_error_is_a_speech_error_and_ends_like_a_sentence() -> None:
    for message in ("INVALID_ARG seed: x", "UNAVAILABLE x", "CANCELLED x", "INTERNAL x", "x"):
        assert str(from_message(message)).endswith(".")
        assert ".." not in str(from_message(message))
    assert sentence("Is it on?") == "Is it on?"


@pytest.mark.parametrize(
    ("status", "chunks", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, 0, errors.ConnectionFailed),
        (grpc.StatusCode.UNAVAILABLE, 3, errors.StreamBroken),
        (grpc.StatusCode.CANCELLED, 0, errors.Cancelled),
        (grpc.StatusCode.UNIMPLEMENTED, 0, errors.ServerError),
        (grpc.StatusCode.INVALID_ARGUMENT, 0, errors.InvalidArgument),
    ],
)
def test_calls_that_grpc_ends(status: grpc.StatusCode, chunks: int, kind: type[errors.SpeechError]) -> None:
    call_error = grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(), details="Socket closed")
    error = from_rpc_error(call_error, "localhost:8001", chunks)
    assert type(error) is kind
    assert "Socket closed" in str(error)
