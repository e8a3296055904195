"""`tuned`: what `gemmaspec tune` measured when it wrote a profile, and on what."""

from typing import Annotated

from pydantic import Field, StrictBool

from gemmaspec.profile.fields import Int, Positive, Section, Text


class TunedLoad(Section):
    """What was best at one number of requests at once."""

    concurrency: Positive
    """Requests at once."""
    k: Annotated[Int, Field(ge=0)]
    """The best number of drafted tokens for them; 0: no speculation."""
    tokens_per_second: Annotated[float, Field(gt=0)]
    """Of all requests together, with that k."""
    times: Annotated[float, Field(gt=0)]
    """The same over no speculation."""


class Tuned(Section):
    """What `gemmaspec tune` measured. It writes this itself; `up` says whether it is still so."""

    date: Text
    """When the measuring began (UTC)."""
    gemmaspec: Text
    """The gemmaspec that measured."""
    complete: StrictBool
    """Whether everything that may have won was tried; false after an interruption, or when the budget ended."""
    why: Text
    """Why this was chosen."""
    k_by_load: list[TunedLoad]
    """The best k at each load; without speculative.k_by_requests a server runs with one of them."""
    gpu: Annotated[list[Text], Field(default_factory=list)]
    """The GPUs of the machine."""
    driver: Text | None = None
    """Its NVIDIA driver."""
    prompts: Text
    """The prompts that were asked: gemmaspec for those that ship, else their folder."""
    prompts_sha256: Text
    """Of those prompts."""
    ran: dict[Text, Text]
    """What ran, as a lock has it: engine, image, plan, models, versions."""
    settings: Text
    """sha256 of the profile's settings, as they were measured."""
