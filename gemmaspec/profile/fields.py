"""Types of a profile's values, with the checks that need only one field."""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from gemmaspec.webhooks import webhook

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_IMAGE: Final = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]*")
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY|CREDENTIAL", re.IGNORECASE)
_SIZE: Final = re.compile(r"(?:[1-9][0-9]{0,14}|[0-9]{1,9}\.[0-9]{1,6})(b|k|m|g|kb|mb|gb)", re.IGNORECASE)
"""As Docker reads sizes, with decimals (RAMInBytes)."""
_HUB_PAGE: Final = re.compile(rf"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/({_HUB_ID.pattern})")
_RELEASE: Final = re.compile(r"[0-9]+(\.[0-9]+)+")
_CORES: Final = re.compile(r"RANGE(,RANGE)*(\|RANGE(,RANGE)*)*".replace("RANGE", r"[0-9]{1,4}(-[0-9]{1,4})?"))
_SPECIFIER: Final = re.compile(r"(>=|<=|==|!=|<|>)\s*[0-9]+(\.[0-9]+)*")
LOCAL_PREFIXES: Final = ("/", "~/", "./", "../", "state:")


def _printable(value: str) -> str:
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError("contains a control character")
    return value


def matching(pattern: re.Pattern[str], wanted: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{value!r} is not {wanted}")
        return value

    return AfterValidator(check)


def _whole_number(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[-+]?[0-9]+", value):
        hint = f"; write {_expanded(value)}" if _expanded(value) else ""
        raise ValueError(f"{value!r} is not a whole number{hint}")
    return value


def _expanded(value: str) -> int | None:
    """Return the number that is meant: 128k (of 1024, as for context lengths), 8000:8000, 32_768, 1e3."""
    text = value.strip()
    if match := re.fullmatch(r"([0-9]{1,9})\s*([kKmM])i?", text):
        return int(match[1]) * (1024 if match[2] in "kK" else 1024**2)
    if match := re.fullmatch(r"(?:[0-9.]+:)?([0-9]{1,5}):[0-9]{1,5}", text):
        return int(match[1])  # 8001:8000 publishes port 8001
    if re.fullmatch(r"[0-9]{1,3}(?:[_,][0-9]{3}){1,3}", text):
        return int(re.sub("[_,]", "", text))
    return int(float(text)) if re.fullmatch(r"[0-9]{1,3}[eE][0-9]", text) else None


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _bounded(value: str) -> str:
    parts = [part.strip() for part in value.split(",")]
    if not all(_SPECIFIER.fullmatch(part) for part in parts):
        raise ValueError(f"{value!r} is not a version range like >=5.5.0,<5.15")
    if not any(part.startswith(("<", "==")) for part in parts):
        raise ValueError(
            f"{value!r} has no upper bound, and a later release may break the server; add one, such as ,<2"
        )
    return ",".join(re.sub(r"\s+", "", part) for part in parts)


def _model_ref(value: str) -> str:
    if value.startswith(LOCAL_PREFIXES) or _HUB_ID.fullmatch(value):
        return value
    if found := _HUB_PAGE.match(value):
        raise ValueError(f"{value!r} is an address; write {found[1]}")
    raise ValueError(
        f"{value!r} is neither a Hugging Face id (owner/name) nor a folder (beginning with /, ~/, ./ or state:)"
    )


def hub_id(text: str) -> str | None:
    """Return the Hugging Face id that the address of a model's page names; None for any other text."""
    found = _HUB_PAGE.match(text)
    return found[1] if found else None


def _name(value: str) -> str:
    if _NAME.fullmatch(value):
        return value
    lower = value.lower().replace("_", "-").replace(" ", "-")
    hint = f"; write {lower}" if _NAME.fullmatch(lower) else ""
    raise ValueError(f"{value!r} is not a name of lower-case letters, digits and hyphens{hint}")


def _size(value: str) -> str:
    if _SIZE.fullmatch(value):
        return value
    found = re.fullmatch(r"([1-9][0-9]{0,9})\s*([kmg])ib?", value, re.IGNORECASE)
    hint = f"; write {found[1]}{found[2].lower()}b" if found else ""
    raise ValueError(f"{value!r} is not a size like 32gb{hint}")


def _version(value: str) -> str:
    if _RELEASE.fullmatch(value):
        return value
    hint = f"; write {value[1:]}" if value[:1] == "v" and _RELEASE.fullmatch(value[1:]) else ""
    raise ValueError(f"{value!r} is not a release like 0.32.0{hint}")


def _speed(value: Any) -> Any:
    if isinstance(value, list) or value in ("auto", "off"):
        return value
    raise ValueError("must be auto, off, or a list of patches for speed, such as [a, b]")


def _env_name(value: str) -> str:
    if not _ENV_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of an environment variable")
    return value


def secret_name(name: str) -> bool:
    """Return whether the variable of this name holds a secret."""
    return _SECRET.search(name) is not None


def not_secret(value: str) -> str:
    if secret_name(value):
        raise ValueError(
            f"{value} looks like a secret, which does not belong in a profile: "
            "export it in the shell and list its name under pass_env"
        )
    return value


Text = Annotated[str, AfterValidator(_printable), Field(min_length=1, max_length=4096)]
Name = Annotated[str, AfterValidator(_name)]
Int = Annotated[int, BeforeValidator(_whole_number)]
Positive = Annotated[Int, Field(ge=1, le=2**31 - 1)]
Version = Annotated[
    str,
    BeforeValidator(_text_of_number),
    AfterValidator(_version),
]
Specifier = Annotated[str, BeforeValidator(_text_of_number), AfterValidator(_bounded)]
ModelRef = Annotated[Text, AfterValidator(_model_ref)]
Image = Annotated[Text, matching(_IMAGE, "an image name")]
Size = Annotated[str, AfterValidator(_size)]
User = Annotated[str, BeforeValidator(_text_of_number), matching(re.compile(r"[0-9]+(:[0-9]+)?"), "uid or uid:gid")]
Cores = Annotated[str, BeforeValidator(_text_of_number), matching(_CORES, "a list of CPU cores like 0-15")]
EnvName = Annotated[str, AfterValidator(_env_name)]
Webhook = Annotated[Text, AfterValidator(webhook)]
Word = Annotated[Text, BeforeValidator(_text_of_number)]
EnvValue = Annotated[str, BeforeValidator(_text_of_number), AfterValidator(_printable)]
Speed = Annotated[Literal["auto", "off"] | list[Name], BeforeValidator(_speed)]
Folder = Annotated[Text, matching(re.compile(r"(/|~/|\./|\.\./|state:).*"), "a folder (/…, ~/…, ./…)")]


class Section(BaseModel):
    """A part of a profile. Unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
