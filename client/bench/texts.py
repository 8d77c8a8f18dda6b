"""What is said: a small list of everyday sentences, or the lines of a file."""

from __future__ import annotations

from pathlib import Path

from client.errors import InvalidArgument

EVERYDAY = (
    "Good morning, how can I help you today?",
    "Your table for two is booked for half past seven.",
    "The next train to the airport leaves from platform four.",
    "I am sorry, but the shop is closed on Sundays.",
    "Please turn left at the traffic lights and then go straight on.",
    "It will rain in the afternoon, so take an umbrella.",
    "Could you spell your last name for me?",
    "Your parcel has arrived and is waiting at the front desk.",
    "The meeting was moved to Thursday at ten.",
    "Yes.",
    "Mix the flour with two eggs and a cup of milk, then let it rest for twenty minutes.",
    "Thank you for calling, and have a nice evening.",
    "My sister lives in a small house near the sea.",
    "The doctor can see you tomorrow morning if that suits you.",
    "Do not forget to lock the door when you leave.",
    "We walked through the old town, had coffee by the river and took the last bus home.",
)


def read_texts(path: Path) -> tuple[bytes, ...]:
    """The lines of a file, blank ones left out, as bytes: what is not UTF-8 is for the server to refuse."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read ({error.strerror or error})", field="--texts") from None
    texts = tuple(line for line in lines if line.strip())
    if not texts:
        raise InvalidArgument(f"{path} holds no text; give one text a line", field="--texts")
    return texts


def everyday() -> tuple[bytes, ...]:
    """The built-in list."""
    return tuple(text.encode() for text in EVERYDAY)
