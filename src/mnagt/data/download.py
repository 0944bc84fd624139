"""Downloads data sets from the public sites of the TU collection and of OGB."""

import hashlib
import http.client
import logging
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from mnagt.data.readers.dataset_files import DatasetFiles, find_ogb_files, find_tu_files
from mnagt.errors import InputError
from mnagt.files import write_atomically

TU_SITE = "https://www.chrsmrrs.com/graphkerneldatasets"
OGB_SITE = "https://snap.stanford.edu/ogb/data/graphproppred"
MAX_DOWNLOAD_BYTES = 4 << 30
TIMEOUT = 30
"""Seconds without a byte after which the site counts as out of reach."""

DIGESTS: dict[str, str] = {
    "MUTAG": "9bce27d7ae92026f21a7cc9a1505b7f0f4db47a048890652c3ce7f2e6927da4c",
    "NCI1": "d86db19e77db224b087cefcd282f3ed013f3114b58fbe246277f786265ec0e1f",
    "NCI109": "cf7b3af633f45161b38e1c2c3bfa315a2d6330fa37f66f301c5411630357df0b",
    "PROTEINS": "8040c4e299170d30a5233d8970e814f35a3c4f7198bdc7fb9a46c5d8a7b40303",
    "ogbg-molbace": "c135da4401d7c076fa9a82494bf2126352f7040cdc9d1dd1012187743495c0ca",
    "ogbg-molbbbp": "a01ec1eb2331f0871961a8bcdbc3abca0c22a3dc1b5a5a36873fefae2a3bb96c",
    "ogbg-molesol": "9aed3890f303b02fa347ff447801c89bf82a995ed4e0078d11e377a247b0f901",
    "ogbg-molfreesolv": "f2f0fe79ccf570cd97f6797291f56cbad4cc476de52374dc320b7e103c85079d",
}
"""``digest_contents`` of the data sets as published. Others have none because no published copy was at hand: our COLLAB
was rewritten from another format, our ogbg-molhiv and ogbg-moltox21 were built from MoleculeNet's SMILES."""

_BLOCK = 1 << 20
_SECONDS_BETWEEN_REPORTS = 5

_log = logging.getLogger(__name__)


def download_tu(name: str, root: Path, site: str = TU_SITE, largest: int = MAX_DOWNLOAD_BYTES) -> Path:
    """Fetch ``NAME.zip`` into ``root``; the file is there whole or not at all."""
    url = f"{site.rstrip('/')}/{urllib.parse.quote(name)}.zip"
    return _download(url, name, root, f"{name}_A.txt", largest, find_tu_files)


def download_ogb(name: str, archive: str, root: Path, site: str = OGB_SITE, largest: int = MAX_DOWNLOAD_BYTES) -> Path:
    """Fetch ``archive`` into ``root`` as ``NAME.zip``; the file is there whole or not at all."""
    if not archive:
        raise InputError(f"{name} is not in {root}, and no public site has it; put its folder there, or set MNAGT_DATA")
    return _download(f"{site.rstrip('/')}/{archive}", name, root, "num-node-list.csv.gz", largest, find_ogb_files)


def digest_contents(files: DatasetFiles) -> str:
    """SHA-256 of the graphs of a data set: of its files, unpacked, whatever their folder and line ends.

    Of the OGB layout only ``raw/`` counts.
    """
    digest = hashlib.sha256()
    for field in sorted(field for field in files.members if "/" not in field or field.startswith("raw/")):
        digest.update(f"{field}\n".encode())
        for block in files.read_blocks(field):
            digest.update(block.replace(b"\r", b""))
    return digest.hexdigest()


def _download(
    url: str, name: str, root: Path, mark: str, largest: int, find_files: Callable[[Path], DatasetFiles]
) -> Path:
    """Download a zip in which a file ``mark`` must be, and of which ``DIGESTS`` may have the digest."""
    path = root / f"{name}.zip"
    by_hand = f"fetch it elsewhere and put it at {path}"
    if not os.access(next(folder for folder in (root, *root.parents) if folder.exists()), os.W_OK):
        raise InputError(f"cannot write {path}; set MNAGT_DATA to a folder that can be written, or {by_hand}")
    with write_atomically(path) as scratch:
        _log.info("fetching %s", url)
        digest = hashlib.sha256()
        with scratch.open("wb") as file:
            for block in _receive(url, largest, by_hand):
                file.write(block)
                digest.update(block)
        _check_zip(scratch, mark, url, by_hand)
        if name in DIGESTS and digest_contents(find_files(scratch)) != DIGESTS[name]:
            raise InputError(
                f"{url}: not the {name} that mnagt knows (its digest is another); {by_hand} if you trust it"
            )
    if name in DIGESTS:
        _log.info("%s is in %s; its digest is as expected", name, path)
        return path
    _log.warning(
        "%s is in %s. Nobody publishes a digest of it to compare: its SHA-256 is %s", name, path, digest.hexdigest()
    )
    return path


def _receive(url: str, largest: int, by_hand: str) -> Iterator[bytes]:
    """The content at ``url``, block by block; an error where it is shorter than its Content-Length."""
    with ExitStack() as opened:
        with _network_errors(url, by_hand):
            response = opened.enter_context(urllib.request.urlopen(url, timeout=TIMEOUT))
            if url.startswith("https:") and not response.url.startswith("https:"):
                raise ValueError(f"it leads to {response.url}, which anyone on the way can change")
            length = response.headers.get("Content-Length")
            promised = int(length) if length else None
        got, reported = 0, time.monotonic()
        while True:
            with _network_errors(url, by_hand):
                block = response.read(_BLOCK)
            if not block:
                break
            got += len(block)
            if got > largest:
                raise InputError(f"{url}: over {largest:,} bytes, more than a data set has; {by_hand}")
            yield block
            if time.monotonic() - reported > _SECONDS_BETWEEN_REPORTS:
                reported = time.monotonic()
                _log.info("%s: %.1f of %s MB", url, got / 1e6, f"{promised / 1e6:.1f}" if promised else "?")
    if promised is not None and got != promised:
        raise InputError(f"{url}: the connection ended after {got:,} of {promised:,} bytes; try again, or {by_hand}")


@contextmanager
def _network_errors(url: str, by_hand: str) -> Iterator[None]:
    """Turn all network errors into ``InputError``."""
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        reason = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
        raise InputError(f"cannot fetch {url} ({reason}); {by_hand}") from error


def _check_zip(scratch: Path, mark: str, url: str, by_hand: str) -> None:
    try:
        with zipfile.ZipFile(scratch) as archive:
            names = {PurePosixPath(member).name for member in archive.namelist()}
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise InputError(f"{url}: what came is not a zip ({error}); {by_hand}") from error
    if mark not in names:
        raise InputError(f"{url}: no {mark} in the zip that came; {by_hand}")
