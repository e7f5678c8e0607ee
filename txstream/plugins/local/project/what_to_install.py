"""What a new project's `requirements.txt` installs: the very txstream that made it, on other machines too.

An index has only releases. So a txstream that was installed from a folder or a wheel goes into the project,
as a wheel made of its installed files; one from a repository is named with its commit, one from an index with
its version.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import PurePosixPath
from typing import NamedTuple

_OF_THE_INSTALLATION = frozenset(("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"))


class Installs(NamedTuple):
    """A line of `requirements.txt`, and the wheel that it names, if there is one."""

    requirement: str
    wheel: bytes | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether other machines have it."""
        return not self.requirement.startswith("-e ")


def what_to_install(found: Distribution | None = None) -> Installs:
    """Return what installs this txstream again."""
    found = found or distribution("txstream")
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    if not url:
        return Installs(f"txstream=={found.version}")
    if vcs := origin.get("vcs_info"):
        return Installs(f"txstream @ {vcs['vcs']}+{url}@{vcs['commit_id']}")
    if not url.startswith("file:"):
        return Installs(f"txstream @ {url}")
    if origin.get("dir_info", {}).get("editable"):
        return Installs(f"-e {url}")
    return Installs(f"./wheels/txstream-{found.version}-py3-none-any.whl", _wheel(found))


def _wheel(found: Distribution) -> bytes:
    """Return the wheel that these files were installed from. txstream has no compiled ones."""
    packed, record = io.BytesIO(), ""
    about = ""
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in sorted(found.files or (), key=str):
            is_program = file.parts[0] == ".."  # pip makes these from the entry points
            if is_program or "__pycache__" in file.parts or file.name in _OF_THE_INSTALLATION:
                continue
            content = file.read_binary()
            wheel.writestr(zipfile.ZipInfo(str(file)), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{file},sha256={digest},{len(content)}\n"
            if file.name == "METADATA":
                about = str(PurePosixPath(file).parent)
        wheel.writestr(zipfile.ZipInfo(f"{about}/RECORD"), f"{record}{about}/RECORD,,\n")
    return packed.getvalue()
