"""The engine's promise with Mimi behind it: the same bits for every chunking and every load. torch.equal, never a
tolerance, as matrix products on padded rows allow it on a CPU."""

from __future__ import annotations

import random

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from backends.errors import InvalidArgument
from backends.models.mimi import Mimi
from backends.vocoder.engine import CodeChunk
from backends.vocoder.streaming import StreamingVocoder
from tests.mimi_cases import CONFIGS, mimi_codec, mimi_model

torch.set_num_threads(1)
# Less audio a frame than the configs of the parity tests: a thousand frames are cheap, and as far past the window.
LONG = CONFIGS["small"] | {"upsampling_ratios": [3, 2], "sampling_rate": 1200}


@pytest.fixture(scope="module")
def codec() -> Mimi:
    return mimi_codec(mimi_model(**LONG))


def random_codes(codec: Mimi, frames: int, seed: int) -> torch.Tensor:
    return torch.randint(
        codec.entries, (frames, codec.codebooks), generator=torch.Generator().manual_seed(seed), dtype=torch.int32
    )


def cuts(frames: int, rng: random.Random, longest: int = 50) -> list[int]:
    sizes: list[int] = []
    while sum(sizes) < frames:
        sizes.append(min(rng.randint(1, longest), frames - sum(sizes)))
    return sizes


def stream(vocoder: StreamingVocoder, codes: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    slot = vocoder.open()
    audio = [vocoder.decode([slot], part[None])[0] for part in codes.split(sizes)]
    vocoder.close(slot)
    return torch.cat(audio)


def crowd(
    vocoder: StreamingVocoder, streams: dict[int, tuple[torch.Tensor, list[int]]], rng: random.Random, slots: int
) -> tuple[dict[int, torch.Tensor], set[int]]:
    """Run every stream on its own schedule; they join when the dice say so and leave at their end.

    Returns the audio of each, and how many streams were live at each turn.
    """
    waiting = list(streams)
    rng.shuffle(waiting)
    live: dict[int, tuple[int, list[torch.Tensor]]] = {}
    made: dict[int, list[torch.Tensor]] = {name: [] for name in streams}
    loads = set()
    while waiting or live:
        while waiting and len(live) < slots and (not live or rng.random() < 0.6):
            name = waiting.pop()
            codes, sizes = streams[name]
            live[name] = (vocoder.open(), list(codes.split(sizes)))
        turn = list(live)
        rng.shuffle(turn)
        loads.add(len(turn))
        results = vocoder.decode_each([CodeChunk(live[name][0], live[name][1].pop(0)) for name in turn])
        for name, audio in zip(turn, results, strict=True):
            assert isinstance(audio, torch.Tensor), audio
            made[name].append(audio)
            if not live[name][1]:
                vocoder.close(live.pop(name)[0])
    return {name: torch.cat(pieces) for name, pieces in made.items()}, loads


def test_a_thousand_frames_in_random_chunks_equal_whole_under_changing_load(codec: Mimi) -> None:
    """Steps of 1 to 50 frames of 1 to 16 streams, 25 windows long, at one bucket: no difference at any frame, so none
    that grows."""
    rng = random.Random(0)
    vocoder = StreamingVocoder(codec, step_streams=16, slots=16)
    streams = [random_codes(codec, 1000, seed) for seed in range(20)]
    made: list[list[torch.Tensor]] = [[] for _ in streams]
    waiting, live, loads = list(range(20)), dict[int, int](), set()
    done = [0] * 20
    while waiting or live:
        while waiting and len(live) < 16 and rng.random() < 0.8:
            live[waiting[-1]] = vocoder.open()
            waiting.pop()
        turn = rng.sample(sorted(live), rng.randint(min(1, len(live)), len(live)))
        frames = rng.randint(1, 50)
        chunks = [CodeChunk(live[name], streams[name][done[name] : done[name] + frames]) for name in turn]
        loads.add(sum(len(chunk.codes) == frames for chunk in chunks))
        for name, chunk, audio in zip(turn, chunks, vocoder.decode_each(chunks), strict=True):
            assert isinstance(audio, torch.Tensor), audio
            made[name].append(audio)
            done[name] += len(chunk.codes)
            if done[name] == 1000:
                vocoder.close(live.pop(name))
    assert loads >= set(range(1, 17))
    assert torch.equal(torch.cat(made[0]), vocoder.decode_whole(streams[0]))
    alone = StreamingVocoder(codec, slots=1)
    for codes, pieces in zip(streams, made, strict=True):
        assert torch.equal(torch.cat(pieces), alone.decode_whole(codes)), "the bucket matters"
    assert torch.equal(torch.cat(made[0]), codec.decode(streams[0])), "the length of a step matters"


def test_alone_equals_among_fifteen_others(codec: Mimi) -> None:
    rng = random.Random(1)
    vocoder = StreamingVocoder(codec, step_streams=16, slots=16)
    codes, sizes = random_codes(codec, 120, 99), cuts(120, rng, longest=6)
    alone = stream(vocoder, codes, sizes)
    others = {name: random.Random(name).randint(20, 100) for name in range(15)}
    streams = {name: (random_codes(codec, n, name), cuts(n, rng, longest=6)) for name, n in others.items()}
    made, loads = crowd(vocoder, streams | {99: (codes, sizes)}, rng, slots=16)
    assert max(loads) > 10
    assert torch.equal(made[99], alone)


@pytest.mark.parametrize("name", CONFIGS)
def test_chunked_equals_whole_for_other_sizes(name: str) -> None:
    codec = mimi_codec(mimi_model(**CONFIGS[name]))
    rng = random.Random(2)
    codes = random_codes(codec, 150, 5)
    for bucket in (1, 3):
        vocoder = StreamingVocoder(codec, step_streams=bucket, slots=1)
        whole = vocoder.decode_whole(codes)
        assert whole.shape == (150 * codec.hop * codec.channels,)
        for sizes in ([1] * 150, cuts(150, rng), cuts(150, rng, longest=7)):
            assert torch.equal(stream(vocoder, codes, sizes), whole), sizes


def test_every_chunk_length_is_exact(codec: Mimi) -> None:
    vocoder = StreamingVocoder(codec, slots=1, max_step_frames=60)
    sizes = list(range(1, 61))
    codes = random_codes(codec, sum(sizes), 9)
    slot = vocoder.open()
    pieces = [vocoder.decode([slot], part[None])[0] for part in codes.split(sizes)]
    assert [len(piece) for piece in pieces] == [frames * 12 for frames in sizes]
    assert torch.equal(torch.cat(pieces), vocoder.decode_whole(codes))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_fresh_stream_sees_nothing_of_what_its_slot_holds(name: str) -> None:
    codec = mimi_codec(mimi_model(**CONFIGS[name]))
    vocoder = StreamingVocoder(codec, slots=1)
    codes = random_codes(codec, 30, 3)
    fresh = stream(vocoder, codes, [4, 26])
    stream(vocoder, random_codes(codec, 45, 7), [20, 25])
    assert torch.equal(stream(vocoder, codes, [1, 29]), fresh)
    with torch.inference_mode():
        for tensor in vocoder.state.tensors:
            tensor.fill_(1e4)
    assert torch.equal(stream(vocoder, codes, [1, 29]), fresh)
    assert torch.equal(vocoder.decode_whole(codes), fresh), "a scratch place"


def test_state_never_moves_and_other_slots_are_left_alone(codec: Mimi) -> None:
    vocoder = StreamingVocoder(codec, slots=3)
    before = [t.data_ptr() for t in (*vocoder.state.tensors, vocoder.state.frames)]
    slot = vocoder.open()
    with torch.inference_mode():
        for tensor in vocoder.state.tensors:
            tensor.fill_(7.0)
    vocoder.decode([slot], random_codes(codec, 40, 0)[None])
    assert [t.data_ptr() for t in (*vocoder.state.tensors, vocoder.state.frames)] == before
    history = vocoder.state.tensors[1]
    for place in {0, 1, 2, 3} - {slot}:
        assert bool((history[:, :, place] == 7.0).all())
        for context in (vocoder.state.tensors[0], *vocoder.state.tensors[2:]):
            assert bool((context[place] == 7.0).all()) and not bool((context[slot] == 7.0).any())


@torch.inference_mode()
def test_a_step_asks_the_host_nothing(codec: Mimi) -> None:
    """Tensors without values run through a step: a shape from data, or a value that Python reads, would raise."""
    state = codec.new_state(3, 25)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        codes = torch.zeros(2, 5, codec.codebooks, dtype=torch.int64)
        frames, slots = torch.zeros(2, dtype=torch.int64), torch.arange(2)
        audio = codec.step(codes, frames, slots, [mode.from_tensor(tensor) for tensor in state])
        assert audio.shape == (2, 5 * 12)
        with pytest.raises(DataDependentOutputException):
            int(slots.max())


def test_a_bad_code_fails_its_own_stream_only(codec: Mimi) -> None:
    vocoder = StreamingVocoder(codec, step_streams=2, slots=2)
    slots = [vocoder.open(), vocoder.open()]
    codes = [random_codes(codec, 8, seed) for seed in range(2)]
    broken = codes[1].clone()
    broken[2, 1] = codec.entries
    good, bad = vocoder.decode_each([CodeChunk(slots[0], codes[0]), CodeChunk(slots[1], broken)])
    assert isinstance(bad, InvalidArgument) and "codes: 64 is above 63" in str(bad)
    assert isinstance(good, torch.Tensor) and torch.equal(good, vocoder.decode_whole(codes[0]))
    again = vocoder.decode([slots[1]], codes[1][None])[0]
    assert torch.equal(again, vocoder.decode_whole(codes[1])), "the refused chunk moved its stream's state"
