"""`redrive config trust`: what a file may do that another user can change, and where it may send secrets."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from redrive.cli import confirming
from redrive.cli.options import StoreCommand, as_json, given
from redrive.cli.printing import print_json, printable, say, table
from redrive.config import StoreOptions, find_file, load_store
from redrive.config.problems import shown_file
from redrive.config.reading import line_of
from redrive.config.trust import confirm_file, confirm_folder, load_trust, secret_for, withdraw
from redrive.errors import Problem, UntrustedFile
from redrive.model.url import redact_url


@click.command(cls=StoreCommand)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--list", "listing", is_flag=True, help="Print all that was confirmed.")
@click.option("--remove", is_flag=True, help="Take back what was confirmed of this file or folder.")
def trust(path: Path | None, listing: bool, remove: bool) -> None:
    """Confirm a file: a token may be sent to its addresses, and it is used although other users can change it.

    Without PATH it is the file that every command would use. Path, owner and addresses are kept in the configuration
    folder of this user; with another owner or address, a file has to be confirmed again. With the path of a folder,
    all files in it and below are used, although other users can change them; that sends no token anywhere.
    """
    if listing:
        _print()
        return
    chosen = Path(given("file")) if path is None and given("file") else path or find_file()
    if chosen is None:
        raise click.UsageError("there is no redrive.toml here or above; name the file, or a folder")
    chosen = chosen.absolute()
    if remove:
        _report(chosen, "no longer confirmed" if withdraw(chosen) else "not confirmed; nothing was to be done")
    elif chosen.is_dir():
        confirm_folder(chosen)
        _report(chosen, "confirmed: files in it and below are used, also if other users can change them")
    else:
        entry = confirm_file(chosen, _addresses(load_store(chosen, variables=given("allow_variable") or ())))
        _report(chosen, f"confirmed for {', '.join(entry.addresses)}")


def check_secrets(
    file: Path, store: StoreOptions, environment: Mapping[str, str] = os.environ, *, has_token: bool, ask: bool
) -> None:
    """Return if nothing secret would be sent to an address of a file, or the user has confirmed that.

    A person in a terminal is asked, unless `ask` says otherwise. Raises `UntrustedFile`.
    """
    keys: dict[tuple[str, ...], str] = {("url",): store.url}
    keys |= {("stores", name): url for name, url in store.stores.items()}
    for key, url in keys.items():
        secret = secret_for(url, environment, has_token=has_token and key == ("url",))
        if secret is None or load_trust().lets_send(file, url):
            continue
        if ask and confirming.in_a_terminal():
            click.echo(f"{printable(str(file))} sends {secret} to {redact_url(url)}.", err=True)
            if click.confirm("Trust this file with that address from now on?", err=True):
                confirm_file(file, _addresses(store))
                continue
        problem = (
            f"is {redact_url(url)}, and {secret} would be sent there; confirm that with redrive config trust "
            f"{shlex.quote(str(file))}, or give the address with --url or REDRIVE_URL"
        )
        raise UntrustedFile(shown_file(file), (Problem(line_of(file, key), ".".join(key), problem),))


def _addresses(store: StoreOptions) -> tuple[str, ...]:
    return (store.url, *store.stores.values())


def _report(path: Path, what: str) -> None:
    if as_json():
        print_json({"path": str(path), "outcome": what})
    else:
        say(f"{path} is {what}")


def _print() -> None:
    found = load_trust()
    if as_json():
        print_json(found)
        return
    rows = [(each.path, "" if each.owner is None else each.owner, " ".join(each.addresses)) for each in found.files]
    rows += [(folder, "", "files in it and below") for folder in found.folders]
    table({"path": "~", "owner": ">", "confirmed for": "~"}, rows)
