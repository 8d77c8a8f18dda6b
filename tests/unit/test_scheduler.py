"""The scheduler's bookkeeping: one place a request, one owner a slot, one way out."""

from __future__ import annotations

import random

import pytest
import torch

from backends.decoder.chunks import ChunkSchedule
from backends.decoder.request import Chunk, DecodeRequest, Phase
from backends.decoder.sampler import SamplingParams
from backends.decoder.scheduler import Scheduler
from backends.errors import Unavailable, VoxstageError


class Nowhere:
    def chunk(self, chunk: Chunk) -> None: ...
    def fail(self, error: VoxstageError) -> None: ...
    def end(self) -> None: ...


def request(stream: int) -> DecodeRequest:
    sampling = SamplingParams(0, 0.0, 1.0, 0, 1.0)
    rows = torch.zeros(4, 13, dtype=torch.int64)
    return DecodeRequest(stream, rows, sampling, 10, ChunkSchedule(4, 25), Nowhere())


def test_first_come_first_served() -> None:
    scheduler = Scheduler(max_running=2, max_waiting=10)
    requests = [request(i) for i in range(5)]
    for item in requests:
        scheduler.add(item)
    scheduler.admit()
    assert [item.phase for item in requests] == [Phase.PREFILL] * 2 + [Phase.WAITING] * 3
    assert scheduler.next_prefill() is requests[0]
    scheduler.run(requests[0])
    scheduler.remove(requests[0])
    scheduler.admit()
    assert requests[2].phase is Phase.PREFILL and requests[3].phase is Phase.WAITING


def test_full_is_said_at_once() -> None:
    scheduler = Scheduler(max_running=1, max_waiting=2)
    for stream in range(2):
        scheduler.add(request(stream))
    scheduler.admit()
    scheduler.add(request(2))
    with pytest.raises(Unavailable, match=r"UNAVAILABLE 3 requests .* max_running 1 and max_waiting 2"):
        scheduler.add(request(3))
    assert scheduler.find(3) is None and len(scheduler) == 3


def test_max_waiting_zero_still_lets_a_free_slot_be_taken() -> None:
    scheduler = Scheduler(max_running=1, max_waiting=0)
    scheduler.add(request(1))
    with pytest.raises(Unavailable):
        scheduler.add(request(2))


def test_random_lives_leave_nothing_behind() -> None:
    rng, scheduler = random.Random(0), Scheduler(max_running=4, max_waiting=50)
    alive: list[DecodeRequest] = []
    for stream in range(2000):
        alive.append(request(stream))
        try:
            scheduler.add(alive[-1])
        except Unavailable:
            alive.pop()
        scheduler.admit()
        owners = [item.slot for item in scheduler.all() if item.slot >= 0]
        assert len(owners) == len(set(owners)) == scheduler.slots_in_use
        if (reading := scheduler.next_prefill()) and rng.random() < 0.7:
            scheduler.run(reading)
        while alive and rng.random() < 0.55:
            scheduler.remove(alive.pop(rng.randrange(len(alive))))
    for item in alive:
        scheduler.remove(item)
    scheduler.check_idle()


def test_an_idle_check_finds_what_is_left() -> None:
    scheduler = Scheduler(max_running=2, max_waiting=2)
    scheduler.add(request(1))
    with pytest.raises(RuntimeError, match="1 requests inside"):
        scheduler.check_idle()
