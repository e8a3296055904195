"""`gemmaspec lock`."""

from __future__ import annotations

from gemmaspec.cli import options, output


def lock(profile: options.Profile, engine: options.Engine = None, json: options.Json = False) -> None:
    """Record exactly what a profile runs: image digest, model revisions, versions, plan.

    Writes NAME.lock next to the profile, or into your own profile folder for a shipped profile. `up --locked` then
    refuses to run anything else.
    """
    from gemmaspec.serve.write_lock import lock_profile

    written = lock_profile(profile, options.engine_name(engine), output.progress)
    if json:
        content = written.lock.model_dump(by_alias=True)
        output.json_data({"ok": True, "file": str(written.file), "lock": content, "moved": written.moved})
        return
    for change in written.moved:
        output.data(str(change))
    state = "already locked; nothing has changed"
    if written.first:
        state = "locked"
    elif written.moved:
        state = "locked again"
    output.data(f"{written.lock.profile} is {state}: {written.file}")
    output.data(f"  engine    {written.lock.engine}")
    if written.lock.image:
        output.data(f"  image     {written.lock.image.ref}")
    if versions := written.lock.versions:
        output.data(f"  versions  vllm {versions.vllm}, torch {versions.torch}, transformers {versions.transformers}")
