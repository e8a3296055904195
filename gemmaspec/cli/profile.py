"""`gemmaspec profile list|show`, and where lint and schema join them."""

from __future__ import annotations

import typer

from gemmaspec.cli import lint, options, output


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = typer.Typer(help="Look at profiles and check them.", no_args_is_help=True)
    group.command("list")(list_)
    group.command("show")(show)
    group.command("lint")(lint.lint)
    group.command("schema")(lint.schema)
    app.add_typer(group, name="profile")


def list_(json: options.Json = False) -> None:
    """List the profiles that can be run."""
    from gemmaspec.errors import ProfileError
    from gemmaspec.profile.find import profile_folders, profile_names
    from gemmaspec.profile.load import load_profile

    rows = []
    for name, file in profile_names(profile_folders()).items():
        try:
            profile = load_profile(str(file)).profile
            rows.append({"name": name, "machine": profile.machine, "summary": profile.summary, "file": str(file)})
        except ProfileError as error:
            rows.append(
                {
                    "name": name,
                    "machine": "?",
                    "summary": f"not valid: {error.message.splitlines()[0]}",
                    "file": str(file),
                }
            )
    if json:
        output.json_data({"profiles": rows})
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        output.data(f"{row['name']:<{width}}  {row['machine']:<9}  {row['summary']}")


def show(
    profile: options.Profile,
    set_: options.Set = None,
    no_spec: options.NoSpec = False,
    json: options.Json = False,
) -> None:
    """Print a profile as it will be used: everything it extends and every override merged in."""
    from gemmaspec.profile.load import load_profile

    loaded = load_profile(profile, overrides=set_ or (), no_spec=no_spec)
    content = loaded.profile.model_dump(by_alias=True, exclude_defaults=True, mode="json")
    if json:
        output.json_data({"file": str(loaded.file), "profile": content})
        return
    import yaml

    output.data(f"# {loaded.file}\n{yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}")
