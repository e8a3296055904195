"""Build a Server from a profile and an engine: its files, interpreter and command. Starts nothing.

What a profile would run on this machine now: the facts that a lock records.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gemmaspec.core import data
from gemmaspec.core.errors import EnvironmentMissing, ProfileError, UsageError
from gemmaspec.core.files import state_dir
from gemmaspec.core.fleet.hosts import Host
from gemmaspec.core.lock.document import Lock, LockedImage, LockedModel, Versions
from gemmaspec.core.patching.patch import Shelf
from gemmaspec.core.profile.engines import uses_image
from gemmaspec.core.profile.fields import LOOK_UPS
from gemmaspec.core.profile.load import Loaded
from gemmaspec.core.profile.machines import MACHINES
from gemmaspec.core.profile.model import Profile
from gemmaspec.core.profile.replica import VISIBLE, bound_environment
from gemmaspec.core.releases.drafting import transformers_for
from gemmaspec.run.engine.identity import image_identity
from gemmaspec.run.engine.server import EngineName, Server
from gemmaspec.run.kept.fleet import nodes_of, reached_at
from gemmaspec.run.kept.models import Commit, ModelRef, digest_of, in_cache, models_of
from gemmaspec.run.kept.stacks import stack_folder
from gemmaspec.run.runtime.managed import interpreter_of, versions_at
from gemmaspec.run.runtime.spec import RuntimeSpec
from gemmaspec.run.stack.build import Form, Stack, profile_plan, render_stack
from gemmaspec.run.stack.nodes import rank_composes
from gemmaspec.run.stack.paths import Paths, container_paths, host_paths, is_local
from gemmaspec.run.stack.serve import Served, served_at


def prepare(
    loaded: Loaded, *, engine: EngineName, remote: bool = False, hosts: Sequence[Host] = ()
) -> tuple[Server, Stack, RuntimeSpec | None]:
    """Return the server that `engine` would run for a profile, its stack, and the environment that gemmaspec builds.

    The environment is None for an image, and for the user's own. `hosts` are the server's machines by rank, if it spans
    several; each has a compose file of its own in the stack. A `remote` Docker engine cannot mount folders of this
    machine, so its stack's files are copied into a volume.
    """
    profile = loaded.profile
    runtime = None
    if remote and not hosts:
        _refuse_folders(loaded)
    paths = _paths(profile, engine)
    served = served_at(profile, paths)
    if uses_image(engine):
        form: Form = "folder"
        if hosts:
            form = "rank"
        elif remote:
            form = "volume"
        of_engine: dict[str, object] = {"image": profile.image, "copied": remote or bool(hosts)}
    else:
        form = "process"
        environment = _environment(profile, served)
        runtime = None if paths.python else runtime_spec(loaded)
        if runtime:
            python = interpreter_of(runtime)
        else:
            python = Path(paths.python or "")
        of_engine = {"python": python, "command": served.command, "environment": environment}
    if hosts:
        of_engine |= {"nodes": nodes_of(hosts), "reached_at": reached_at(loaded, hosts[0])}
    server = _server(profile, model=served.model, **of_engine)
    stack = render_stack(loaded, served, form=form)
    if hosts:
        texts = rank_composes(loaded, served, hosts, stack.files)
        composes = {node.compose_file: texts[node.host] for node in nodes_of(hosts)}
        stack = Stack(profile=profile, files={**stack.files, **composes})
    return server, stack, runtime


def _paths(profile: Profile, engine: EngineName) -> Paths:
    if uses_image(engine):
        return container_paths(profile)
    return host_paths(profile, folder=stack_folder(profile.name), state=state_dir())


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
    if transformers:
        bounds = {"transformers": transformers}
    else:
        bounds = {}
    return RuntimeSpec(
        vllm=profile.runtime.vllm,
        device="cuda" if MACHINES[profile.machine].gpus else "cpu",
        packages={**bounds, **profile.runtime.packages},
    )


def _server(profile: Profile, **of_engine: object) -> Server:
    spec = profile.speculative
    in_container = of_engine.get("image") is not None
    return Server(
        name=profile.name,
        folder=stack_folder(profile.name),
        port=profile.serve.port,
        bind=profile.serve.bind,
        speculates=spec is not None,
        looks_up=spec is not None and spec.method in LOOK_UPS,
        watched=profile.watch.container and in_container,
        needs_api_key="VLLM_API_KEY" in profile.pass_env,
        gpus=MACHINES[profile.machine].gpus,
        stop_grace_s=float(profile.container.stop_grace_seconds),
        **of_engine,  # type: ignore[arg-type]
    )


def _environment(profile: Profile, served: Served) -> dict[str, str]:
    """Return the profile's variables. Caches stay in their usual folders unless the profile names others."""
    paths = served.paths
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if profile.devices is not None:
        # Without the order, CUDA counts the fastest GPU first, and nvidia-smi by its place on the bus.
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", VISIBLE: ",".join(map(str, profile.devices))}
    if paths.huggingface:
        environment["HF_HOME"] = paths.huggingface
    if paths.compile:
        names = {
            "VLLM_CACHE_ROOT": "vllm",
            "TRITON_CACHE_DIR": "triton",
            "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
        }
        environment |= {variable: f"{paths.compile}/{name}" for variable, name in names.items()}
    return environment | profile.env | bound_environment(profile) | served.environment


def resolve(
    loaded: Loaded,
    engine: EngineName,
    commit: Commit | None = None,
    *,
    running_image: str | None = None,
    asks_registry: bool = False,
) -> Lock:
    """Return everything that decides what runs. Starts nothing, and reads an image without running it.

    `commit` says of a model of the Hub which one it is, by default as the cache has it. `running_image` is the id of
    the image that runs, whatever the profile's image refers to by now. `asks_registry`: an image that is not on this
    machine is pinned by the digest that its registry states, and nothing is pulled; its versions stay unknown.

    Raises EnvironmentMissing for a missing image, runtime or model folder.
    """
    profile = loaded.profile
    if uses_image(engine):
        image = _locked_image(loaded, running_image, asks_registry=asks_registry)
    else:
        image = None
    commit = commit or in_cache(profile, in_image=uses_image(engine))
    refs = tuple(models_of(profile))
    models = [_locked_model(ref, commit) for ref in refs]
    return Lock(
        profile=profile.name,
        engine=engine,
        plan=plan_digest(profile),
        image=image,
        target=models[0],
        draft=models[1] if len(models) > 1 else None,
        versions=_versions(loaded, image),
    )


def _versions(loaded: Loaded, image: LockedImage | None) -> Versions | None:
    """Return the versions in the image, or a process's environment; None for an image that is not on this machine.

    Raises EnvironmentMissing for an environment that is not built.
    """
    profile = loaded.profile
    if image is None:
        paths = _paths(profile, "process")
        if paths.python:
            python = Path(paths.python)
        else:
            python = interpreter_of(runtime_spec(loaded))
        if versions := versions_at(python, profile.env):
            return versions
        why = f"the runtime of {profile.name} has not been built yet"
        raise EnvironmentMissing(why, hint=f"gemmaspec pull {loaded.typed} --engine process")
    if image.id is None:
        return None
    from gemmaspec.run.trees.image import image_versions  # docker's SDK is slow to import

    return Versions(**image_versions(image.id, python=profile.container.python))


def _locked_image(loaded: Loaded, running: str | None, *, asks_registry: bool) -> LockedImage:
    name = loaded.profile.image
    if not name:
        raise UsageError(f"{loaded.file}: image: missing, but the docker engine needs it")
    identity = image_identity(running or name, named=name)
    if identity is None and asks_registry:
        from gemmaspec.run.engine.pulling import registry_digest  # docker's SDK is slow to import

        pinned = LockedImage(name=name, digest=registry_digest(name))
        here = image_identity(pinned.ref)  # a pull by an earlier lock leaves it without its tag
        if here:
            return pinned.model_copy(update={"id": here.id})
        return pinned
    if identity is None:
        raise EnvironmentMissing(
            f"the image {name} is not on this machine", hint=f"gemmaspec pull {loaded.typed} --engine docker"
        )
    return LockedImage(name=name, digest=identity.digest, id=identity.id)


def _locked_model(model: ModelRef, commit: Commit) -> LockedModel:
    if model.local:
        return LockedModel(model=model.model, digest=digest_of(model))
    return LockedModel(model=model.model, asked=model.revision, revision=commit(model))


def plan_digest(profile: Profile) -> str:
    """Return sha256:… of a profile's plan, which holds its name."""
    return f"sha256:{profile_plan(profile, Shelf(data.patch_folders()))['sha256']}"
