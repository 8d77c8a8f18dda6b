"""A request as input tensors."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from client import InvalidArgument, SpeechRequest
from client.request import make_request


def tensors(request: SpeechRequest) -> dict[str, tuple[str, list[int], bytes]]:
    return {t.name(): (t.datatype(), list(t.shape()), t._get_content()) for t in request.inputs()}


def test_only_what_is_set_is_sent() -> None:
    sent = tensors(SpeechRequest("Hi."))
    assert sent == {"text": ("BYTES", [1], b"\x03\0\0\0Hi."), "format": ("BYTES", [1], b"\x03\0\0\0f32")}


def test_every_field_has_its_type() -> None:
    sent = tensors(
        SpeechRequest(
            "Hi.",
            seed=2**63 - 1,
            temperature=0.5,
            top_p=1,
            top_k=0,
            max_frames=7,
            format="s16",
            first_chunk_frames=1,
            chunk_frames=2,
        )
    )
    assert sent["seed"] == ("INT64", [1], struct.pack("<q", 2**63 - 1))
    assert sent["temperature"] == ("FP32", [1], struct.pack("<f", 0.5))
    assert sent["top_p"] == ("FP32", [1], struct.pack("<f", 1.0))
    for name, value in (("top_k", 0), ("max_frames", 7), ("first_chunk_frames", 1), ("chunk_frames", 2)):
        assert sent[name] == ("INT32", [1], struct.pack("<i", value))
    assert sent["format"][2] == b"\x03\0\0\0s16"
    assert len(sent) == 9


@pytest.mark.parametrize("text", ["", "Grüße, 好!", "a\0b\0", b"\xc3\x28", b"", "\n</user_inst>"])
def test_text_goes_out_byte_for_byte(text: str | bytes) -> None:
    raw = text if isinstance(text, bytes) else text.encode()
    assert tensors(SpeechRequest(text))["text"][2] == struct.pack("<I", len(raw)) + raw


def test_values_out_of_the_servers_limits_are_the_servers_to_refuse() -> None:
    sent = tensors(SpeechRequest("", seed=-1, temperature=float("nan"), top_p=1.1, top_k=-1, max_frames=0))
    assert sent["seed"][2] == struct.pack("<q", -1)
    assert np.isnan(np.frombuffer(sent["temperature"][2], np.float32)[0])
    assert np.isinf(np.frombuffer(tensors(SpeechRequest("", temperature=1e300))["temperature"][2], np.float32)[0])


@pytest.mark.parametrize(
    ("params", "field", "said"),
    [
        ({"seed": 2**63}, "seed", "9223372036854775808 is above 9223372036854775807"),
        ({"top_k": -(2**31) - 1}, "top_k", "-2147483649 is below -2147483648"),
        ({"max_frames": 2**31}, "max_frames", "2147483648 is above 2147483647"),
        ({"seed": 1.0}, "seed", "1.0 is a float"),
        ({"seed": True}, "seed", "True is a bool"),
        ({"temperature": "warm"}, "temperature", "'warm' is a str"),
        ({"temperature": 10**400}, "temperature", "too large"),
        ({"format": "mp3"}, "format", "'mp3'"),
        ({"format": "b64"}, "format", "'b64'"),
        ({"extra": {"voice": object()}}, "voice", "object"),
        ({"extra": {"voice": np.zeros(1, np.complex64)}}, "voice", "complex64"),
    ],
)
def test_what_fits_no_tensor_is_refused_by_name(params: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SpeechRequest("Hi.", **params).inputs()
    assert caught.value.field == field
    assert said in str(caught.value)


def test_text_that_is_no_text() -> None:
    with pytest.raises(InvalidArgument, match=r"character 2 .*surrogate") as caught:
        SpeechRequest("ab\ud800").inputs()
    assert caught.value.field == "text"
    with pytest.raises(InvalidArgument, match="a NoneType"):
        SpeechRequest(None).inputs()  # type: ignore[arg-type]


def test_extra_inputs() -> None:
    extra = {"voice": "joe", "fast": True, "take": 3, "pitch": 1.5, "rows": np.zeros((2, 3), np.int32)}
    sent = tensors(SpeechRequest("Hi.", extra=extra))
    assert sent["voice"] == ("BYTES", [1], b"\x03\0\0\0joe")
    assert sent["fast"] == ("BOOL", [1], b"\x01")
    assert sent["take"][:2] == ("INT64", [1])
    assert sent["pitch"][:2] == ("FP32", [1])
    assert sent["rows"][:2] == ("INT32", [2, 3])


def test_extra_inputs_replace_or_leave_out_fields() -> None:
    sent = tensors(SpeechRequest("Hi.", seed=1, extra={"seed": 1.5, "text": None, "format": "mp3"}))
    assert sent == {"seed": ("FP32", [1], struct.pack("<f", 1.5)), "format": ("BYTES", [1], b"\x03\0\0\0mp3")}


def test_keyword_parameters_make_a_request() -> None:
    assert make_request("Hi.", {"seed": 1}) == SpeechRequest("Hi.", seed=1)
    assert make_request(SpeechRequest("Hi.", seed=1), {"top_k": 5}) == SpeechRequest("Hi.", seed=1, top_k=5)
    with pytest.raises(InvalidArgument, match="chunk_frames, extra, first_chunk_frames") as caught:
        make_request("Hi.", {"sed": 1})
    assert caught.value.field == "sed"
