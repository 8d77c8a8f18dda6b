"""The log-mel front end against the two feature extractors of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor
from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor

from backends.asr.log_mel import RATE, log_mel, mel_filters

THIRTY = 30 * RATE
# They compute in float32, we in float64; the logarithm stretches what is rounded near the floor.
BOUND = 1e-4


def sound(samples: int, seed: int = 0) -> np.ndarray:
    """Tones that come and go over a little noise, like speech in its range of levels."""
    time, random = np.arange(samples) / RATE, np.random.default_rng(seed)
    tones = sum(np.sin(2 * np.pi * f * time) * np.sin(2 * np.pi * (f / 500) * time) ** 2 for f in (180, 700, 2900))
    return (0.1 * tones + 0.001 * random.standard_normal(samples)).astype(np.float32)


@pytest.mark.parametrize("mels", [80, 128])
def test_filters_equal(mels: int) -> None:
    reference = WhisperFeatureExtractor(feature_size=mels).mel_filters
    assert np.abs(mel_filters(mels).T - reference).max() < 1e-15


@pytest.mark.parametrize("samples", [1, 200, 4_000, 16_161, 75_200, THIRTY - 100, THIRTY])
def test_padded_to_thirty_seconds_as_whisper_wants_it(samples: int) -> None:
    reference = WhisperFeatureExtractor()(sound(samples), sampling_rate=RATE, return_tensors="np").input_features[0]
    found = log_mel(sound(samples), 80, pad_to=THIRTY)
    assert found.shape == reference.shape == (80, 3000) and found.dtype == np.float32
    print(f"\nlargest difference {np.abs(found - reference).max():.1e}")
    assert np.abs(found - reference).max() < BOUND


@pytest.mark.parametrize("samples", [8_000, 16_161, 75_200])
def test_at_its_own_length_as_qwen3_asr_wants_it(samples: int) -> None:
    extractor = Qwen3ASRFeatureExtractor()
    reference = extractor(sound(samples), sampling_rate=RATE, padding=True, n_window=0, return_tensors="np")
    found = log_mel(sound(samples), 128)
    assert found.shape == reference.input_features[0].shape == (128, samples // 160)
    assert np.abs(found - reference.input_features[0]).max() < BOUND


def test_silence_is_flat() -> None:
    assert np.unique(log_mel(np.zeros(RATE, dtype=np.float32), 80, pad_to=THIRTY)).tolist() == [-1.5]


@pytest.mark.parametrize(("samples", "pad_to"), [(200, 0), (0, 0), (THIRTY + 1, THIRTY)])
def test_too_few_or_too_many_samples_are_refused(samples: int, pad_to: int) -> None:
    with pytest.raises(ValueError, match=f"{samples} samples"):
        log_mel(np.zeros(samples, dtype=np.float32), 80, pad_to)
