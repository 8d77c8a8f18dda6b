"""The engine's promise: the same bits for every chunking, every load, every slot. torch.equal, never a tolerance."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from backends.errors import Internal, InvalidArgument, Unavailable, VoxstageError
from backends.json_file import read_json
from backends.models.moss_audio_tokenizer import MossAudioTokenizer
from backends.models.named_tensors import RandomTensors
from backends.vocoder.engine import CodeChunk
from backends.vocoder.streaming import StreamingVocoder

torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def codec() -> MossAudioTokenizer:
    return MossAudioTokenizer.load(ROOT / "checkpoints/voice/codec")


def audio_of(*results: torch.Tensor | VoxstageError) -> torch.Tensor:
    """The audio of results that must not be errors."""
    for result in results:
        assert isinstance(result, torch.Tensor), result
    return torch.cat([result for result in results if isinstance(result, torch.Tensor)])


def random_codes(frames: int, seed: int) -> torch.Tensor:
    return torch.randint(1024, (frames, 12), generator=torch.Generator().manual_seed(seed))


def cuts(frames: int, rng: random.Random, longest: int = 50) -> list[int]:
    sizes: list[int] = []
    while sum(sizes) < frames:
        sizes.append(min(rng.randint(1, longest), frames - sum(sizes)))
    return sizes


def fitting(sizes: list[int], frames: int) -> list[int]:
    """The schedule ``sizes`` for a stream that ends earlier: its last chunk is what is left."""
    kept: list[int] = []
    for size in sizes:
        kept.append(min(size, frames - sum(kept)))
        if sum(kept) == frames:
            break
    return kept


def stream(vocoder: StreamingVocoder, codes: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    slot = vocoder.open()
    audio = [vocoder.decode([slot], part[None])[0] for part in codes.split(sizes)]
    vocoder.close(slot)
    return torch.cat(audio)


@pytest.mark.parametrize("bucket", [1, 2])
def test_chunked_equals_whole_far_past_the_window(codec: MossAudioTokenizer, bucket: int) -> None:
    vocoder = StreamingVocoder(codec, step_streams=bucket, slots=3)
    rng = random.Random(bucket)
    codes = random_codes(300, bucket)
    whole = vocoder.decode_whole(codes)
    assert torch.equal(codec.decode(codes), whole)
    for sizes in (cuts(300, rng), cuts(300, rng, longest=6), cuts(300, rng)):
        assert torch.equal(stream(vocoder, codes, sizes), whole), sizes


def test_every_chunk_length_is_exact(codec: MossAudioTokenizer) -> None:
    """One stream of 1,830 frames cut into 1, 2, 3, ... 60 frames: every length, 73 windows long, the same bits to the
    end."""
    vocoder = StreamingVocoder(codec, slots=1)
    sizes = list(range(1, 61))
    codes = random_codes(sum(sizes), 9)
    audio = stream(vocoder, codes, sizes)
    assert audio.shape == (sum(sizes) * 1920,)
    assert torch.equal(audio, vocoder.decode_whole(codes))


def test_alone_equals_among_others_that_join_and_leave(codec: MossAudioTokenizer) -> None:
    """Nine streams with own schedules on four slots; chunks of equal T share steps in random company and order."""
    rng = random.Random(5)
    vocoder = StreamingVocoder(codec, step_streams=3, slots=4, max_step_frames=8)
    waiting = [(seed, random_codes(frames, seed)) for seed, frames in enumerate((40, 33, 61, 8, 45, 1, 29, 70, 52))]
    wanted = {seed: vocoder.decode_whole(codes) for seed, codes in waiting}
    live: dict[int, tuple[int, list[torch.Tensor]]] = {}
    made: dict[int, list[torch.Tensor]] = {seed: [] for seed, _ in waiting}
    places = set()
    while waiting or live:
        while waiting and len(live) < 4 and rng.random() < 0.5:
            seed, codes = waiting.pop(rng.randrange(len(waiting)))
            live[seed] = (vocoder.open(), list(codes.split(cuts(len(codes), rng, longest=6))))
            places.add((seed, live[seed][0]))
        turn = [seed for seed in live if rng.random() < 0.7]
        rng.shuffle(turn)
        chunks = [CodeChunk(live[s][0], live[s][1].pop(0)) for s in turn]
        for seed, audio in zip(turn, vocoder.decode_each(chunks), strict=True):
            assert isinstance(audio, torch.Tensor)
            made[seed].append(audio)
            if not live[seed][1]:
                vocoder.close(live.pop(seed)[0])
    for seed, pieces in made.items():
        assert torch.equal(torch.cat(pieces), wanted[seed]), seed
    assert vocoder.state.free == 4 and len({slot for _, slot in places}) > 1


def test_sixteen_long_streams_join_and_leave() -> None:
    """Streams of up to 1,000 frames, cut into 1 to 50, 1 to 16 a step; they come in groups, leave one by one, and a
    group has one schedule, or nobody would ever share a step. A codec of the voice's shape and windows, but narrow."""
    config = read_json(ROOT / "checkpoints/voice/codec/config.json")
    for entry in (*config["decoder_kwargs"], *config["encoder_kwargs"]):
        if "d_model" in entry:
            entry.update(d_model=64, num_heads=1, num_layers=1, dim_feedforward=128)
    narrow = MossAudioTokenizer(config, RandomTensors(0, torch.device("cpu"), torch.float32))
    vocoder, rng = StreamingVocoder(narrow, step_streams=16, slots=16), random.Random(16)
    codes = {seed: random_codes(1000 if seed < 2 else rng.randint(500, 1000), seed) for seed in range(24)}
    groups = [[0, *range(2, 17)], [1, 17], [18, 19, 20, 21, 22, 23]]
    live: dict[int, tuple[int, list[torch.Tensor]]] = {}
    made: dict[int, list[torch.Tensor]] = {seed: [] for seed in codes}
    widths = set()
    while groups or live:
        if groups and vocoder.state.free >= len(groups[0]) and rng.random() < 0.2:
            sizes = cuts(1000, rng)
            for seed in groups.pop(0):
                parts = list(codes[seed].split(fitting(sizes, len(codes[seed]))))
                live[seed] = (vocoder.open(), parts)
        if not live:
            continue
        frames = len(live[rng.choice(list(live))][1][0])
        turn = [seed for seed, (_, parts) in live.items() if len(parts[0]) == frames]
        rng.shuffle(turn)
        widths.add(len(turn))
        results = vocoder.decode_each([CodeChunk(live[seed][0], live[seed][1].pop(0)) for seed in turn])
        for seed, audio in zip(turn, results, strict=True):
            made[seed].append(audio_of(audio))
            if not live[seed][1]:
                vocoder.close(live.pop(seed)[0])
    for seed, pieces in made.items():
        audio = torch.cat(pieces)
        assert torch.equal(audio, narrow.decode(codes[seed])[: len(audio)]), seed
    assert sum(len(audio) for audio in made[0]) == 1000 * narrow.hop
    assert vocoder.state.free == 16 and {1, 2, 16} <= widths and len(widths) >= 8, widths


@pytest.mark.parametrize(("place", "slot"), [(0, 5), (1, 0), (2, 7), (3, 2)])
def test_place_in_the_bucket_and_slot_number_do_not_matter(codec: MossAudioTokenizer, place: int, slot: int) -> None:
    vocoder = StreamingVocoder(codec, step_streams=4, slots=8)
    others = [other for other in (vocoder.open() for _ in range(8)) if other != slot]
    codes = random_codes(32, 2)
    company = [*others[:place], slot, *others[place:3]]
    made = []
    for at in range(0, 32, 4):
        batch = random_codes(16, 100 + at).view(4, 4, 12)
        batch[place] = codes[at : at + 4]
        made.append(vocoder.decode(company, batch)[place])
    assert torch.equal(torch.cat(made), vocoder.decode_whole(codes))
    assert torch.equal(torch.cat(made), StreamingVocoder(codec, slots=1).decode_whole(codes)), "the bucket matters"


def test_a_reused_slot_leaves_no_trace(codec: MossAudioTokenizer) -> None:
    vocoder = StreamingVocoder(codec, slots=1)
    codes = random_codes(30, 3)
    fresh = stream(vocoder, codes, [4, 26])
    for seed in (7, 8):
        stream(vocoder, random_codes(45, seed), [20, 25])
        assert torch.equal(stream(vocoder, codes, [30]), fresh)
    assert vocoder.open() == 0


def test_state_never_moves(codec: MossAudioTokenizer) -> None:
    vocoder = StreamingVocoder(codec, slots=2)
    before = [t.data_ptr() for t in (*vocoder.state.tensors, vocoder.state.frames)]
    stream(vocoder, random_codes(9, 0), [4, 5])
    assert [t.data_ptr() for t in (*vocoder.state.tensors, vocoder.state.frames)] == before


@pytest.mark.parametrize(("bad", "limit"), [(-1, "below 0"), (1024, "above 1023")])
def test_a_bad_code_fails_its_own_stream_only(codec: MossAudioTokenizer, bad: int, limit: str) -> None:
    vocoder = StreamingVocoder(codec, step_streams=2, slots=3)
    slots = [vocoder.open() for _ in range(3)]
    codes = [random_codes(8, seed) for seed in range(3)]
    wanted = [vocoder.decode_whole(c) for c in codes]
    broken = codes[1][:4].clone()
    broken[2, 5] = bad
    first = vocoder.decode_each(list(map(CodeChunk, slots, [codes[0][:4], broken, codes[2][:4]])))
    assert isinstance(first[1], InvalidArgument) and f"INVALID_ARG codes: {bad} is {limit}" in str(first[1])
    with pytest.raises(InvalidArgument, match=f"codes: {bad}"):
        vocoder.decode([slots[0], slots[1]], torch.stack([codes[0][4:], broken]))
    second = vocoder.decode_each(list(map(CodeChunk, slots, [codes[0][4:], codes[1], codes[2][4:]])))
    assert torch.equal(audio_of(first[0], second[0]), wanted[0])
    assert torch.equal(audio_of(first[2], second[2]), wanted[2])
    assert torch.equal(audio_of(second[1]), wanted[1]), "the refused chunk moved its stream's state"


def test_a_broken_step_fails_the_streams_of_that_step(
    codec: MossAudioTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocoder = StreamingVocoder(codec, slots=2)
    slots = [vocoder.open(), vocoder.open()]
    step = vocoder.step

    def breaks_on_three(codes: torch.Tensor, where: torch.Tensor, reset: torch.Tensor) -> torch.Tensor:
        if codes.shape[1] == 3:
            raise RuntimeError("no memory")
        return step(codes, where, reset)

    monkeypatch.setattr(vocoder, "step", breaks_on_three)
    results = vocoder.decode_each([CodeChunk(slots[0], random_codes(3, 0)), CodeChunk(slots[1], random_codes(2, 1))])
    assert isinstance(results[0], Internal) and "no memory" in str(results[0])
    assert torch.equal(audio_of(results[1]), vocoder.decode_whole(random_codes(2, 1)))


def test_zero_frames_are_empty_audio(codec: MossAudioTokenizer) -> None:
    vocoder = StreamingVocoder(codec, slots=1)
    slot = vocoder.open()
    nothing = torch.zeros(1, 0, 12, dtype=torch.int32)
    codes = random_codes(6, 4)
    assert vocoder.decode([slot], nothing).shape == (1, 0)
    a = vocoder.decode([slot], codes[None, :2])
    assert vocoder.decode([slot], nothing).shape == (1, 0)
    b = vocoder.decode([slot], codes[None, 2:].int())
    assert torch.equal(torch.cat([a, b], 1)[0], vocoder.decode_whole(codes))
    assert vocoder.decode_whole(nothing[0]).shape == (0,)


def test_misuse_is_named(codec: MossAudioTokenizer) -> None:
    vocoder = StreamingVocoder(codec, step_streams=2, slots=2)
    codes = random_codes(1, 0)[None]
    with pytest.raises(Internal, match="slot: 0 is not open"):
        vocoder.decode([0], codes)
    a, b = vocoder.open(), vocoder.open()
    with pytest.raises(Unavailable, match="all 2"):
        vocoder.open()
    with pytest.raises(Internal, match="twice"):
        vocoder.decode([a, a], codes.expand(2, -1, -1))
    with pytest.raises(InvalidArgument, match=r"\[1, 1, 12\] is not \[2"):
        vocoder.decode([a, b], codes)
    with pytest.raises(InvalidArgument, match="dtype"):
        vocoder.decode([a], codes.float())
    with pytest.raises(InvalidArgument, match=r"\[1, 11\]"):
        vocoder.decode([a], codes[:, :, :11])
    for bad in (2, -1):  # 2 is a scratch place
        with pytest.raises(Internal, match="not open"):
            vocoder.decode([bad], codes)
    vocoder.close(a)
    with pytest.raises(Internal, match="not open"):
        vocoder.close(a)
    with pytest.raises(ValueError, match="step_streams"):
        StreamingVocoder(codec, step_streams=0)


def test_measure_exactness_is_zero_here(codec: MossAudioTokenizer) -> None:
    assert StreamingVocoder(codec, slots=1).measure_exactness((1, 4), frames=40) == 0.0
