"""Keep the wheel of a commit for the tests, without its documentation, pictures and translations.

``python -m tests.tools.make_wheel DIRECTORY NUMBER``: the directory is a checkout, the number the format that it writes.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parents[1] / "formats"
LEFT_OUT = tuple(f"django_fairque/{folder}/" for folder in ("docs", "locale", "static", "templates"))
WHEEL = "django_fairque_format_{number}.whl"


def make_wheel(checkout: Path, number: int) -> Path:
    """Build the wheel of a ``checkout``, and return the path of the part of it that is kept."""
    kept = HERE / WHEEL.format(number=number)
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        subprocess.run(command, cwd=checkout, check=True)
        (built,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(built) as source, zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
            for name in source.namelist():
                if not name.startswith(LEFT_OUT):
                    out.writestr(zipfile.ZipInfo(name), source.read(name), zipfile.ZIP_DEFLATED, 9)
    return kept


if __name__ == "__main__":
    make_wheel(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
