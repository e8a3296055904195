"""Reading flags and names out of vLLM's files: FAKE files here, those of real wheels where marked network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import facts as tool
import pytest
from extraction import names
from extraction.extract import METADATA, cuda_of, extract
from extraction.flags import flags_of
from extraction.reading import extract_from
from extraction.rows import changes, facts_in
from extraction.sources import Sources, Unexpected
from extraction.values import configs_of

from gemmaspec.core.errors import EnvironmentMissing
from gemmaspec.core.releases import flags as table
from gemmaspec.core.releases import table as table_of
from gemmaspec.core.releases.facts import releases, rows_of
from gemmaspec.core.releases.flags import Flag
from gemmaspec.run.trees import listing
from gemmaspec.run.trees.reader import FolderReader, ReleaseReader
from tests.support.real import cpu_site

SERVE = """
    from vllm.entrypoints.cli_args import make_arg_parser
"""
FRONTEND = """
    from vllm.chat import Format
    from vllm.config import config

    @config
    class BaseFrontendArgs:
        chat_template: str | None = None
        content_format: Format = "auto"

    @config
    class FrontendArgs(BaseFrontendArgs):
        log_level: Literal["debug", "info"] = "info"
        api_key: list[str] | None = None

    def make_arg_parser(parser):
        parser.add_argument("model_tag", nargs="?")
        parser.add_argument("--headless", action="store_true")
        parser = FrontendArgs.add_cli_args(parser)
        return AsyncEngineArgs.add_cli_args(parser)
"""
CHAT = """
    Format = Literal["auto", "openai"]
"""
ENGINE = """
    from vllm.config import ModelConfig, PASS

    class EngineArgs:
        @staticmethod
        def add_cli_args(parser):
            model_kwargs = get_kwargs(ModelConfig)
            group = parser.add_argument_group(title="Model")
            group.add_argument("--dtype", **model_kwargs["dtype"])
            group.add_argument("--load-format", **model_kwargs["load_format"])
            group.add_argument("--trust", "--trust-all", **model_kwargs["trust"])
            group.add_argument("--token", **model_kwargs["token"])
            group.add_argument("--pooler", **model_kwargs["pooler"])
            group.add_argument("--size", "-tp", **{**model_kwargs["size"], "default": None})
            backend_kwargs = model_kwargs["backend"]
            backend_kwargs["type"] = lambda s: s.lower().replace("-", "_")
            group.add_argument("--backend", **backend_kwargs)
            model_kwargs["all2all"]["choices"].remove(PASS)
            group.add_argument("--all2all", **model_kwargs["all2all"])
            model_kwargs["traces"]["choices"] += ["model,worker"]
            group.add_argument("--traces", **model_kwargs["traces"])
            group.add_argument("--level", choices=get_args(Level))
            group.add_argument("--device", choices=["auto", "cpu"] + here())
            group.add_argument("--own", choices=["a"] + ([current_platform.device_type] if gpu() else []))
            group.add_argument("--since", **model_kwargs["since"])
            return parser

    class AsyncEngineArgs(EngineArgs):
        @staticmethod
        def add_cli_args(parser):
            parser = EngineArgs.add_cli_args(parser)
            parser.add_argument("--log-requests", action=argparse.BooleanOptionalAction, default=False)
            return parser

    Level = Literal["a", "b"]
"""
CONFIG = """
    import enum
    from vllm.kernel import Backend

    PASS = "pass"
    Half = Literal["float16"]
    Dtype = Literal["auto", Half]

    class Mode(enum.IntEnum):
        NONE = 0
        FULL = 3

    @dataclass
    class Inner:
        path: str | None = None

    @config
    class Pooler:
        share: float | None = Field(default=None, gt=0, le=1)
        mode: Mode = None
        kind: Literal["a", "b"] | None = None
        sizes: list[int] = field(default_factory=list)
        inner: Inner = field(default_factory=Inner)
        changed: int = 0
        filled: SkipValidation[int] = None
        own: int = field(init=False)

        @field_validator("mode", mode="before")
        def named(cls, value):
            return Mode[value.upper()] if isinstance(value, str) else value

        @field_validator("mode", "sizes", mode="wrap")
        def skip(cls, value, handler):
            if value is None:
                return value
            return handler(value)

        @field_validator("changed", mode="before")
        def change(cls, value):
            return len(value)

    @config(config=ConfigDict(arbitrary_types_allowed=True))
    class ModelConfig:
        dtype: Dtype | torch.dtype = "auto"
        load_format: str | Literal["auto", "pt"] = "auto"
        trust: bool | None = None
        token: bool | str | None = None
        pooler: Pooler | None = None
        size: Annotated[int, "tokens"] = Field(default=1, ge=1)
        backend: Backend = "auto"
        all2all: Literal["pass", "naive"] = "naive"
        traces: list[Literal["model", "worker"]] | None = None
        since: str | None = None

        @field_validator("since")
        def is_version(cls, value):
            if value is not None:
                parse(value)
            return value
"""
KERNEL = """
    if TYPE_CHECKING:
        Backend = Literal["auto", "cutlass_moe"]
"""
FILES = {
    "vllm/entrypoints/cli/serve.py": SERVE,
    "vllm/entrypoints/cli_args.py": FRONTEND,
    "vllm/chat.py": CHAT,
    "vllm/engine/arg_utils.py": ENGINE,
    "vllm/config/__init__.py": CONFIG,
    "vllm/kernel/__init__.py": KERNEL,
}


def sources(files: Mapping[str, str]) -> Sources:
    return Sources(lambda path: dedent(files[path]).encode() if path in files else None)


def flags(**changed: str) -> dict[str, Flag]:
    by_name = {"engine": "vllm/engine/arg_utils.py", "config": "vllm/config/__init__.py"}
    return flags_of(sources({**FILES, **{by_name[name]: text for name, text in changed.items()}}))


def test_every_option_is_found_and_positions_are_none() -> None:
    frontend = ["--headless", "--chat-template", "--content-format", "--log-level", "--api-key"]
    engine = ["--dtype", "--load-format", "--trust", "--trust-all", "--token", "--pooler", "--size", "--backend"]
    assert list(flags()) == [
        *frontend,
        *engine,
        "--all2all",
        "--traces",
        "--level",
        "--device",
        "--own",
        "--since",
        "--log-requests",
    ]


@pytest.mark.parametrize(
    "flag",
    [
        Flag(name="--headless", bare=True, form="-"),
        Flag(name="--chat-template"),
        Flag(name="--content-format", choices=frozenset({"auto", "openai"})),
        Flag(name="--dtype", choices=frozenset({"auto", "float16"})),
        Flag(name="--load-format"),
        Flag(name="--trust-all", negatable=True, bare=True),
        Flag(name="--token", bare=True),
        Flag(name="--pooler", form="?@Pooler"),
        Flag(name="--size", short="-tp", form="int>=1"),
        Flag(name="--api-key", form="+"),
        Flag(name="--backend", choices=frozenset({"auto", "cutlass_moe"}), folds=True),
        Flag(name="--all2all", choices=frozenset({"naive"})),
        Flag(name="--traces"),
        Flag(name="--level", choices=frozenset({"a", "b"})),
        Flag(name="--device"),
        Flag(name="--own", choices=frozenset({"a"})),
        Flag(name="--since", form="?version"),
        Flag(name="--log-requests", negatable=True, bare=True),
    ],
    ids=lambda flag: flag.name,
)
def test_a_flag_takes_what_its_type_says(flag: Flag) -> None:
    assert flags()[flag.name] == flag


def test_the_keys_of_a_configuration_are_read_with_types_bounds_and_nested_classes() -> None:
    given = sources(FILES)
    assert configs_of(given, [("vllm/config/__init__.py", "Pooler")]) == {
        "Pooler": {
            "share": "float>0<=1|None",
            "mode": "^NONE|^FULL|#0|#3|None",
            "kind": "=a|=b|None",
            "sizes": "[int]|None",
            "inner": "@Inner",
            "changed": "any",
            "filled": "any",
        },
        "Inner": {"*": "any", "path": "str|None"},
    }


def test_variables_that_are_converted_have_a_form() -> None:
    given = sources(
        {
            "vllm/envs.py": """
    def get_port():
        port = os.getenv("P", "0")
        try:
            return int(port)
        except ValueError as err:
            raise ValueError(parse_url(port)) from err

    environment_variables = {
        "P": get_port,
        "A": lambda: bool(int(os.getenv("A", "0"))),
        "B": lambda: maybe_convert_int(os.environ.get("B", None)),
        "C": lambda: float(os.environ["C"]) if "C" in os.environ else None,
        "D": lambda: os.getenv("D", "0").lower() in ("1", "true"),
        "E": lambda: int(os.getenv("A", "0")),
    }
"""
        }
    )
    assert names.environment_forms_of(given) == {"P": "int", "A": "int", "B": "int", "C": "float"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "serve.py: make_arg_parser is missing"),
        ({**FILES, "vllm/engine/arg_utils.py": "class EngineArgs: def"}, "arg_utils.py is not valid Python"),
        ({**FILES, "vllm/engine/arg_utils.py": "x = 1"}, "EngineArgs is not a class of vllm"),
        (
            {**FILES, "vllm/config/__init__.py": "class ModelConfig: pass"},
            r"arg_utils.py:9: unknown form: model_kwar",
        ),
        ({**FILES, "vllm/engine/arg_utils.py": ENGINE.replace("get_kwargs(ModelConfig)", "own()")}, "not get_kwargs"),
        ({**FILES, "vllm/chat.py": "Format = Literal[f(1)]"}, r"chat.py:1: not a type: f\(1\)"),
        ({**FILES, "vllm/chat.py": "Format = Literal[int]"}, "chat.py:1: not a literal: int"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(files: Mapping[str, str], said: str) -> None:
    with pytest.raises(Unexpected, match=said):
        flags_of(sources(files))


@pytest.mark.parametrize(
    "chat",
    [
        "Format = Format",
        "Format = Other\nOther = Format",
        "from vllm.chat import Format",
        "Format = " + "Literal[" * 5000 + "1" + "]" * 5000,
    ],
)
def test_a_source_that_leads_nowhere_ends(chat: str) -> None:
    files = {**FILES, "vllm/chat.py": chat}
    with pytest.raises(Unexpected):
        extract(lambda path: dedent(files[path]).encode() if path in files else None)


def test_aliases_of_aliases_do_not_double() -> None:
    lines = [f"T{number} = Literal[T{number + 1}, T{number + 1}]" for number in range(60)]
    files = {**FILES, "vllm/chat.py": "\n".join([*lines, "T60 = Literal['end']", "Format = T0"])}
    assert flags_of(sources(files))["--content-format"].choices == {"end"}


def test_speculative_keys_are_those_a_user_may_set() -> None:
    text = """
        import vllm.quant as me_quant

        class SpeculativeConfig:
            model: str | None = None
            method: Literal["ngram", "mtp"] | None = None
            quantization: me_quant.Methods | str | None = None
            dtype: me_quant.Methods | None = None
            target_model_config: SkipValidation[ModelConfig] = None
            _hidden: int = 0
            LIMIT = 3
    """
    found = names.speculative_of(
        sources({names.SPECULATIVE: text, "vllm/quant/__init__.py": 'Methods = Literal["fp8", "awq"]'})
    )
    assert found == {"model": set(), "method": {"ngram", "mtp"}, "quantization": set(), "dtype": {"fp8", "awq"}}


def test_variables_are_the_keys_of_the_table_with_the_values_that_are_written_out() -> None:
    text = """
        environment_variables: dict[str, Callable[[], Any]] = {
            "VLLM_ONE": lambda: os.getenv("VLLM_ONE"),
            "VLLM_TWO": env_with_choices("VLLM_TWO", None, ["a", "b"]),
            "VLLM_THREE": env_with_choices("VLLM_THREE", None, lambda: list(names())),
        }
    """
    found = names.environment_of(sources({names.ENVIRONMENT: text}))
    assert found == {"VLLM_ONE": set(), "VLLM_TWO": {"a", "b"}, "VLLM_THREE": set()}


@pytest.mark.parametrize("text", ["", "environment_variables = dict(a=1)"])
def test_a_table_that_is_not_written_out_is_refused(text: str) -> None:
    with pytest.raises(Unexpected, match="environment_variables is not a table"):
        names.environment_of(sources({names.ENVIRONMENT: text}))


@pytest.mark.parametrize(
    ("dockerfile", "cuda"),
    [("ARG CUDA_VERSION=13.0.3\nARG PYTHON\n", "13.0.3"), ("FROM x\nARG CUDA_VERSION\n", None), ("", None)],
)
def test_the_cuda_of_the_image_is_in_its_dockerfile(dockerfile: str, cuda: str | None) -> None:
    assert cuda_of(dockerfile) == cuda


def test_what_came_and_went_is_listed_once() -> None:
    before = frozenset({("flags", "--a"), ("flags", "--a", "choices", "x"), ("flags", "--b"), ("torch", "==2.13.0")})
    after = frozenset(
        {("flags", "--b"), ("flags", "--b", "choices", "y"), ("flags", "--c"), ("flags", "--c", "bare")}
        | {("torch", "==2.14.0")}
    )
    assert [str(change) for change in changes(before, after)] == [
        "- flags --a",
        "+ flags --b choices y",
        "+ flags --c",
        "- torch ==2.13.0",
        "+ torch ==2.14.0",
    ]


def test_a_folder_that_is_built_otherwise_says_what_was_not_found(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    with pytest.raises(
        EnvironmentMissing, match=r"cannot read the flags and names of .*: vllm/entrypoints/cli/serve\.py"
    ):
        extract_from(FolderReader(tmp_path))


@pytest.mark.network
@pytest.mark.parametrize("release", ["0.19.0", "0.26.0", "0.33.0"])
def test_a_release_read_again_gives_what_the_table_has(release: str) -> None:
    found = extract_from(ReleaseReader(release, listing.published()))
    rows = rows_of(release)
    assert facts_in(found) == {row for row in rows if row[0] != "cuda"}


@pytest.fixture
def installed() -> Path:
    """site-packages of the runtime with the vLLM that the real tests run."""
    return cpu_site()


@pytest.mark.real_process
def test_an_installed_vllm_gives_what_the_table_has(installed: Path) -> None:
    found = extract_from(FolderReader(installed))
    packages = table_of.FILES["packages"]
    assert {row for row in facts_in(found) if row[0] not in packages} == {
        row for row in rows_of("0.32.0") if row[0] not in packages
    }


def test_the_metadata_gives_the_packages() -> None:
    text = "Metadata-Version: 2.1\nName: vllm\nVersion: 1\nRequires-Python: >=3.11\nRequires-Dist: torch==2.14.0\n"
    with pytest.raises(Unexpected, match="METADATA is invalid"):
        extract({METADATA: b"Metadata-Version: 2.1\nName: vllm\nRequires-Dist: ~~\n"}.get)
    with pytest.raises(Unexpected, match="make_arg_parser"):
        extract({METADATA: text.encode()}.get)


def test_final_releases_with_gemma_4_are_read() -> None:
    assert tool.final(["0.18.1", "0.19.0rc1", "0.19.0", "0.33.0", "0.34.0.dev5"]) == ["0.19.0", "0.33.0"]


@pytest.mark.network
def test_a_new_release_is_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table without its newest release, and `make facts`: the shipped files come out, and what changed is said."""
    *older, newest = releases()
    assert tool.main([newest], {release: rows_of(release) for release in older}, tmp_path) == 0
    said = capsys.readouterr().out
    assert f"vllm {newest} after {older[-1]}: " in said
    assert said.count("vllm ") == 1
    for shipped in (Path(table.__file__).parent / "data").iterdir():
        if shipped.name in ("attention.json", "backends.json", "defaults.json", "graphs.json"):
            continue  # come from `make oracle`
        assert (tmp_path / shipped.name).read_text() == shipped.read_text()
