"""The URL of a server: what may stand in it, and taking it apart."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from django_fairque.engine.model.errors import nearest
from django_fairque.engine.model.options import shown

SCHEMES = ("redis", "rediss", "unix", "embedded")
ACCESS_OPTIONS = (
    "db",
    "username",
    "password",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)
"""Database, credentials and certificates. `RedisConfig`, a URL and the options of a cache use the same names."""
EXAMPLES = "redis://, rediss://, unix:// or embedded://, for example redis://127.0.0.1:6379/0"


def split_url(url: str) -> tuple[str, dict[str, str]]:
    """The URL without credentials, and the options it carries.

    An option named in the query wins over the same one elsewhere in the URL, as in redis-py. A URL that can't be
    taken apart is returned as it is: `complaint` says what is wrong with it.
    """
    if find_url_problem(url):
        return url, {}
    parts = urlsplit(url)
    found = {"username": parts.username, "password": parts.password, "db": _database(parts)}
    options = {name: unquote(value) for name, value in found.items() if value}
    options |= {name.lower(): value for name, value in parse_qsl(parts.query, keep_blank_values=True)}
    if parts.scheme == "rediss":
        options["ssl"] = "true"
    public = [(name, value) for name, value in parse_qsl(parts.query) if name not in ("username", "password")]
    # Not urlunsplit: it drops the empty host of unix:// and embedded://.
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{place}?{urlencode(public)}" if public else place, options


def find_url_problem(url: str, known: Collection[str] | None = None) -> str:
    """What is wrong with the URL, or an empty string; ``known`` are the options that its query may name."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # its text may quote a part of the password
        return f"expected {EXAMPLES}; got {shown(url)}, whose host or port can't be read (is the password %-encoded?)"
    if parts.scheme not in SCHEMES:
        return f"expected {EXAMPLES}; got {shown(url)}"
    if wrong := _wrong_place(parts, host):
        return f"{wrong}; got {shown(url)}"
    for name in (name.lower() for name, _ in parse_qsl(parts.query)):
        if known is not None and name not in known:
            suggestion = nearest(name, known)
            return f"unknown option {name!r} in the URL" + (f"; did you mean {suggestion}?" if suggestion else "")
    return ""


def _wrong_place(parts: SplitResult, host: str | None) -> str:
    if parts.scheme == "embedded" and (parts.netloc or parts.path == "/" or parts.query or parts.fragment):
        return "expected embedded:// or, with three slashes, embedded:///absolute/directory"
    if parts.scheme == "unix" and (parts.netloc.rpartition("@")[2] or parts.path in ("", "/")):
        return "expected, with three slashes, unix:///absolute/path/of/the.sock"
    if parts.scheme in ("redis", "rediss"):
        if not host:
            return f"expected a host, for example {parts.scheme}://127.0.0.1:6379/0"
        database = _database(parts)
        if database and not database.isdecimal():
            return f"expected a database number after the host, for example {parts.scheme}://{host}/0"
    return ""


def is_loopback(host: str) -> bool:
    """Whether connections to this host stay on this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _database(parts: SplitResult) -> str:
    return parts.path.strip("/") if parts.scheme in ("redis", "rediss") else ""
