"""Jobs that come together are taken together, and a lone one does not wait."""

from __future__ import annotations

import threading
import time

from backends.encoder.job_queue import JobQueue

DELAY = 2.0  # far above what a test waits for


def hurry(jobs: JobQueue[int]) -> None:
    """Let the queue have seen jobs that come at once."""
    for number in range(64):
        jobs.put(number)
    while len(jobs.take()) == 4 and jobs.full:
        pass


def test_a_lone_job_is_taken_at_once() -> None:
    jobs: JobQueue[int] = JobQueue(8, 4, DELAY)
    jobs.put(1)
    began = time.monotonic()
    assert jobs.take() == [1]
    assert time.monotonic() - began < DELAY / 5


def test_one_of_many_waits_for_the_others() -> None:
    jobs: JobQueue[int] = JobQueue(100, 4, DELAY)
    hurry(jobs)
    taken: list[list[int]] = []
    jobs.put(1)
    thread = threading.Thread(target=lambda: taken.append(jobs.take()))
    # A gap of a microsecond promises the others at once; they are a little late, so the promise is set by hand.
    jobs._gap = 0.5
    thread.start()
    for number in (2, 3, 4):
        time.sleep(0.05)
        jobs.put(number)
    thread.join(DELAY)
    assert taken == [[1, 2, 3, 4]]


def test_it_does_not_wait_for_those_who_stay_away() -> None:
    jobs: JobQueue[int] = JobQueue(100, 4, DELAY)
    hurry(jobs)
    jobs.put(1)
    began = time.monotonic()
    assert jobs.take() == [1]
    assert time.monotonic() - began < DELAY / 5


def test_the_delay_bounds_the_wait_and_0_means_none() -> None:
    for delay in (0.0, 0.2):
        jobs: JobQueue[int] = JobQueue(100, 4, delay)
        hurry(jobs)
        jobs.put(1)
        jobs._gap = delay / 3.1
        began = time.monotonic()
        assert jobs.take() == [1]
        spent = time.monotonic() - began
        assert delay * 0.9 <= spent < delay + 0.5


def test_the_bound_and_the_end() -> None:
    jobs: JobQueue[int] = JobQueue(5, 4, DELAY)
    assert [jobs.put(number) for number in range(6)] == [True] * 5 + [False]
    assert jobs.take() == [0, 1, 2, 3]
    jobs.close()
    assert jobs.take() == [4]
    assert jobs.take() == []


def test_closing_wakes_whoever_waits() -> None:
    jobs: JobQueue[int] = JobQueue(5, 4, DELAY)
    taken: list[list[int]] = []
    thread = threading.Thread(target=lambda: taken.append(jobs.take()))
    thread.start()
    time.sleep(0.05)
    jobs.close()
    thread.join(DELAY)
    assert taken == [[]]
