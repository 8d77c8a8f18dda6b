"""The thread of an encoder outlives a job that could not be answered."""

from __future__ import annotations

import queue
from collections.abc import Sequence

import pytest

from backends.encoder.metrics import EncoderMetrics
from backends.encoder.worker import EncoderWorker


def test_jobs_that_were_not_answered_do_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    answers: queue.Queue[int] = queue.Queue()

    def work(encoder: str, jobs: Sequence[int]) -> None:
        if 0 in jobs:
            raise OSError("no space left in shared memory")
        for job in jobs:
            answers.put(job)

    worker: EncoderWorker[str, int] = EncoderWorker("asr_encoder", lambda: "encoder", work, EncoderMetrics(), 8)
    for job in (0, 1, 0, 2):
        worker.put(job)
    assert [answers.get(timeout=10), answers.get(timeout=10)] == [1, 2]
    worker.close()
    assert caplog.text.count("asr_encoder: jobs (1) were not answered") == 2
