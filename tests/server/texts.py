"""Texts that several server tests speak."""

from __future__ import annotations

SHORT = "The old bridge was closed for repairs."
#: About ten seconds of work on two cores. The voice runs on to 375 frames (30 s) of it, and further.
LONG = (
    "The birch canoe slid on the smooth planks. Glue the sheet to the dark blue background. "
    "It is easy to tell the depth of a well. These days a chicken leg is a rare dish. "
    "Rice is often served in round bowls. The juice of lemons makes fine punch. "
    "The box was thrown beside the parked truck. The hogs were fed chopped corn and garbage. "
    "Four hours of steady work faced us. A large size in stockings is hard to sell."
)
LONG_FRAMES = 375
HOP = 1920
RATE = 24000
