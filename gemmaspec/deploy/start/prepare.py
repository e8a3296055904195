"""Build a Server from a profile and an engine: its files, interpreter and command. Starts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gemmaspec.deploy.kept.fleet import nodes_of, reached_at
from gemmaspec.deploy.kept.stacks import stack_folder
from gemmaspec.engine.server import EngineName, Server
from gemmaspec.errors import ProfileError, UsageError
from gemmaspec.files import state_dir
from gemmaspec.fleet.hosts import Host
from gemmaspec.profile.engines import uses_image
from gemmaspec.profile.load import Loaded
from gemmaspec.profile.machines import MACHINES
from gemmaspec.profile.model import Profile
from gemmaspec.profile.replica import VISIBLE, bound_environment
from gemmaspec.profile.speculation import LOOK_UPS
from gemmaspec.releases.transformers import transformers_for
from gemmaspec.runtime.managed import runtime_dir
from gemmaspec.runtime.spec import RuntimeSpec
from gemmaspec.stack.build import Form, Stack, build_stack
from gemmaspec.stack.nodes import rank_stacks
from gemmaspec.stack.paths import container_paths, host_paths, is_local, on_host
from gemmaspec.stack.serve import serve_command, served_model


def prepare(
    loaded: Loaded, *, engine: EngineName, remote: bool = False, hosts: Sequence[Host] = ()
) -> tuple[Server, Stack]:
    """Return the server that `engine` would run for a profile, and its stack.

    `hosts` are its machines by rank, if it spans several; each has a compose file of its own in the stack.

    A `remote` Docker engine cannot mount folders of this machine, so its stack's files are copied into a volume.
    """
    if hosts:
        return _for_hosts(loaded, hosts)
    if not uses_image(engine):
        return _for_process(loaded)
    form: Form = "volume" if remote else "folder"
    profile = loaded.profile
    if remote:
        _refuse_folders(loaded)
    model = served_model(profile, container_paths(profile))
    server = _server(profile, model=model, image=profile.image, copied=remote)
    return server, build_stack(loaded, form=form)


def _for_hosts(loaded: Loaded, hosts: Sequence[Host]) -> tuple[Server, Stack]:
    profile, nodes = loaded.profile, nodes_of(hosts)
    rendered = rank_stacks(loaded, hosts)
    files: dict[str, str] = {}
    for node in nodes:
        of_host = rendered[node.host].files
        files |= {name: text for name, text in of_host.items() if name != "compose.yaml"}
        files[node.compose_file] = of_host["compose.yaml"]
    server = _server(
        profile,
        model=served_model(profile, container_paths(profile)),
        image=profile.image,
        copied=True,
        nodes=nodes,
        reached_at=reached_at(loaded, hosts[0]),
    )
    return server, Stack(profile=profile, files=files)


def _refuse_folders(loaded: Loaded) -> None:
    profile = loaded.profile
    for role, part in (("target", profile.target), ("draft", profile.draft)):
        if part and is_local(part.model):
            raise UsageError(
                f"{loaded.place(role, 'model')}: {role}.model: {part.model} is a folder on this machine, but the "
                "Docker daemon runs on another one and can only fetch models from the Hub"
            )


def runtime_spec(loaded: Loaded) -> RuntimeSpec:
    """Return the environment that gemmaspec builds for the process engine."""
    profile = loaded.profile
    if not profile.runtime.vllm:
        raise ProfileError(
            f"{loaded.place('runtime')}: runtime: the process engine needs the release to install "
            "(runtime.vllm) or an interpreter that has vLLM (runtime.python)",
            hint=f"gemmaspec up {loaded.typed} --engine process --set runtime.vllm=0.33.0",
        )
    transformers = transformers_for(profile.runtime.vllm)
    bounds = {"transformers": transformers} if transformers else {}
    return RuntimeSpec(
        vllm=profile.runtime.vllm,
        device="cuda" if MACHINES[profile.machine].gpus else "cpu",
        packages={**bounds, **profile.runtime.packages},
    )


def _for_process(loaded: Loaded) -> tuple[Server, Stack]:
    profile = loaded.profile
    paths = host_paths(profile, folder=stack_folder(profile.name), state=state_dir())
    own = profile.runtime.python
    python = Path(on_host(own, state=state_dir())) if own else runtime_dir(runtime_spec(loaded)) / "bin" / "python"
    server = _server(
        profile,
        model=served_model(profile, paths),
        python=python,
        command=serve_command(profile, paths),
        environment=_process_environment(profile),
    )
    return server, build_stack(loaded, form="process", paths=paths)


def _server(profile: Profile, **of_engine: object) -> Server:
    return Server(
        name=profile.name,
        folder=stack_folder(profile.name),
        port=profile.serve.port,
        bind=profile.serve.bind,
        speculates=profile.speculative is not None,
        looks_up=profile.speculative is not None and profile.speculative.method in LOOK_UPS,
        watched=profile.watch.container and of_engine.get("image") is not None,
        needs_api_key="VLLM_API_KEY" in profile.pass_env,
        gpus=MACHINES[profile.machine].gpus,
        stop_grace_s=float(profile.container.stop_grace_seconds),
        **of_engine,  # type: ignore[arg-type]
    )


def _process_environment(profile: Profile) -> dict[str, str]:
    """Return the profile's variables. Caches stay in their usual folders unless the profile names others."""
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if profile.devices is not None:
        # Without the order, CUDA counts the fastest GPU first, and nvidia-smi by its place on the bus.
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE: ",".join(map(str, profile.devices))}
    caches = profile.caches
    if caches.huggingface:
        environment["HF_HOME"] = on_host(caches.huggingface, state=state_dir())
    if caches.compile:
        root = on_host(caches.compile, state=state_dir())
        names = {
            "VLLM_CACHE_ROOT": "vllm",
            "TRITON_CACHE_DIR": "triton",
            "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
        }
        environment |= {variable: f"{root}/{name}" for variable, name in names.items()}
    return environment | profile.env | bound_environment(profile)
