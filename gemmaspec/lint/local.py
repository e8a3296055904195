"""GS9xx: what a profile says that is not there: keys without a value, files and folders of this machine."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

from gemmaspec.lint.finding import Found, rule
from gemmaspec.lint.subject import Subject


@rule("GS901", "warning", any_release=True)
def emptied(subject: Subject) -> Iterator[Found]:
    """A key with nothing behind it, which takes away what the profile inherits."""
    for key in subject.emptied:
        why = "has nothing behind it, and so takes away what the profile inherits"
        yield Found(path=tuple(key.split(".")), why=why, mend="write null if that is meant, or remove the line")


@rule("GS902", "warning", any_release=True)
def model_folder(subject: Subject) -> Iterator[Found]:
    """A model's folder that is missing on this machine, or has no config.json."""
    for role in ("target", "draft"):
        if subject.here.get(role) == "missing":
            mend = "correct the path; on the machine that it is meant for, nothing has to change"
            yield Found(path=(role, "model"), why=f"there is no folder {subject.name(role)} here", mend=mend)
        elif subject.here.get(role) == "no config":
            why = f"{subject.name(role)} has no config.json, so it is not a model"
            yield Found(path=(role, "model"), why=why, mend="name the folder that holds config.json and safetensors")


@rule("GS903", "error", any_release=True)
def model_file(subject: Subject) -> Iterator[Found]:
    """A model that is a file, as GGUF is: a model is a folder with config.json and safetensors."""
    for role in ("target", "draft"):
        if subject.here.get(role) == "file" or subject.name(role).lower().endswith(".gguf"):
            why = f"{subject.name(role)} is a file; a model is a folder with config.json and safetensors"
            yield Found(path=(role, "model"), why=why, mend="name that folder, or a model of the Hub (owner/name)")


@rule("GS904", "error", any_release=True)
def template_file(subject: Subject) -> Iterator[Found]:
    """A chat template that is missing."""
    template = subject.profile.chat.template
    if template and subject.here.get("template") == "missing":
        near = difflib.get_close_matches(template, ["gemma4", *subject.templates], n=1, cutoff=0.6)
        mend = f"did you mean {near[0]}?" if near else "write gemma4, or the path of a file"
        yield Found(path=("chat", "template"), why=f"there is no template {template}", mend=mend)


RULES: Final = (emptied, model_folder, model_file, template_file)
