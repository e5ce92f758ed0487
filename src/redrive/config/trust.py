"""The files and folders that the user trusts, and the addresses to which those files may send secrets.

The list is kept in the user's own configuration folder, outside all projects: a project cannot confirm itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import msgspec

from redrive.config.ownership import find_exposure, owner_of
from redrive.config.table_reader import variables_in
from redrive.errors import InvalidInput
from redrive.model.url import ENCODED, MAX_SHOWN_CHARS, SERVER_SCHEMES, redact_url, strip_password

FILE_NAME = "trusted.json"
_POSTGRES = ("postgresql", "postgres")
_OF_LIBPQ = ("PGPASSWORD", "PGSERVICE")
"""Variables from which libpq takes a password, regardless of the host."""


class TrustedFile(msgspec.Struct, frozen=True):
    """A confirmed file. The confirmation does not hold for another owner, or for other addresses."""

    path: str
    owner: int | None
    addresses: tuple[str, ...] = ()
    """All addresses of the file, without passwords, each with the variables that it takes."""


class Trust(msgspec.Struct, frozen=True):
    """All confirmed files and folders."""

    files: tuple[TrustedFile, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders: files in them and below are used although other users can change them."""

    def covers(self, file: Path) -> bool:
        """Return whether a file may be used although another user can change it."""
        folders = {str(folder) for folder in file.parents}
        return self._entry(file) is not None or any(folder in folders for folder in self.folders)

    def lets_send(self, file: Path, address: str) -> bool:
        """Return whether secrets may be sent to this address of a file, whose variables are not expanded."""
        entry = self._entry(file)
        return entry is not None and _identity(address) in entry.addresses

    def _entry(self, file: Path) -> TrustedFile | None:
        owner = owner_of(file)
        return next((each for each in self.files if each.path == str(file) and each.owner == owner), None)

    def without(self, path: str) -> Trust:
        """Return the same without a file or folder."""
        files = tuple(each for each in self.files if each.path != path)
        return Trust(files, tuple(each for each in self.folders if each != path))


def secret_for(
    url: str, environment: Mapping[str, str], *, has_token: bool, variables: Collection[str] = ()
) -> str | None:
    """Return the names of the user's secrets that are sent to an address when it is opened; None without one.

    url: with its variables expanded. variables: those that it takes.
    """
    named = [f"the value of {name}" for name in variables]
    with contextlib.suppress(ValueError):  # an invalid URL is not opened
        parts = urlsplit(url)
        if parts.scheme in SERVER_SCHEMES and has_token:
            named.append("the token")
        elif parts.scheme in _POSTGRES:
            named += _secrets_of_libpq(dict(parse_qsl(parts.query)), parts.password, environment)
    return " and ".join(named) or None


def _secrets_of_libpq(options: Mapping[str, str], password: str | None, environment: Mapping[str, str]) -> list[str]:
    """Return what libpq sends to any host that an address names."""
    named = ["the Kerberos ticket"] if options.get("gssdelegation", environment.get("PGGSSDELEGATION")) == "1" else []
    if password or options.get("password"):
        return named
    named += [name for name in _OF_LIBPQ if environment.get(name)]
    named += [f"what {name} names" for name in ("service", "passfile") if name in options]
    if "passfile" not in options:
        with contextlib.suppress(OSError, RuntimeError):  # no such file, or a user without a home
            file = Path(environment.get("PGPASSFILE") or Path.home() / ".pgpass")
            lines = file.read_text("utf-8", "replace").splitlines()
            if any(line.startswith("*:") or "hostaddr" in options for line in lines):  # libpq compares the host only
                named.append(f"a password of {file}")
    return named


def confirm_file(file: Path, addresses: tuple[str, ...]) -> TrustedFile:
    """Record that this file, with its current owner, may be used and may send secrets to these addresses."""
    identities = tuple(_identity(address) for address in addresses)
    if None in identities:
        raise InvalidInput(f"an address in {file} cannot be read, and so not be confirmed; {ENCODED}")
    entry = TrustedFile(str(file), owner_of(file), tuple(filter(None, identities)))
    _update(lambda trust: _with_file(trust.without(entry.path), entry))
    return entry


def confirm_folder(folder: Path) -> None:
    """Record that files in this folder and below may be used although other users can change them."""
    _update(lambda trust: _with_folder(trust.without(str(folder)), str(folder)))


def withdraw(path: Path) -> bool:
    """Withdraw the confirmation of a file or folder. Return whether there was one."""
    before = load_trust()
    after = _update(lambda trust: trust.without(str(path)))
    return before != after


def load_trust() -> Trust:
    """Return all that this user confirmed. A list that other users can change is ignored."""
    file = trust_file()
    if file is None or find_exposure(file) is not None:  # as for one that is not there
        return Trust()
    try:
        return msgspec.json.decode(file.read_bytes(), type=Trust)
    except FileNotFoundError:
        return Trust()
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidInput(f"{file} cannot be read ({error}); remove it, and confirm files again") from None


def trust_file() -> Path | None:
    """Return the path of the list; None for a user without a home."""
    named = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(named) if os.path.isabs(named) else Path.home() / ".config"
    except RuntimeError:
        return None
    return folder / "redrive" / FILE_NAME


def _identity(address: str) -> str | None:
    """Return the address without a password, and its variables, which identify it; None if its whole host cannot be
    shown. Other hidden parts are in a digest."""
    shown = redact_url(address)
    if "://" not in shown or shown.endswith("://…") or len(shown) >= MAX_SHOWN_CHARS:
        return None
    digest = "" if strip_password(address) is not None else f" #{hashlib.sha256(address.encode()).hexdigest()[:16]}"
    variables = ", ".join(dict.fromkeys(variables_in(address)))
    return f"{shown}{digest}" + (f" with {variables}" if variables else "")


def _with_file(trust: Trust, entry: TrustedFile) -> Trust:
    return msgspec.structs.replace(trust, files=(*trust.files, entry))


def _with_folder(trust: Trust, folder: str) -> Trust:
    return msgspec.structs.replace(trust, folders=(*trust.folders, folder))


def _update(change: Callable[[Trust], Trust]) -> Trust:
    """Read, change and write the list under a lock between processes; the file is replaced atomically."""
    file = trust_file()
    if file is None:
        raise InvalidInput("this user has no home to keep the list in; set XDG_CONFIG_HOME to a folder for it")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (exposure := find_exposure(file.parent)) is not None:
            raise InvalidInput(f"the folder {file.parent} {exposure}; let it belong to you alone (chmod 700)")
        with _locked(file.parent):
            trust = change(load_trust())
            _replace(file, msgspec.json.format(msgspec.json.encode(trust)))
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error.strerror}") from None
    return trust


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # a system without owners of files
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(file: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # its mode is 0600
    try:
        with open(descriptor, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(descriptor)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise
