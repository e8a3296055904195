"""Hand-written conversations for the chat template: a name and the variables of each."""

from __future__ import annotations

from tests.conversations import calls, talk, tools
from tests.conversations.building import Variables

CONVERSATIONS: dict[str, Variables] = talk.CONVERSATIONS | calls.CONVERSATIONS | tools.CONVERSATIONS
