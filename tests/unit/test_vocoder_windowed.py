"""The windowed engine: windows join to the offline decode, load changes no bit, and nobody pays for a neighbour."""

from __future__ import annotations

import random

import pytest
import torch

from backends.checkpoint import KNOWN
from backends.errors import Internal, InvalidArgument, Unavailable, VoxstageError
from backends.models.codec import WINDOW_CODECS, load_codec
from backends.models.window_codec import WindowCodec
from backends.vocoder.engine import CodeChunk
from backends.vocoder.engines import build_engine, hold_seconds
from backends.vocoder.metrics import VocoderMetrics
from backends.vocoder.settings import VocoderSettings
from backends.vocoder.windowed import WindowedVocoder
from tests.codec_folders import dac_model, higgs_model, save

torch.set_num_threads(1)
#: Windowed against offline, in standard deviations of the signal: convolution kernels round by shape. Seen: 1.5e-5.
BOUND = 5e-5


@pytest.fixture(scope="module", params=["dac", "higgs_audio_v2_tokenizer"])
def codec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WindowCodec:
    model = dac_model() if request.param == "dac" else higgs_model()
    loaded = load_codec(save(model, tmp_path_factory.mktemp("codec")))
    assert isinstance(loaded, WindowCodec)
    return loaded


def random_codes(codec: WindowCodec, frames: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(codec.entries, (frames, codec.codebooks), generator=generator)


def audio_of(*results: torch.Tensor | VoxstageError) -> torch.Tensor:
    """The audio of results that must not be errors."""
    for result in results:
        assert isinstance(result, torch.Tensor), result
    return torch.cat([result for result in results if isinstance(result, torch.Tensor)])


def stream(vocoder: WindowedVocoder, codes: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    """One stream alone, cut into ``sizes``; one result a chunk."""
    slot = vocoder.open()
    parts = codes.split(sizes)
    made = [
        audio_of(*vocoder.decode_each([CodeChunk(slot, part, i + 1 == len(parts))])) for i, part in enumerate(parts)
    ]
    vocoder.close(slot)
    return made


def chunks_of(frames: int, size: int) -> list[int]:
    return [min(size, frames - at) for at in range(0, frames, size)]


def test_windows_join_to_the_offline_decode_for_every_chunk_length(codec: WindowCodec) -> None:
    """Sample counts exact, differences within the bound, and no join with a larger step than the offline signal has.
    Every fourth length for Higgs: the engine is the same and the samples are three times as many."""
    vocoder = WindowedVocoder(codec)
    frames = 45
    codes = random_codes(codec, frames, 1)
    whole = vocoder.decode_whole(codes)
    assert torch.equal(whole, codec.decode(codes)) and whole.shape == (codec.samples(frames),)
    bound = BOUND * float(whole.std())
    largest_step = float(whole.diff().abs().max())
    worst = 0.0
    every = range(1, frames + 1)
    for size in every if codec.special == 0 else every[::4]:
        pieces = stream(vocoder, codes, chunks_of(frames, size))
        audio = torch.cat(pieces)
        assert audio.shape == whole.shape, size
        worst = max(worst, float((audio - whole).abs().max()))
        joins = torch.tensor([len(piece) for piece in pieces]).cumsum(0)
        joins = joins[(joins > 0) & (joins < len(audio))]
        assert (audio[joins] - audio[joins - 1]).abs().max().item() <= largest_step + 2 * bound if len(joins) else True
    print(f"\nlargest difference {worst / float(whole.std()):.1e} of the standard deviation")
    assert worst <= bound
    assert vocoder.measure_exactness((1, 7, 25)) <= BOUND


def test_less_context_is_not_enough(codec: WindowCodec) -> None:
    """The bound would notice: with two frames less on each side it is missed by far."""
    vocoder = WindowedVocoder(codec)
    codes = random_codes(codec, 61, 1)
    whole = vocoder.decode_whole(codes)
    at, size, context = 25, 5, codec.look_ahead - 2
    window = codec.decode(codes[at - context : at + size + context])[context * codec.hop :][: size * codec.hop]
    difference = (window - whole[at * codec.hop : (at + size) * codec.hop]).abs().max()
    assert difference > 5 * BOUND * whole.std()


def test_audio_starts_when_the_look_ahead_is_there_and_the_last_chunk_flushes(codec: WindowCodec) -> None:
    pieces = stream(WindowedVocoder(codec), random_codes(codec, 30, 2), [1] * 30)
    sizes = [len(piece) for piece in pieces]
    ahead = codec.look_ahead
    assert sizes[:ahead] == [0] * ahead and sizes[ahead:-1] == [codec.hop] * (29 - ahead)
    assert sum(sizes) == codec.samples(30)


def test_a_stream_keeps_only_the_codes_it_needs(codec: WindowCodec) -> None:
    vocoder = WindowedVocoder(codec)
    slot = vocoder.open()
    for seed in range(12):
        vocoder.decode_each([CodeChunk(slot, random_codes(codec, 7, seed))])
    assert len(vocoder._streams[slot].codes) == codec.look_back + codec.look_ahead


@pytest.mark.parametrize("step_streams", [1, 4])
def test_alone_equals_among_fifteen_others_that_join_and_leave(codec: WindowCodec, step_streams: int) -> None:
    """16 streams of own lengths and schedules on 6 slots, in random company and order: torch.equal, every one."""
    rng = random.Random(step_streams)
    batches: list[int] = []
    vocoder = WindowedVocoder(codec, step_streams, slots=6, count_batch=batches.append)
    waiting = [
        (seed, random_codes(codec, frames, seed), chunks_of(frames, rng.choice((3, 6, 6, 6, 25))))
        for seed, frames in enumerate((24, 30, 17, 1, 36, 24, 48, 11, 24, 30, 36, 2, 29, 24, 36, 30))
    ]
    alone = WindowedVocoder(codec, step_streams, slots=1)
    wanted = {seed: torch.cat(stream(alone, codes, sizes)) for seed, codes, sizes in waiting}
    live: dict[int, tuple[int, list[torch.Tensor]]] = {}
    made: dict[int, list[torch.Tensor]] = {seed: [] for seed in wanted}
    while waiting or live:
        while waiting and vocoder.free:
            seed, codes, sizes = waiting.pop(0)
            live[seed] = (vocoder.open(), list(codes.split(sizes)))
        turn = [seed for seed in live if rng.random() < 0.8]
        rng.shuffle(turn)
        chunks = [CodeChunk(live[s][0], live[s][1].pop(0).int(), not live[s][1]) for s in turn]
        for seed, result in zip(turn, vocoder.decode_each(chunks), strict=True):
            made[seed].append(audio_of(result))
            if not live[seed][1]:
                vocoder.close(live.pop(seed)[0])
    for seed, pieces in made.items():
        assert torch.equal(torch.cat(pieces), wanted[seed]), seed
    assert vocoder.free == 6 and max(batches) <= step_streams
    assert step_streams == 1 or max(batches) > 1, "no batch held two windows: nothing was tested"


def test_only_windows_of_one_length_share_a_batch_and_order_is_restored(codec: WindowCodec) -> None:
    shapes: list[tuple[int, int]] = []
    batches: list[int] = []
    vocoder = WindowedVocoder(codec, 3, count_batch=batches.append)
    decode_batch = codec.decode_batch

    def watch(codes: torch.Tensor) -> torch.Tensor:
        shapes.append((codes.shape[0], codes.shape[1]))
        return decode_batch(codes)

    lengths = (5, 8, 5, 1, 5, 8, 5)
    items = [random_codes(codec, frames, i) for i, frames in enumerate(lengths)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "decode_batch", watch)
        results = vocoder.decode_each([CodeChunk(vocoder.open(), item, True) for item in items])
    assert sorted(shapes) == [(3, 1), (3, 5), (3, 5), (3, 8)] and sorted(batches) == [1, 1, 2, 3]
    for item, result in zip(items, results, strict=True):
        assert torch.equal(audio_of(result), vocoder.decode_whole(item))


def test_without_deterministic_nothing_is_computed_for_padding(
    codec: WindowCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    decode_batch = codec.decode_batch

    def watch(codes: torch.Tensor) -> torch.Tensor:
        rows.append(codes.shape[0])
        return decode_batch(codes)

    monkeypatch.setattr(codec, "decode_batch", watch)
    for deterministic in (True, False):
        vocoder = WindowedVocoder(codec, 4, deterministic=deterministic)
        vocoder.decode_each([CodeChunk(vocoder.open(), random_codes(codec, 5, seed), True) for seed in range(2)])
    assert rows == [4, 2]


def test_long_windows_share_a_batch_with_fewer_and_the_length_alone_decides(codec: WindowCodec) -> None:
    vocoder = WindowedVocoder(codec, step_streams=4, max_step_frames=20)
    context = codec.look_back + codec.look_ahead
    rows = [vocoder.batch_rows(frames) for frames in (1, 20 + context, 21 + context, 2 * (20 + context), 1000)]
    assert rows == [4, 4, 3, 2, 1]


def test_a_bad_item_gets_its_own_error_and_peers_keep_their_bits(codec: WindowCodec) -> None:
    vocoder = WindowedVocoder(codec, 4, max_chunk_frames=40)
    items = [random_codes(codec, frames, frames) for frames in (20, 20, 41, 20, 0)]
    items[1] = items[1].clone()
    items[1][7, 1] = top = codec.entries + codec.special
    slots = [vocoder.open() for _ in items]
    results = vocoder.decode_each([CodeChunk(slot, item, True) for slot, item in zip(slots, items, strict=True)])
    assert isinstance(results[1], InvalidArgument) and f"codes: {top} is above {top - 1}" in str(results[1])
    assert isinstance(results[2], InvalidArgument) and "codes: 41 frames are more than 40" in str(results[2])
    assert audio_of(results[4]).shape == (0,)
    for i in (0, 3):
        assert torch.equal(audio_of(results[i]), vocoder.decode_whole(items[i]))
    # What was refused did not move its stream.
    again = vocoder.decode_each([CodeChunk(slots[1], items[0], True)])
    assert torch.equal(audio_of(*again), audio_of(results[0]))


def test_a_failing_item_fails_alone(codec: WindowCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    vocoder = WindowedVocoder(codec, 4)
    items = [random_codes(codec, 20, seed) for seed in range(3)]
    wanted = [vocoder.decode_whole(item) for item in items]
    poison, decode_batch = items[1], codec.decode_batch

    def breaks(codes: torch.Tensor) -> torch.Tensor:
        if any(torch.equal(row, poison) for row in codes):
            raise RuntimeError("no memory")
        return decode_batch(codes)

    monkeypatch.setattr(codec, "decode_batch", breaks)
    slots = [vocoder.open() for _ in items]
    results = vocoder.decode_each([CodeChunk(slot, item, True) for slot, item in zip(slots, items, strict=True)])
    assert isinstance(results[1], Internal) and "no memory" in str(results[1])
    for i in (0, 2):
        assert torch.equal(audio_of(results[i]), wanted[i])
    monkeypatch.undo()
    assert torch.equal(audio_of(*vocoder.decode_each([CodeChunk(slots[1], poison, True)])), wanted[1])


def test_zero_frames(codec: WindowCodec) -> None:
    """A stream without a frame ends empty; empty chunks in between and at the end change nothing but the flush."""
    vocoder = WindowedVocoder(codec)
    nothing = torch.zeros(0, codec.codebooks, dtype=torch.int32)
    assert torch.cat(stream(vocoder, nothing, [0])).shape == (0,)
    assert vocoder.decode_whole(nothing).shape == (0,)
    codes = random_codes(codec, 24, 3)
    slot, made = vocoder.open(), []
    for part, last in ((nothing, False), (codes[:20], False), (nothing, False), (codes[20:], False), (nothing, True)):
        made.append(audio_of(*vocoder.decode_each([CodeChunk(slot, part, last)])))
    assert [len(piece) // codec.hop for piece in made[:4]] == [0, 10, 0, 4] and len(made[4]) > 0
    whole = vocoder.decode_whole(codes)
    assert (torch.cat(made) - whole).abs().max() <= BOUND * whole.std()


def test_a_reused_slot_leaves_no_trace(codec: WindowCodec) -> None:
    vocoder = WindowedVocoder(codec, slots=1)
    codes = random_codes(codec, 30, 3)
    fresh = torch.cat(stream(vocoder, codes, [12, 18]))
    slot = vocoder.open()
    vocoder.decode_each([CodeChunk(slot, random_codes(codec, 25, 9))])
    vocoder.close(slot)
    assert torch.equal(torch.cat(stream(vocoder, codes, [12, 18])), fresh)


def test_a_result_holds_no_memory_of_the_batch_and_a_chunk_none_of_the_caller(codec: WindowCodec) -> None:
    vocoder = WindowedVocoder(codec)
    slot, codes = vocoder.open(), random_codes(codec, 24, 5)
    mine = codes[:12].clone()
    first = audio_of(*vocoder.decode_each([CodeChunk(slot, mine)]))
    assert first.untyped_storage().nbytes() == 4 * len(first)
    mine.zero_()
    made = [first, *vocoder.decode_each([CodeChunk(slot, codes[12:], True)])]
    assert torch.equal(audio_of(*made), torch.cat(stream(vocoder, codes, [12, 12])))


def test_misuse_is_named(codec: WindowCodec) -> None:
    vocoder = WindowedVocoder(codec, slots=2)
    codes = random_codes(codec, 3, 0)

    def error(*chunks: CodeChunk) -> str:
        return str(vocoder.decode_each(chunks)[-1])

    assert "slot: 0 is not open" in error(CodeChunk(0, codes))
    a, _ = vocoder.open(), vocoder.open()
    with pytest.raises(Unavailable, match="all 2"):
        vocoder.open()
    assert "two chunks in one call" in error(CodeChunk(a, codes), CodeChunk(a, codes))
    assert "dtype" in error(CodeChunk(a, codes.float()))
    assert "shape [3, 1]" in error(CodeChunk(a, codes[:, :1]))
    vocoder.decode_each([CodeChunk(a, codes, True)])
    assert "has had its last chunk" in error(CodeChunk(a, codes))
    vocoder.close(a)
    with pytest.raises(Internal, match="not open"):
        vocoder.close(a)
    for name in ("step_streams", "slots", "max_step_frames", "max_chunk_frames"):
        with pytest.raises(ValueError, match=name):
            WindowedVocoder(codec, **{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(("step_streams", "wanted"), [(0, 1), (3, 3)])
def test_the_stage_takes_this_engine_with_its_settings(codec: WindowCodec, step_streams: int, wanted: int) -> None:
    metrics = VocoderMetrics()
    settings = VocoderSettings(step_streams=step_streams, max_chunk_frames=7, deterministic=False, slots=5)
    vocoder = build_engine(codec, settings, metrics)
    assert isinstance(vocoder, WindowedVocoder)
    assert (vocoder.step_streams, vocoder.free, vocoder.deterministic) == (wanted, 5, False)
    assert isinstance(vocoder.decode_each([CodeChunk(vocoder.open(), random_codes(codec, 8, 0))])[0], InvalidArgument)
    vocoder.decode_whole(random_codes(codec, 7, 0))
    assert metrics.batch_streams.drain() == [1] and hold_seconds(vocoder, settings) == 0.002


def test_a_checkpoint_may_name_them() -> None:
    assert WINDOW_CODECS.keys() <= KNOWN["codec"].keys()
