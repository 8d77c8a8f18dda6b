"""Voices from a clip: files and samples in, codes of the audio encoder out, each clip encoded once."""
