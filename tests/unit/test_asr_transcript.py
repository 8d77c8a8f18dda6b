"""Windows that end in any order make one transcript in order; and how many of them are inside at once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

import pytest

from backends.asr.family import WholeWindow
from backends.asr.share import WindowShare
from backends.asr.transcript import Piece, Transcript


class Letters(WholeWindow):
    """Token n is the n-th letter."""

    language = "en"

    def feed(self, tokens: Sequence[int]) -> str:
        return self.said("".join(chr(ord("a") + token) for token in tokens))

    def end(self) -> str:
        return self.said(".")


def opened(count: int) -> Transcript:
    transcript = Transcript()
    for window in range(count):
        transcript.open(window, Letters(), 10.0 * window, 10.0 * window + 9, window == count - 1)
    return transcript


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_windows_in_any_order_are_said_in_theirs(order: tuple[int, ...]) -> None:
    transcript = opened(3)
    pieces: list[Piece] = []
    for window in order:  # side by side: one token of each, then the rest of one after another
        pieces += transcript.feed(window, [window])
    for window in order:
        pieces += transcript.feed(window, [10 + window])
        pieces += transcript.finish(window, "stop")
    assert "".join(piece.text for piece in pieces) == "ak. bl. cm."
    assert [piece.index for piece in pieces] == list(range(len(pieces)))
    assert [piece.window for piece in pieces] == sorted(piece.window for piece in pieces)
    assert [piece.window for piece in pieces if piece.closes] == [0, 1, 2]
    assert [piece.final for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].finish_reason == "stop" and {piece.finish_reason for piece in pieces[:-1]} == {""}
    segments = [segment for piece in pieces for segment in piece.segments]
    assert [segment["text"] for segment in segments] == ["ak.", "bl.", "cm."]
    assert [segment["start"] for segment in segments] == [0.0, 10.0, 20.0]


def test_the_window_whose_turn_it_is_speaks_at_once_and_others_wait() -> None:
    transcript = opened(2)
    assert transcript.feed(1, [1]) == []
    assert [piece.text for piece in transcript.feed(0, [0])] == ["a"]
    assert transcript.finish(1, "stop") == []
    assert [piece.text for piece in transcript.finish(0, "stop")] == [".", " b."]
    assert transcript.over


def test_a_window_that_comes_late_holds_up_what_follows() -> None:
    transcript = Transcript()
    transcript.open(1, Letters(), 9, 18, True)
    transcript.feed(1, [1])
    assert transcript.finish(1, "stop") == []
    transcript.open(0, Letters(), 0, 9, False)
    transcript.feed(0, [0])
    assert "".join(piece.text for piece in transcript.finish(0, "stop")) == ". b."


def test_one_window_that_was_cut_makes_the_whole_end_with_length() -> None:
    transcript = opened(2)
    transcript.finish(0, "length")
    assert transcript.finish(1, "stop")[-1].finish_reason == "length"


def test_an_error_ends_the_transcript_when_its_turn_comes() -> None:
    transcript = opened(3)
    assert transcript.finish(1, "error", "INTERNAL it broke") == []
    assert transcript.finish(2, "stop") == []
    first, second = transcript.finish(0, "stop")
    assert (first.text, first.final) == (".", False)
    assert second.final and (second.finish_reason, second.error) == ("error", "INTERNAL it broke")
    assert second.segments == [] and transcript.over


def test_a_window_without_a_reader_says_nothing() -> None:
    transcript = Transcript()
    transcript.open(0, None, 0, 0, True)
    (piece,) = transcript.finish(0, "stop")
    assert (piece.text, piece.segments, piece.final, piece.finish_reason) == ("", [], True, "stop")


def test_scripts_without_spaces_are_joined_without_one() -> None:
    class Chinese(Letters):
        def feed(self, tokens: Sequence[int]) -> str:
            return self.said("你好")

        def end(self) -> str:
            return ""

    transcript = Transcript()
    for window in range(2):
        transcript.open(window, Chinese(), 0, 1, window == 1)
    pieces = [each for at in range(2) for each in transcript.feed(at, [0]) + transcript.finish(at, "stop")]
    assert "".join(piece.text for piece in pieces) == "你好你好"


def test_a_share_hands_out_each_window_once_and_no_more_than_its_limit() -> None:
    share = WindowShare(7, 3)
    assert share.take() == [0, 1, 2] and share.take() == [] and share.inside == 3
    share.done()
    assert share.take() == [3]
    share.done()
    share.done()
    assert share.take() == [4, 5] and share.inside == 3
    assert [share.sent() for _ in range(7)] == [False] * 6 + [True]
    share.done()
    share.stop()
    assert share.take() == []
    with pytest.raises(ValueError, match="at least 1"):
        WindowShare(0, 1)


def test_a_share_that_many_threads_use_hands_out_each_window_once() -> None:
    share, taken, most = WindowShare(2000, 5), list[int](), list[int]()
    lock = threading.Lock()

    def work() -> None:
        while True:
            mine = share.take()
            with lock:
                most.append(share.inside)
                taken.extend(mine)
                if len(taken) == 2000 and not mine:
                    return
            for _ in mine:
                share.done()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert sorted(taken) == list(range(2000)) and max(most) <= 5
