"""GS9xx: a model's files and templates on this machine."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Final

from gemmaspec.check.lint.rule import Issue, Subject, rule

_GGUF: Final = re.compile(r"(?<![a-z0-9])gguf(?![a-z0-9])", re.IGNORECASE)


@rule("GS901", "warning", any_release=True)
def emptied(subject: Subject) -> Iterator[Issue]:
    """A key without a value, which removes the inherited value."""
    for key in subject.emptied:
        message = "is empty, which removes the inherited value"
        yield Issue(
            path=tuple(key.split(".")), message=message, fix="write null if that is intended, or remove the line"
        )


@rule("GS902", "warning", any_release=True)
def model_folder(subject: Subject) -> Iterator[Issue]:
    """A model's folder that is missing on this machine, or has no config.json."""
    for role in ("target", "draft"):
        if subject.here.get(role) == "missing":
            fix = "correct the path, unless the profile is for another machine"
            yield Issue(path=(role, "model"), message=f"missing folder {subject.name(role)}", fix=fix)
        elif subject.here.get(role) == "no config":
            message = f"{subject.name(role)} has no config.json, so it is not a model"
            yield Issue(
                path=(role, "model"), message=message, fix="name the folder that contains config.json and safetensors"
            )


@rule("GS902", "error", any_release=True)
def model_file(subject: Subject) -> Iterator[Issue]:
    """A model that is a file, as GGUF is: a model is a folder with config.json and safetensors."""
    for role in ("target", "draft"):
        is_file = subject.here.get(role) == "file" or subject.name(role).lower().endswith(".gguf")
        if is_file or _GGUF.search(subject.called(role)):
            if is_file:
                what = "is a file"
            else:
                what = "is named as a set of GGUF files"
            message = f"{subject.name(role)} {what}, but a model is a folder with config.json and safetensors"
            yield Issue(
                path=(role, "model"), message=message, fix="name that folder, or a model of the Hub (owner/name)"
            )
    if (subject.profile.serve.load_format or "").lower() == "gguf":
        message = "GGUF files are not served here: a model is a folder with config.json and safetensors"
        yield Issue(path=("serve", "load_format"), message=message, fix="remove it, and name a model of the Hub")


@rule("GS904", "error", any_release=True)
def template_file(subject: Subject) -> Iterator[Issue]:
    """A chat template that is missing or out of bounds."""
    template = subject.profile.chat.template
    if template and subject.here.get("template") == "outside":
        yield Issue(
            path=("chat", "template"),
            message=f"the template {template} is outside of the profile's folder",
            fix="copy it there, or type it: --set chat.template=…",
        )
    if template and subject.here.get("template") == "missing":
        near = difflib.get_close_matches(template, ["gemma4", *subject.templates], n=1, cutoff=0.6)
        if near:
            fix = f"did you mean {near[0]}?"
        else:
            fix = "use gemma4, or the path of a file"
        yield Issue(path=("chat", "template"), message=f"unknown template {template}", fix=fix)
